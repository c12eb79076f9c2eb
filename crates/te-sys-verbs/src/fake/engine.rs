//! Carrying out requests, as a device does.

use std::collections::VecDeque;

use super::objects::tell;
use super::state::{Late, Ranges, Receive, Request, State};
use crate::ffi::*;

/// What becomes of a request.
enum Outcome {
    Done,
    /// The peer has posted no receive, and is waited for.
    Later,
    Failed(u32),
}

/// What becomes of looking for a peer's memory, or for one's own.
type Found<T> = Result<T, u32>;

impl State {
    /// Carries out what waits anywhere.
    pub(super) fn run_all(&mut self) {
        let pairs: Vec<_> = self.pairs.keys().copied().collect();
        pairs.into_iter().for_each(|pair| self.run(pair));
    }

    /// Carries out what waits in a queue pair.
    pub(super) fn run(&mut self, number: u32) {
        loop {
            let Some(nic) = self.pairs.get(&number).and_then(|pair| self.nics.get(pair.nic)) else { return };
            let held = self.held || nic.held;
            let Some(pair) = self.pairs.get_mut(&number) else { return };
            let failed = pair.attributes.qp_state == IBV_QPS_ERR;
            if held && !failed {
                return;
            }
            let Some(request) = pair.waiting.pop_front() else { return };
            if failed {
                self.linger(number, &request);
            }
            let outcome =
                if failed { Outcome::Failed(IBV_WC_WR_FLUSH_ERR) } else { self.attempt(number, &request) };
            match outcome {
                Outcome::Done if request.flags & IBV_SEND_SIGNALED == 0 => {}
                Outcome::Done => self.complete(number, &request, IBV_WC_SUCCESS),
                Outcome::Later => {
                    if let Some(pair) = self.pairs.get_mut(&number) {
                        pair.waiting.push_front(request);
                    }
                    return;
                }
                Outcome::Failed(status) => {
                    self.complete(number, &request, status);
                    self.fail_pair(number);
                }
            }
        }
    }

    /// Keeps a WRITE in the network that is given up here, if it may have been sent already.
    pub(super) fn linger(&mut self, number: u32, request: &Request) {
        let Some(pair) = self.pairs.get(&number) else { return };
        let (nic, domain, to) = (pair.nic, pair.domain, pair.attributes.dest_qp_num);
        let sent = self.nics.get(nic).is_some_and(|nic| nic.lingers && (nic.held || self.held));
        if !sent || request.opcode != IBV_WR_RDMA_WRITE {
            return;
        }
        let Ok(local) = self.ranges(&request.local, nic, domain, 0) else { return };
        let mut bytes = vec![0; local.iter().map(|(_, len)| len).sum()];
        let mut into = bytes.as_mut_ptr().expose_provenance();
        for (from, len) in local {
            copy(from, into, len);
            into += len;
        }
        self.late.push(Late { from: number, to, remote: request.remote, rkey: request.rkey, bytes });
    }

    /// What is in the network arrives, where there still is a queue pair for it.
    pub(super) fn arrive_late(&mut self) {
        for late in std::mem::take(&mut self.late) {
            let ready = |state| matches!(state, IBV_QPS_RTR | IBV_QPS_RTS);
            let meant = self
                .pairs
                .get(&late.to)
                .filter(|peer| ready(peer.attributes.qp_state) && peer.attributes.dest_qp_num == late.from);
            let Some(peer) = meant else { continue };
            let at = (late.remote, late.bytes.len() as u64);
            let place = (peer.nic, peer.domain);
            if let Some(remote) = self.region(late.rkey, true, at, place, IBV_ACCESS_REMOTE_WRITE) {
                copy(late.bytes.as_ptr().expose_provenance(), remote, late.bytes.len());
            }
        }
    }

    /// Puts a queue pair into ERR and flushes what it has.
    pub(super) fn fail_pair(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        pair.attributes.qp_state = IBV_QPS_ERR;
        let receives: Vec<_> = std::mem::take(&mut pair.receives).into();
        let queue = pair.receive;
        for receive in receives {
            let flushed = ibv_wc { status: IBV_WC_WR_FLUSH_ERR, ..received(&receive, number, 0) };
            self.arrive(queue, flushed, 0, true);
        }
        self.run(number);
    }

    fn attempt(&mut self, number: u32, request: &Request) -> Outcome {
        match self.attempt_or(number, request) {
            Ok(outcome) => outcome,
            Err(status) => Outcome::Failed(status),
        }
    }

