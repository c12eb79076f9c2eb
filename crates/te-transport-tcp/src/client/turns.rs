//! Whose turn it is at the connections of a peer: a batch that has none is served before one that has one already.
//!
//! A train keeps its connection as long as nobody waits for one. When a batch does, the next train that has had a turn takes
//! no more of its own batch and gives its connection up. Pieces are bounded, so a small request waits for
//! one turn of one connection at most, and two large batches share the connections without taking turns.

use std::time::Instant;

use super::peer::State;
use super::unit::{Job, Train};

/// What a train takes of its batch at least, before its connection goes to a batch that waits for one: changing costs a
/// pause of one round trip, which this much makes small.
pub(super) const TURN: u64 = 4 << 20;

/// What a request counts for in a turn, besides its bytes: tiny ones take time too.
pub(super) const REQUEST: u64 = 2 << 10;

impl State {
    /// A train of the batch that has waited longest without a connection; if all have one, of that with the fewest. Beside
    /// it the batch, if that was the rest of it.
    pub(super) fn next_train(&mut self) -> Option<(Train, Option<Job>)> {
        let waits = self.jobs.iter().position(|job| job.leases == 0);
        let fewest = || (0..self.jobs.len()).min_by_key(|at| self.jobs[*at].leases);
        let at = waits.or_else(fewest)?;
        Some(self.train_at(at))
    }

    /// A train of this batch, unless its connection is due to another.
    pub(super) fn next_train_of(
        &mut self,
        seq: u64,
        limit: usize,
        now: Instant,
    ) -> Option<(Train, Option<Job>)> {
        let at = self.jobs.iter().position(|job| job.seq == seq)?;
        if self.is_due_to_others(seq, limit, now) {
            return None;
        }
        Some(self.train_at(at))
    }

    fn train_at(&mut self, at: usize) -> (Train, Option<Job>) {
        let job = &mut self.jobs[at];
        let train = job.train();
        job.leases += 1;
        let finished = if job.is_empty() { self.jobs.remove(at) } else { None };
        (train, finished)
    }

    /// Moves more of its batch to a train, unless it has had its turn and its connection is due to another batch. The batch
    /// comes back if that was the rest of it.
    pub(super) fn refill(&mut self, train: &mut Train, limit: usize, now: Instant) -> Option<Job> {
        let at = train.job.and_then(|seq| self.jobs.iter().position(|job| job.seq == seq))?;
        if train.taken >= TURN && self.is_due_to_others(self.jobs[at].seq, limit, now) {
            return None;
        }
        self.jobs[at].refill(train);
        if self.jobs[at].is_empty() { self.jobs.remove(at) } else { None }
    }

    /// A train of this batch has given its connection up; what is left of the batch goes behind those that wait.
    pub(super) fn leave(&mut self, seq: u64) {
        let Some(at) = self.jobs.iter().position(|job| job.seq == seq) else { return };
        if let Some(mut job) = self.jobs.remove(at) {
            job.leases = job.leases.saturating_sub(1);
            self.jobs.push_back(job);
        }
    }

    /// Whether another batch has no connection, and can get none but by this batch's giving one up.
    fn is_due_to_others(&self, seq: u64, limit: usize, now: Instant) -> bool {
        !self.has_slot(limit, now) && self.jobs.iter().any(|job| job.leases == 0 && job.seq != seq)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};
    use std::sync::Arc;
    use std::time::Duration;

    use te_memory::{Memory, Region, RegionTable};
    use te_segment::{Access, Location};
    use te_transport::{AttemptId, CancelScope, CompletionSink, CompletionToken, Op, Outcome, Slice};

    use super::super::unit::Unit;
    use super::*;

    struct Ignore;

    impl CompletionSink for Ignore {
        fn complete(&self, _index: u32, _outcome: Outcome) {}
    }

    const MIB: u64 = 1 << 20;
    const CONNECTIONS: usize = 4;

    /// Connections that are all in use, and how much was sent of each batch. Nothing is sent.
    struct Bench {
        region: Region,
        state: State,
        trains: Vec<Train>,
        sent: BTreeMap<u64, u64>,
        order: Vec<u64>,
    }

    impl Bench {
        fn new() -> Self {
            let memory = Memory::allocate(64 << 20).unwrap();
            let regions = RegionTable::default();
            let region = regions.reserve(memory, Access::LOCAL, Location::Any).unwrap().commit();
            let state = State { open: CONNECTIONS, ..State::default() };
            Self { region, state, trains: Vec::new(), sent: BTreeMap::new(), order: Vec::new() }
        }

