//! Whose turn it is: batches one after the other, each for one piece. Pure, so that the order can be tested.

use std::collections::VecDeque;
use std::sync::Arc;

/// One slice, and how much of it is done.
pub(super) struct Part<S> {
    pub(super) slice: S,
    pub(super) len: u64,
    pub(super) done: u64,
}

/// Slices of one batch that wait.
struct Entry<B, S> {
    batch: Arc<B>,
    parts: VecDeque<Part<S>>,
}

/// What one thread does next: parts of one batch, of about one quantum.
pub(super) struct Turn<B, S> {
    pub(super) batch: Arc<B>,
    pub(super) parts: Vec<Part<S>>,
}

/// The batches that wait.
pub(super) struct Rounds<B, S> {
    entries: VecDeque<Entry<B, S>>,
    quantum: u64,
}

impl<B, S> Rounds<B, S> {
    pub(super) fn new(quantum: u64) -> Self {
        Self { entries: VecDeque::new(), quantum }
    }

    /// The last in the round.
    pub(super) fn push(&mut self, batch: Arc<B>, parts: impl IntoIterator<Item = Part<S>>) {
        let parts: VecDeque<_> = parts.into_iter().collect();
        if !parts.is_empty() {
            self.entries.push_back(Entry { batch, parts });
        }
    }

    /// The turn of the batch that has waited longest; the rest of it goes to the end.
    pub(super) fn next(&mut self) -> Option<Turn<B, S>> {
        let Entry { batch, mut parts } = self.entries.pop_front()?;
        let mut turn = Turn { batch: batch.clone(), parts: Vec::new() };
        let mut bytes = 0;
        while bytes < self.quantum
            && let Some(part) = parts.pop_front()
        {
            bytes += part.len - part.done;
            turn.parts.push(part);
        }
        self.push(batch, parts);
        Some(turn)
    }

    /// A part that its turn has not finished goes on in the next turn of its batch, which has one turn a round however
    /// many of its parts have begun.
    pub(super) fn resume(&mut self, batch: Arc<B>, part: Part<S>) {
        match self.entries.iter_mut().find(|entry| Arc::ptr_eq(&entry.batch, &batch)) {
            Some(entry) => entry.parts.push_front(part),
            None => self.push(batch, [part]),
        }
    }

    /// Takes out the batches of which `over` gives a reason.
    pub(super) fn take_over<W>(&mut self, mut over: impl FnMut(&B) -> Option<W>) -> Vec<(W, Vec<Part<S>>)> {
        let mut taken = Vec::new();
        for entry in std::mem::take(&mut self.entries) {
            match over(&entry.batch) {
                Some(why) => taken.push((why, entry.parts.into())),
                None => self.entries.push_back(entry),
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUANTUM: u64 = 100;

    fn rounds() -> Rounds<&'static str, u32> {
        Rounds::new(QUANTUM)
    }

    fn parts(lens: &[u64]) -> Vec<Part<u32>> {
        (0..).zip(lens).map(|(slice, len)| Part { slice, len: *len, done: 0 }).collect()
    }

    /// Works as one thread would; what is finished, in order.
    fn finished(rounds: &mut Rounds<&'static str, u32>) -> Vec<(&'static str, u32)> {
        let mut order = Vec::new();
        while let Some(turn) = rounds.next() {
            for mut part in turn.parts {
                part.done = part.len.min(part.done + QUANTUM);
                if part.done == part.len {
                    order.push((*turn.batch, part.slice));
                } else {
                    rounds.resume(turn.batch.clone(), part);
                }
            }
        }
        order
    }

    #[test]
    fn a_small_batch_waits_for_one_piece_of_each_large_one() {
        let mut rounds = rounds();
        rounds.push(Arc::new("large"), parts(&[1_000; 16]));
        rounds.push(Arc::new("larger"), parts(&[100_000; 16]));
        rounds.push(Arc::new("small"), parts(&[4]));
        let order = finished(&mut rounds);
        assert_eq!(order[0], ("small", 0));
        assert_eq!(order.len(), 33);
        assert!(order[1..17].iter().all(|(batch, _)| *batch == "large"), "{order:?}");
    }

    #[test]
    fn a_batch_of_many_slices_has_one_turn_a_round() {
        let mut rounds = rounds();
        rounds.push(Arc::new("many"), parts(&[10; 50]));
        rounds.push(Arc::new("few"), parts(&[10; 2]));
        let order = finished(&mut rounds);
        assert!(order[..10].iter().all(|(batch, _)| *batch == "many"), "{order:?}");
        assert_eq!(order[10..12], [("few", 0), ("few", 1)]);
        assert_eq!(order.len(), 52);
    }

    #[test]
    fn batches_that_are_over_are_taken_out_alone() {
        let mut rounds = rounds();
        rounds.push(Arc::new("over"), parts(&[500; 3]));
        rounds.push(Arc::new("live"), parts(&[1]));
        let taken = rounds.take_over(|batch| (*batch == "over").then_some("why"));
        assert_eq!(taken.iter().map(|(why, parts)| (*why, parts.len())).collect::<Vec<_>>(), [("why", 3)]);
        assert_eq!(finished(&mut rounds), [("live", 0)]);
    }
}