    fn attempt_or(&mut self, number: u32, request: &Request) -> Found<Outcome> {
        let pair = self.pairs.get(&number).ok_or(IBV_WC_FATAL_ERR)?;
        let (nic, domain, rnr_retry) = (pair.nic, pair.domain, pair.attributes.rnr_retry);
        let (wanted, to) = (pair.attributes.ah_attr, pair.attributes.dest_qp_num);
        let active = self.nics.get(nic).is_some_and(|nic| nic.active);
        let peer = self.pairs.get(&to).filter(|peer| {
            let reached = self.nics.get(peer.nic).is_some_and(|nic| {
                let by_gid = nic.config.gids.iter().any(|gid| gid.0 == wanted.grh.dgid.raw);
                nic.active && if wanted.is_global != 0 { by_gid } else { nic.config.lid == wanted.dlid }
            });
            let ready = matches!(peer.attributes.qp_state, IBV_QPS_RTR | IBV_QPS_RTS);
            reached && ready && peer.attributes.dest_qp_num == number
        });
        let (true, Some(peer)) = (active, peer) else { return Err(IBV_WC_RETRY_EXC_ERR) };
        let (peer_nic, peer_domain, permitted) = (peer.nic, peer.domain, peer.attributes.qp_access_flags);
        if let Some(status) = self.outcome(nic, peer_nic) {
            return Err(status);
        }
        let reads = request.opcode == IBV_WR_RDMA_READ;
        let need = if reads { IBV_ACCESS_LOCAL_WRITE } else { 0 };
        let local = self.ranges(&request.local, nic, domain, need)?;
        let len: u64 = local.iter().map(|(_, len)| *len as u64).sum();
        if request.opcode == IBV_WR_SEND {
            return self.send(to, request, &local, rnr_retry);
        }
        let access = if reads { IBV_ACCESS_REMOTE_READ } else { IBV_ACCESS_REMOTE_WRITE };
        let remote = self.region(request.rkey, true, (request.remote, len), (peer_nic, peer_domain), access);
        let remote = remote.filter(|_| permitted & access != 0 || len == 0);
        let Some(mut remote) = remote else {
            // The peer's device answers with a refusal and gives the connection up.
            self.refuse(to);
            return Err(IBV_WC_REM_ACCESS_ERR);
        };
        if request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM && self.no_receive(to) {
            return if rnr_retry == 7 { Ok(Outcome::Later) } else { Err(IBV_WC_RNR_RETRY_EXC_ERR) };
        }
        for (address, len) in local {
            if reads {
                copy(remote, address, len);
            } else {
                copy(address, remote, len);
            }
            remote = remote.wrapping_add(len);
        }
        if let Some(nic) = self.nics.get_mut(nic) {
            nic.carried = (nic.carried.0 + 1, nic.carried.1 + len);
        }
        if request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM {
            self.deliver(to, request, u32::try_from(len).unwrap_or(u32::MAX), IBV_WC_OP_RECV_RDMA_WITH_IMM);
        }
        Ok(Outcome::Done)
    }

    fn send(
        &mut self,
        to: u32,
        request: &Request,
        local: &Ranges<(usize, usize)>,
        rnr_retry: u8,
    ) -> Found<Outcome> {
        let peer = self.pairs.get(&to).ok_or(IBV_WC_RETRY_EXC_ERR)?;
        let (nic, domain) = (peer.nic, peer.domain);
        let Some(receive) = peer.receives.front() else {
            return if rnr_retry == 7 { Ok(Outcome::Later) } else { Err(IBV_WC_RNR_RETRY_EXC_ERR) };
        };
        let room = self.ranges(&receive.local, nic, domain, IBV_ACCESS_LOCAL_WRITE);
        let len: usize = local.iter().map(|(_, len)| len).sum();
        let room = room.ok().filter(|room| room.iter().map(|(_, len)| len).sum::<usize>() >= len);
        let Some(room) = room else {
            self.refuse(to);
            return Err(IBV_WC_REM_OP_ERR);
        };
        let mut room: VecDeque<_> = room.into_iter().collect();
        for &(mut from, mut len) in local.iter() {
            while len > 0 {
                let Some((into, space)) = room.pop_front() else { break };
                let part = len.min(space);
                copy(from, into, part);
                (from, len) = (from + part, len - part);
                if part < space {
                    room.push_front((into + part, space - part));
                }
            }
        }
        self.deliver(to, request, u32::try_from(len).unwrap_or(u32::MAX), IBV_WC_OP_RECV);
        Ok(Outcome::Done)
    }

    fn no_receive(&self, pair: u32) -> bool {
        self.pairs.get(&pair).is_none_or(|pair| pair.receives.is_empty())
    }

    /// Completes a receive of the peer.
    fn deliver(&mut self, to: u32, request: &Request, bytes: u32, opcode: u32) {
        let Some(peer) = self.pairs.get_mut(&to) else { return };
        let Some(receive) = peer.receives.pop_front() else { return };
        let queue = peer.receive;
        let mut entry = ibv_wc { opcode, ..received(&receive, to, bytes) };
        if opcode == IBV_WC_OP_RECV_RDMA_WITH_IMM {
            (entry.imm_data, entry.wc_flags) = (request.immediate, IBV_WC_WITH_IMM);
        }
        self.arrive(queue, entry, 0, request.flags & IBV_SEND_SOLICITED != 0);
    }

