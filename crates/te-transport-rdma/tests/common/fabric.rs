//! What the devices do, and requests over them.

use std::collections::{BTreeMap, VecDeque};

use te_segment::{AddressRange, Generation, Location, Topology};
use te_transport::Op;
use te_transport_rdma::endpoint::Event;
use te_transport_rdma::error::WorkError;
use te_transport_rdma::route::{Connectivity, Health, Plan, Query, Reach, Side, Spread, plan};
use te_transport_rdma::slices::{Cut, Draft, SliceSize, Status, WorkRequest};

use super::{BASE, Key, Node, QUEUE_PAIRS, World};

impl World {
    /// The device does the next work of a queue pair.
    pub(super) fn execute(&mut self, node: usize, at: &(Key, u64), number: usize) {
        let pairs = self.nodes[node].pairs.get_mut(at).unwrap();
        let Some(request) = pairs.device[number].pop_front() else { return };
        let joined = pairs.agreed.as_ref().unwrap().pairs[number];
        let there = &self.nodes[1 - node];
        let answers = there.pairs.values().any(|theirs| {
            let pairs = theirs.agreed.iter().flat_map(|agreed| &agreed.pairs);
            pairs.into_iter().any(|pair| {
                (pair.ours, pair.theirs) == (joined.theirs, joined.ours)
                    && (pair.send_psn, pair.receive_psn) == (joined.receive_psn, joined.send_psn)
            })
        });
        let status = match answers {
            false => Status::Failed(WorkError::NoAnswer),
            true if request.remote_key != there.key(&at.0.1) => Status::Failed(WorkError::RemoteAccess),
            true => {
                assert_eq!(request.local_key, self.nodes[node].key(&at.0.0));
                self.copy(node, &request);
                *self.carried.entry((at.0.clone(), number)).or_default() += request.piece.local.len();
                Status::Done
            }
        };
        if status != Status::Done {
            // The queue pair is in the error state: the rest of it is flushed by the device.
            let key = at.0.clone();
            self.complete(node, at, number, &request, status);
            self.tell(node, &key, Event::Broken(Generation::new(at.1)));
        } else if request.signalled {
            self.complete(node, at, number, &request, status);
        }
    }

    fn copy(&mut self, node: usize, request: &WorkRequest) {
        let range = |range: AddressRange| {
            let start = usize::try_from(range.start() - BASE).unwrap();
            start..start + usize::try_from(range.len()).unwrap()
        };
        let (local, remote) = (range(request.piece.local), range(request.piece.remote));
        let [a, b] = &mut self.nodes;
        let (here, there) = if node == 0 { (a, b) } else { (b, a) };
        match request.op {
            Op::Write => there.memory[remote].copy_from_slice(&here.memory[local]),
            Op::Read => here.memory[local].copy_from_slice(&there.memory[remote]),
        }
    }

    pub(super) fn complete(
        &mut self,
        node: usize,
        at: &(Key, u64),
        number: usize,
        request: &WorkRequest,
        status: Status,
    ) {
        let mut outcomes = Vec::new();
        let pairs = self.nodes[node].pairs.get_mut(at).unwrap();
        let count = pairs.queues[number].complete(request.id, status, &mut outcomes);
        outcomes.into_iter().for_each(|(piece, status)| self.ended[piece].push(status));
        let count = u32::try_from(count).unwrap();
        self.tell(node, &at.0, Event::Completed(Generation::new(at.1), count));
    }

    /// The rails from `node` to the other for memory anywhere.
    pub(crate) fn plan(&self, node: usize) -> Plan {
        let keys = |node: &Node| -> BTreeMap<_, _> {
            node.nics.iter().map(|nic| (nic.clone(), node.key(nic))).collect()
        };
        let (here, there) = (keys(&self.nodes[node]), keys(&self.nodes[1 - node]));
        let topology = Topology::new();
        let side = |keys| Side { location: &Location::Any, topology: &topology, keys };
        let query = Query {
            local: side(&here),
            remote: side(&there),
            peer: "peer",
            connectivity: &Connectivity::All,
            tried: &[],
        };
        plan(&query, &Health::default(), &Reach::default(), self.now).unwrap()
    }

    /// Asks for an endpoint on each rail of the plan.
    pub(crate) fn want(&mut self, node: usize, plan: &Plan) {
        for candidate in &plan.rails {
            let key = (candidate.rail.local.clone(), candidate.rail.remote.clone());
            self.tell(node, &key, Event::Want);
        }
    }

    /// Posts as much of a request as finds room, and lets the rest follow while things happen, `patience` of them.
    pub(crate) fn transfer(
        &mut self,
        node: usize,
        op: Op,
        whole: AddressRange,
        plan: &Plan,
        patience: usize,
    ) {
        let lanes = plan.rails.len() * QUEUE_PAIRS as usize;
        let size =
            SliceSize { min: 4096.try_into().unwrap(), ..SliceSize::default() }.of(whole.len(), lanes as u64);
        let parts = [AddressRange::new(BASE, 1 << 20).unwrap()];
        let mut spread = Spread::new(plan.rails.len(), QUEUE_PAIRS as usize, self.roll(lanes));
        let mut waiting: BTreeMap<_, VecDeque<Draft<usize>>> = BTreeMap::new();
        self.ended.clear();
        for (owner, piece) in Cut::new(whole, &parts, whole, &parts, size).unwrap().enumerate() {
            let lane = spread.next(piece.local.len());
            let candidate = &plan.rails[lane.rail];
            let (local_key, remote_key) = (candidate.local_key, candidate.remote_key);
            waiting.entry(lane).or_default().push_back(Draft { op, piece, local_key, remote_key, owner });
            self.ended.push(Vec::new());
        }
        for _ in 0..patience {
            for (lane, drafts) in &mut waiting {
                let rail = &plan.rails[lane.rail].rail;
                let key = (rail.local.clone(), rail.remote.clone());
                let us = &mut self.nodes[node];
                let Some(line) = us.lines.get_mut(&key) else { continue };
                let Some(of) = line.current().filter(|endpoint| endpoint.is_ready()) else { continue };
                let pairs = us.pairs.get_mut(&(key, of.generation().value())).unwrap();
                let mut list = Vec::new();
                let count = pairs.queues[lane.queue_pair].post(drafts, usize::MAX, &mut list);
                line.post(u32::try_from(count).unwrap()).unwrap();
                pairs.device[lane.queue_pair].extend(list);
            }
            if !self.step() {
                break;
            }
        }
        // What never began is over, too.
        for draft in waiting.into_values().flatten() {
            self.ended[draft.owner].push(Status::Forfeited);
        }
    }

    /// Lets things happen until nothing more does.
    pub(crate) fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                return;
            }
        }
        panic!("it does not come to rest");
    }
}