        /// Queues so many requests of `len` bytes, cut into pieces of `piece`.
        fn submit(&mut self, requests: u64, len: u64, piece: u64) -> u64 {
            self.state.next_seq += 1;
            let seq = self.state.next_seq;
            let mut writes = VecDeque::new();
            for _ in 0..requests {
                let slice = Slice {
                    op: Op::Write,
                    local: self.region.hold(0, len).unwrap(),
                    remote: self.region.range().slice(0, len).unwrap(),
                    generation: None,
                    attempt: AttemptId { request: 1, attempt: 1 },
                    token: CompletionToken::new(Arc::new(Ignore), 0),
                };
                writes.extend(Unit::stripes(slice, len.div_ceil(piece)));
            }
            let deadline = Instant::now() + Duration::from_secs(600);
            self.state.jobs.push_back(Job {
                seq,
                reads: VecDeque::new(),
                writes,
                deadline,
                scope: CancelScope::new(),
                guard: None,
                leases: 0,
            });
            seq
        }

        /// Gives free connections to whoever is due.
        fn staff(&mut self) {
            while self.trains.len() < CONNECTIONS
                && let Some((train, _)) = self.state.next_train()
            {
                self.order.extend(train.job);
                self.trains.push(train);
            }
        }

        /// One connection after the other sends what its train has, and goes on with its batch or with another.
        fn round(&mut self) {
            self.staff();
            for _ in 0..self.trains.len() {
                let mut train = self.trains.remove(0);
                let seq = train.job.unwrap();
                let bytes: u64 = train.units.drain(..).map(|unit| unit.len()).sum();
                *self.sent.entry(seq).or_default() += bytes;
                let finished = self.state.refill(&mut train, CONNECTIONS, Instant::now());
                drop(finished);
                if train.units.is_empty() {
                    self.state.leave(seq);
                } else {
                    self.trains.push(train);
                }
                self.staff();
            }
        }

        fn sent(&self, seq: u64) -> u64 {
            self.sent.get(&seq).copied().unwrap_or_default()
        }
    }

    #[test]
    fn a_small_request_waits_for_one_turn_of_one_connection() {
        let mut bench = Bench::new();
        let large = bench.submit(16, 64 * MIB, 2 * MIB);
        bench.round();
        bench.round();
        let before = bench.sent(large);
        let small = bench.submit(1, 4096, 4096);
        while bench.sent(small) == 0 {
            bench.round();
        }
        // In the round after its arrival, whatever the large batch has left: each connection sends one piece meanwhile.
        assert!(bench.sent(large) - before <= 2 * CONNECTIONS as u64 * 2 * MIB, "{:?}", bench.sent);
        assert_eq!(bench.order.iter().filter(|seq| **seq == small).count(), 1);
        while bench.sent(large) < 16 * 64 * MIB {
            bench.round();
        }
        bench.round();
        assert!(bench.state.jobs.is_empty());
    }

    #[test]
    fn batches_take_turns_where_there_are_fewer_connections() {
        let mut bench = Bench::new();
        let batches: Vec<_> = (0..7).map(|_| bench.submit(4, 64 * MIB, 2 * MIB)).collect();
        for _ in 0..70 {
            bench.round();
            let sent: Vec<_> = batches.iter().map(|seq| bench.sent(*seq)).collect();
            let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
            assert!(most - least <= 3 * TURN, "{sent:?}");
        }
    }

    #[test]
    fn batches_that_have_a_connection_each_do_not_take_turns() {
        let mut bench = Bench::new();
        bench.submit(16, 64 * MIB, 2 * MIB);
        bench.round();
        bench.submit(16, 64 * MIB, 2 * MIB);
        bench.round();
        bench.round();
        let trains = bench.order.len();
        assert_eq!(trains, CONNECTIONS + 1);
        for _ in 0..20 {
            bench.round();
        }
        assert_eq!(bench.order.len(), trains);
    }

    #[test]
    fn many_small_requests_are_not_interrupted_before_their_turn_is_over() {
        let mut bench = Bench::new();
        let batches: Vec<_> = (0..8).map(|_| bench.submit(600, 4096, 4096)).collect();
        while !bench.state.jobs.is_empty() || !bench.trains.is_empty() {
            bench.round();
        }
        // Each went in one train, in the order of arrival.
        assert_eq!(bench.order, batches);
        // Tiny ones do not keep their connection for as many as their bytes would allow.
        let tiny: Vec<_> = (0..5).map(|_| bench.submit(5000, 64, 64)).collect();
        bench.order.clear();
        while !bench.state.jobs.is_empty() || !bench.trains.is_empty() {
            bench.round();
        }
        assert!(tiny.iter().all(|seq| bench.sent(*seq) == 5000 * 64));
        assert!(bench.order.iter().position(|seq| *seq == tiny[4]).unwrap() <= CONNECTIONS);
        assert!(bench.order.len() > tiny.len());
    }
}