    /// A queue pair that refused a request of its peer fails and says so.
    fn refuse(&mut self, number: u32) {
        let Some(pair) = self.pairs.get(&number) else { return };
        let (context, raw) = (pair.context, pair.raw);
        self.raise_object(context, IBV_EVENT_QP_ACCESS_ERR, raw);
        self.fail_pair(number);
    }

    /// The status that requests between these NICs are to end with.
    fn outcome(&mut self, from: usize, to: usize) -> Option<u32> {
        let names = (&self.nics.get(from)?.config.name, &self.nics.get(to)?.config.name);
        let mut meant =
            self.outcomes.iter_mut().filter(|(from, to, _, times)| (from, to) == names && *times > 0);
        let (_, _, status, times) = meant.next()?;
        *times = times.saturating_sub(1);
        Some(*status)
    }

    /// The addresses and lengths of local ranges.
    fn ranges(
        &self,
        ranges: &Ranges<ibv_sge>,
        nic: usize,
        domain: u32,
        access: u32,
    ) -> Found<Ranges<(usize, usize)>> {
        let range = |range: &ibv_sge| {
            let bytes = (range.addr, range.length.into());
            let address = self.region(range.lkey, false, bytes, (nic, domain), access)?;
            Some((address, range.length as usize))
        };
        ranges.iter().map(range).collect::<Option<_>>().ok_or(IBV_WC_LOC_PROT_ERR)
    }

    /// The address in this process of a range that a key covers.
    fn region(
        &self,
        key: u32,
        remote: bool,
        (start, len): (u64, u64),
        (nic, domain): (usize, u32),
        access: u32,
    ) -> Option<usize> {
        if len == 0 {
            return Some(0);
        }
        let region = self.regions.get(&(key & !1)).filter(|_| (key & 1 == 1) == remote)?;
        let inside = start >= region.start
            && start.checked_add(len).is_some_and(|end| end <= region.start.saturating_add(region.len));
        let permitted = region.access & access == access;
        let ours = region.nic == nic && region.domain == domain;
        (inside && permitted && ours).then(|| start.wrapping_add(region.shift) as usize)
    }

    fn complete(&mut self, number: u32, request: &Request, status: u32) {
        let Some(pair) = self.pairs.get(&number) else { return };
        let opcode = match request.opcode {
            IBV_WR_RDMA_READ => IBV_WC_OP_RDMA_READ,
            IBV_WR_SEND => IBV_WC_OP_SEND,
            _ => IBV_WC_OP_RDMA_WRITE,
        };
        let byte_len = request.local.iter().map(|range| range.length).fold(0, u32::saturating_add);
        let vendor_err = if status == IBV_WC_SUCCESS { 0 } else { 0x100 | status };
        let entry = ibv_wc {
            wr_id: request.id,
            status,
            opcode,
            vendor_err,
            byte_len,
            qp_num: number,
            ..ibv_wc::default()
        };
        let queue = pair.send;
        self.arrive(queue, entry, request.number, false);
    }

    /// A completion arrives in a queue, which may overrun.
    fn arrive(&mut self, number: u32, entry: ibv_wc, request: u64, solicited: bool) {
        let Some(queue) = self.queues.get_mut(&number) else { return };
        if queue.overrun {
            return;
        }
        if queue.entries.len() >= queue.room {
            queue.overrun = true;
            let (context, raw) = (queue.context, queue.raw);
            self.raise_object(context, IBV_EVENT_CQ_ERR, raw);
            let lost = self.pairs.iter().filter(|(_, pair)| pair.send == number || pair.receive == number);
            let lost: Vec<_> = lost.map(|(number, _)| *number).collect();
            for number in lost {
                if let Some(pair) = self.pairs.get_mut(&number) {
                    pair.attributes.qp_state = IBV_QPS_ERR;
                }
            }
            return;
        }
        queue.entries.push_back((entry, request));
        let wanted = queue
            .armed
            .is_some_and(|only_solicited| !only_solicited || solicited || entry.status != IBV_WC_SUCCESS);
        if !wanted {
            return;
        }
        queue.armed = None;
        let (raw, channel) = (queue.raw, queue.channel);
        if let Some(channel) = channel.and_then(|channel| self.channels.get(&channel)) {
            tell(&channel.events, [0, raw as u64]);
        }
    }
}

fn received(receive: &Receive, number: u32, byte_len: u32) -> ibv_wc {
    ibv_wc { wr_id: receive.id, opcode: IBV_WC_OP_RECV, byte_len, qp_num: number, ..ibv_wc::default() }
}

fn copy(from: usize, into: usize, len: usize) {
    if len == 0 {
        return;
    }
    let (from, into) =
        (std::ptr::with_exposed_provenance::<u8>(from), std::ptr::with_exposed_provenance_mut::<u8>(into));
    // SAFETY: both ranges are in registrations that exist, since the lock is held under which they end; who registered them
    // vouched that they stay mapped and may be read and written at any moment, as a device does.
    unsafe { std::ptr::copy(from, into, len) };
}
