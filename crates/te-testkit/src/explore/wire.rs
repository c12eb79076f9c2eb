//! A network for models: a bag of messages that arrive in any order, and a budget of faults.

/// Messages under way between the parts of a model. Any of them may be the next to arrive.
///
/// A message that would exceed the limit is lost at once, as a network may do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wire<M> {
    /// Sorted, so that equal bags are equal states.
    flying: Vec<M>,
    limit: usize,
    faults: u8,
}

/// One thing a network can do to a message, which is named by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// It arrives.
    Deliver(usize),
    /// It is lost. Costs a fault.
    Lose(usize),
    /// It arrives, and will arrive again. Costs a fault.
    Duplicate(usize),
}

impl<M: Clone + Ord> Wire<M> {
    /// An empty network for at most `limit` messages under way and `faults` faults.
    #[must_use]
    pub fn new(limit: usize, faults: u8) -> Self {
        Self { flying: Vec::new(), limit, faults }
    }

    /// Sends a message.
    pub fn send(&mut self, message: M) {
        if self.flying.len() < self.limit {
            let place = self.flying.partition_point(|other| *other < message);
            self.flying.insert(place, message);
        }
    }

    /// What is under way, in the order of [`Move`]'s places.
    #[must_use]
    pub fn flying(&self) -> &[M] {
        &self.flying
    }

    /// Everything the network can do now. Equal messages are one choice.
    #[must_use]
    pub fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        for place in 0..self.flying.len() {
            if place > 0 && self.flying[place] == self.flying[place - 1] {
                continue;
            }
            moves.push(Move::Deliver(place));
            if self.faults > 0 {
                moves.extend([Move::Lose(place), Move::Duplicate(place)]);
            }
        }
        moves
    }

    /// Does it; returns the message that arrives, if one does.
    pub fn make(&mut self, step: Move) -> Option<M> {
        match step {
            Move::Deliver(place) => Some(self.flying.remove(place)),
            Move::Lose(place) => {
                self.spend();
                self.flying.remove(place);
                None
            }
            Move::Duplicate(place) => {
                self.spend();
                self.flying.get(place).cloned()
            }
        }
    }

    /// Whether a fault is left, for faults that are the model's own: a restart, a cut connection.
    #[must_use]
    pub fn may_fail(&self) -> bool {
        self.faults > 0
    }

    /// Spends a fault.
    pub fn spend(&mut self) {
        self.faults = self.faults.saturating_sub(1);
    }

    /// Loses what matches, without cost: a connection that is cut takes its messages along.
    pub fn forget(&mut self, gone: impl Fn(&M) -> bool) {
        self.flying.retain(|message| !gone(message));
    }
}
