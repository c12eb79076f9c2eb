//! Reliable connections: made, moved through their states, and posted to.

use std::fmt;
use std::ptr::{self, NonNull};

use crate::completion::CompletionQueue;
use crate::context::{Context, User, check};
use crate::error::{Call, VerbsError};
use crate::ffi::*;
use crate::memory::{Access, ProtectionDomain};
use crate::port::{Gid, Mtu};
use crate::transition::{Goal, TransitionError};
use crate::work::{ReceiveList, Refusal, WorkList, position};

/// The state of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Just made, or begun anew.
    Reset,
    /// Has a port.
    Init,
    /// Knows its peer and receives.
    ReadyToReceive,
    /// Receives and sends.
    ReadyToSend,
    /// Sends no more.
    Draining,
    /// Sends no more since a send failed.
    SendError,
    /// Failed: everything posted is flushed.
    Error,
    /// A number that is not known.
    Unknown(u32),
}

impl State {
    pub(crate) const fn from_raw(raw: u32) -> Self {
        match raw {
            IBV_QPS_RESET => Self::Reset,
            IBV_QPS_INIT => Self::Init,
            IBV_QPS_RTR => Self::ReadyToReceive,
            IBV_QPS_RTS => Self::ReadyToSend,
            IBV_QPS_SQD => Self::Draining,
            IBV_QPS_SQE => Self::SendError,
            IBV_QPS_ERR => Self::Error,
            other => Self::Unknown(other),
        }
    }
}

/// The abbreviations that everybody uses.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::Draining => "SQD",
            Self::SendError => "SQE",
            Self::Error => "ERR",
            Self::Unknown(_) => "unknown",
        })
    }
}

/// How much a queue pair holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairSize {
    /// Requests under way.
    pub requests: u32,
    /// Receives posted.
    pub receives: u32,
    /// Ranges of a request or of a receive.
    pub ranges: u32,
    /// Bytes of a request that are copied into it when it is posted ([`WorkList::push_inline`]), at least.
    pub inline: u32,
}

/// From RESET to INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToInit {
    /// The port to use.
    pub port: u8,
    /// The place of the partition key in the port's table.
    pub pkey_index: u16,
    /// What peers may do.
    pub access: Access,
}

/// Where the peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The peer's address.
    pub gid: Gid,
    /// The peer's address in an InfiniBand subnet, else 0.
    pub lid: u16,
    /// The place of the own address in the port's table.
    pub gid_index: u8,
    /// The own port.
    pub port: u8,
    /// Routers that may lie between.
    pub hop_limit: u8,
    /// The traffic class: for RoCE v2, the type of service of its IP packets.
    pub traffic_class: u8,
    /// The service level.
    pub service_level: u8,
    /// Whether packets carry the addresses. Always so for RoCE.
    pub global: bool,
}

/// From INIT to RTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToReceive {
    /// Where the peer is.
    pub path: Path,
    /// Bytes of payload of a packet: at most what both ports use.
    pub mtu: Mtu,
    /// The number of the peer's queue pair.
    pub peer: u32,
    /// The number of the first packet that is received.
    pub first_packet: u32,
    /// READs of the peer that are answered at a time.
    pub reads: u8,
    /// The code of the pause that a peer is asked for when no receive is posted.
    pub min_rnr_timer: u8,
}

/// From RTR to RTS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToSend {
    /// How long an answer is waited for: 4.096 µs times two to the power of it; 0 is for ever.
    pub timeout: u8,
    /// How often a request without an answer is repeated, up to 7.
    pub retries: u8,
    /// How often a request is repeated for which no receive is posted; 7 is without end.
    pub rnr_retries: u8,
    /// The number of the first packet that is sent.
    pub first_packet: u32,
    /// READs under way at a time.
    pub reads: u8,
}

/// What a queue pair says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PairInfo {
    /// Its state.
    pub state: State,
    /// The number of the peer's queue pair; meaningful from RTR on.
    pub peer: u32,
    /// Its port; meaningful from INIT on.
    pub port: u8,
}

/// A reliable connection of one peer, or one about to be. It is destroyed when it is dropped, before its queues.
pub struct QueuePair {
    raw: NonNull<ibv_qp>,
    inline: u32,
    send: CompletionQueue,
    receive: CompletionQueue,
    _user: User,
    domain: ProtectionDomain,
}

