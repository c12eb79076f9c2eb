//! Counting what a batch moved, once, when it ends.

use std::time::Instant;

use te_transport::Op;

use super::state::BatchState;
use crate::metrics::OfOp;

impl BatchState {
    /// The requests are handed to their paths.
    pub(super) fn count_begun(&self) {
        self.for_each_share(|of, requests, _| of.begun(requests));
    }

    /// The requests are over.
    pub(super) fn count_ended(&self) {
        let time = Instant::now().saturating_duration_since(self.plan.started);
        let simple = !self.tally.has_failed() && !self.tally.is_broken();
        self.for_each_share(|of, requests, bytes| {
            of.over(requests);
            if simple {
                of.done(requests, bytes, time);
            }
        });
        if simple {
            return;
        }
        // One by one: some failed, or went over another path than their first.
        for (index, info) in self.plan.requests.iter().enumerate() {
            let report = self.request_report(index, info);
            let of = self.plan.core.mover().lanes().metrics().of(report.path.transport());
            match &report.failure {
                None => of.op(info.op).done(1, report.bytes, time),
                Some(failure) => of.op(info.op).failed(failure.kind(), report.bytes),
            }
        }
    }

    /// Calls `count` for each flight and direction, with the counters of its transport and how many requests and bytes go
    /// over it.
    fn for_each_share(&self, count: impl Fn(&OfOp, u64, u64)) {
        // In one pass: a batch can have as many flights as requests.
        let mut sums = vec![[(0, 0); 2]; self.plan.flights.len()];
        for info in &self.plan.requests {
            if let Some([reads, writes]) = sums.get_mut(info.flight) {
                let sum = if info.op == Op::Read { reads } else { writes };
                *sum = (sum.0 + 1, sum.1 + info.remote.len());
            }
        }
        for (on, sums) in self.plan.flights.iter().zip(sums) {
            for (op, (requests, bytes)) in [Op::Read, Op::Write].into_iter().zip(sums) {
                if requests > 0 {
                    count(on.lane().metrics().op(op), requests, bytes);
                }
            }
        }
    }
}
