//! Which queue pair of which rail takes the next slice.

/// A queue pair of a rail, by its position in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    /// Position in [`Plan::rails`](super::Plan::rails).
    pub rail: usize,
    /// Queue pair of the endpoint on it.
    pub queue_pair: usize,
}

/// Gives slices to lanes, always to the one with the least bytes under way: one request uses every queue pair of every
/// rail in equal shares (RDMA-11), and a lane that is slow or has other work gets less.
#[derive(Clone, Debug)]
pub struct Spread {
    queue_pairs: usize,
    /// Bytes under way, of each lane.
    loads: Vec<u64>,
    /// Where the search begins, so that equal lanes take turns.
    turn: usize,
}

impl Spread {
    /// Lanes for `rails` rails of `queue_pairs` queue pairs each, at least one of both. `first` turns with each request,
    /// so that small ones do not all begin with the same lane.
    #[must_use]
    pub fn new(rails: usize, queue_pairs: usize, first: usize) -> Self {
        let lanes = rails.max(1).saturating_mul(queue_pairs.max(1));
        Self { queue_pairs: queue_pairs.max(1), loads: vec![0; lanes], turn: first % lanes }
    }

    /// Notes bytes that are under way on a lane already.
    pub fn load(&mut self, lane: Lane, bytes: u64) {
        let at = lane.rail.saturating_mul(self.queue_pairs).saturating_add(lane.queue_pair);
        if let Some(load) = self.loads.get_mut(at) {
            *load = load.saturating_add(bytes);
        }
    }

    /// The lane for a slice of `bytes`, which count as under way from now on.
    pub fn next(&mut self, bytes: u64) -> Lane {
        let lanes = self.loads.len();
        let in_turn = (0..lanes).map(|step| (self.turn + step) % lanes);
        let at = in_turn.min_by_key(|&at| self.loads[at]).unwrap_or(0);
        self.turn = (at + 1) % lanes;
        self.loads[at] = self.loads[at].saturating_add(bytes);
        Lane { rail: at / self.queue_pairs, queue_pair: at % self.queue_pairs }
    }
}