// SAFETY: libibverbs may be called from any thread on any of its objects.
unsafe impl Send for QueuePair {}
// SAFETY: as above; its providers order concurrent posts themselves.
unsafe impl Sync for QueuePair {}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let loaded = self.domain.context().loaded();
        // SAFETY: nobody else has it.
        loaded.destroyed(unsafe { (loaded.symbols.destroy_qp)(self.raw.as_ptr()) });
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair").field("number", &self.number()).finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// A new queue pair for a reliable connection, in state RESET. Requests make completions in `send`, receives in
    /// `receive`, which may be the same queue. The cookie comes with events about it.
    ///
    /// # Errors
    ///
    /// The size is more than the device takes, or the device is out of them.
    pub fn queue_pair(
        &self,
        size: PairSize,
        send: &CompletionQueue,
        receive: &CompletionQueue,
        cookie: usize,
    ) -> Result<QueuePair, VerbsError> {
        let context = self.context();
        let on =
            || format!("{} with {} requests and {} receives", context.name(), size.requests, size.receives);
        if [send, receive].iter().any(|queue| queue.context().raw() != context.raw()) {
            return Err(VerbsError::new(Call::CreateQp, on(), libc::EINVAL));
        }
        let mut wanted = ibv_qp_init_attr {
            qp_context: ptr::without_provenance_mut(cookie),
            send_cq: send.raw(),
            recv_cq: receive.raw(),
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: size.requests,
                max_recv_wr: size.receives,
                max_send_sge: size.ranges,
                max_recv_sge: if size.receives == 0 { 0 } else { size.ranges },
                max_inline_data: size.inline,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the domain and the queues exist and are of one context; the structure is ours.
        let raw = unsafe { (context.symbols().create_qp)(self.raw(), &raw mut wanted) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last(Call::CreateQp, on()))?;
        let (user, domain) = (context.user(), self.clone());
        // The library says what it has made of it.
        let inline = wanted.cap.max_inline_data;
        Ok(QueuePair { raw, inline, send: send.clone(), receive: receive.clone(), _user: user, domain })
    }
}

impl QueuePair {
    /// Its number, by which its peer knows it.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: it exists; the number does not change.
        unsafe { self.raw.as_ref() }.qp_num
    }

    /// Bytes that a request can carry inline: as many as were asked for, or more.
    #[must_use]
    pub const fn inline(&self) -> u32 {
        self.inline
    }

    /// Where the completions of its requests arrive.
    #[must_use]
    pub const fn send_queue(&self) -> &CompletionQueue {
        &self.send
    }

    /// Where the completions of its receives arrive.
    #[must_use]
    pub const fn receive_queue(&self) -> &CompletionQueue {
        &self.receive
    }

    /// Gives it a port.
    ///
    /// # Errors
    ///
    /// The device refuses; the error has what there is to know about it.
    pub fn to_init(&self, to: &ToInit) -> Result<(), TransitionError> {
        let mut wanted = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: to.port,
            pkey_index: to.pkey_index,
            qp_access_flags: to.access.bits(),
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
        self.modify(&mut wanted, mask, Goal::Init(*to))
    }

    /// Tells it its peer, from whom it then receives.
    ///
    /// # Errors
    ///
    /// The device refuses; the error has what there is to know about it.
    pub fn to_receive(&self, to: &ToReceive) -> Result<(), TransitionError> {
        let path = &to.path;
        let mut wanted = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: to.mtu.code(),
            rq_psn: to.first_packet,
            dest_qp_num: to.peer,
            max_dest_rd_atomic: to.reads,
            min_rnr_timer: to.min_rnr_timer,
            ah_attr: ibv_ah_attr {
                grh: ibv_global_route {
                    dgid: ibv_gid { raw: path.gid.0 },
                    flow_label: 0,
                    sgid_index: path.gid_index,
                    hop_limit: path.hop_limit,
                    traffic_class: path.traffic_class,
                },
                dlid: path.lid,
                sl: path.service_level,
                is_global: path.global.into(),
                port_num: path.port,
                ..ibv_ah_attr::default()
            },
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut wanted, mask, Goal::Receive(*to))
    }

    /// Lets it send.
    ///
    /// # Errors
    ///
    /// The device refuses; the error has what there is to know about it.
    pub fn to_send(&self, to: &ToSend) -> Result<(), TransitionError> {
        let mut wanted = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: to.timeout,
            retry_cnt: to.retries,
            rnr_retry: to.rnr_retries,
            sq_psn: to.first_packet,
            max_rd_atomic: to.reads,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut wanted, mask, Goal::Send(*to))
    }

    /// Makes it fail: everything posted and not complete is flushed, which makes completions.
    ///
    /// # Errors
    ///
    /// The device refuses.
    pub fn to_error(&self) -> Result<(), TransitionError> {
        let mut wanted = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() };
        self.modify(&mut wanted, IBV_QP_STATE, Goal::Error)
    }

    /// Begins anew: everything posted is forgotten without completions.
    ///
    /// # Errors
    ///
    /// The device refuses.
    pub fn to_reset(&self) -> Result<(), TransitionError> {
        let mut wanted = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..ibv_qp_attr::default() };
        self.modify(&mut wanted, IBV_QP_STATE, Goal::Reset)
    }

    fn modify(&self, wanted: &mut ibv_qp_attr, mask: i32, goal: Goal) -> Result<(), TransitionError> {
        // SAFETY: it exists, the structure is ours.
        let rc = unsafe { (self.context().symbols().modify_qp)(self.raw.as_ptr(), wanted, mask) };
        check(Call::ModifyQp, "", rc).map_err(|error| TransitionError::found(self, goal, error.errno))
    }

    /// What the device says about it.
    ///
    /// # Errors
    ///
    /// The device does not answer.
    pub fn query(&self) -> Result<PairInfo, VerbsError> {
        let mut found = ibv_qp_attr::default();
        let mut made = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: ptr::null_mut(),
            recv_cq: ptr::null_mut(),
            srq: ptr::null_mut(),
            cap: ibv_qp_cap::default(),
            qp_type: 0,
            sq_sig_all: 0,
        };
        let mask = IBV_QP_STATE | IBV_QP_DEST_QPN | IBV_QP_PORT;
        let query = self.context().symbols().query_qp;
        // SAFETY: it exists, the structures are ours.
        let rc = unsafe { query(self.raw.as_ptr(), &raw mut found, mask, &raw mut made) };
        check(Call::QueryQp, || self.place(), rc)?;
        Ok(PairInfo { state: State::from_raw(found.qp_state), peer: found.dest_qp_num, port: found.port_num })
    }

    /// Posts requests, in order, with one doorbell. They may be under way when this returns; the list can be used again at
    /// once. The device checks their keys: what no registration covers is not touched.
    ///
    /// # Errors
    ///
    /// The queue is full, or the state is not the right one. Some may have been accepted: the refusal says how many.
    pub fn post(&self, list: &mut WorkList) -> Result<(), Refusal> {
        let requests = list.len();
        let first = list.link();
        if first.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: it exists; the list is linked and ends in null. Memory is reached through keys, and who registered it has
        // vouched for it; for that of inline requests whoever added them has.
        let rc = unsafe { (self.context().0.ops.post_send)(self.raw.as_ptr(), first, &raw mut bad) };
        check(Call::PostSend, "", rc).map_err(|error| Refusal {
            on: self.place(),
            accepted: position(first, bad, requests),
            requests,
            errno: error.errno,
        })
    }

    /// Posts receives, in order.
    ///
    /// # Errors
    ///
    /// The queue is full, or the state is not the right one. Some may have been accepted: the refusal says how many.
    pub fn post_receives(&self, list: &mut ReceiveList) -> Result<(), Refusal> {
        let requests = list.len();
        let first = list.link();
        if first.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: as for `post`.
        let rc = unsafe { (self.context().0.ops.post_recv)(self.raw.as_ptr(), first, &raw mut bad) };
        check(Call::PostRecv, "", rc).map_err(|error| Refusal {
            on: self.place(),
            accepted: position(first, bad, requests),
            requests,
            errno: error.errno,
        })
    }

    pub(crate) fn context(&self) -> &Context {
        self.domain.context()
    }

    /// The device and the number.
    pub(crate) fn place(&self) -> String {
        format!("{} queue pair {:#08x}", self.context().name(), self.number())
    }
}
