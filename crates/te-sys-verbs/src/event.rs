//! What a device tells by itself.

use std::fmt;

use crate::ffi::*;

/// What happened, by the library's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventKind(pub u32);

#[expect(missing_docs, reason = "each is the event of that name")]
impl EventKind {
    pub const CQ_ERR: Self = Self(IBV_EVENT_CQ_ERR);
    pub const QP_FATAL: Self = Self(IBV_EVENT_QP_FATAL);
    pub const QP_REQ_ERR: Self = Self(IBV_EVENT_QP_REQ_ERR);
    pub const QP_ACCESS_ERR: Self = Self(IBV_EVENT_QP_ACCESS_ERR);
    pub const COMM_EST: Self = Self(IBV_EVENT_COMM_EST);
    pub const DEVICE_FATAL: Self = Self(IBV_EVENT_DEVICE_FATAL);
    pub const PORT_ACTIVE: Self = Self(IBV_EVENT_PORT_ACTIVE);
    pub const PORT_ERR: Self = Self(IBV_EVENT_PORT_ERR);
    pub const LID_CHANGE: Self = Self(IBV_EVENT_LID_CHANGE);
    pub const PKEY_CHANGE: Self = Self(IBV_EVENT_PKEY_CHANGE);
    pub const CLIENT_REREGISTER: Self = Self(IBV_EVENT_CLIENT_REREGISTER);
    pub const GID_CHANGE: Self = Self(IBV_EVENT_GID_CHANGE);

    const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            IBV_EVENT_CQ_ERR => "CQ_ERR",
            IBV_EVENT_QP_FATAL => "QP_FATAL",
            IBV_EVENT_QP_REQ_ERR => "QP_REQ_ERR",
            IBV_EVENT_QP_ACCESS_ERR => "QP_ACCESS_ERR",
            IBV_EVENT_COMM_EST => "COMM_EST",
            IBV_EVENT_SQ_DRAINED => "SQ_DRAINED",
            IBV_EVENT_PATH_MIG => "PATH_MIG",
            IBV_EVENT_PATH_MIG_ERR => "PATH_MIG_ERR",
            IBV_EVENT_DEVICE_FATAL => "DEVICE_FATAL",
            IBV_EVENT_PORT_ACTIVE => "PORT_ACTIVE",
            IBV_EVENT_PORT_ERR => "PORT_ERR",
            IBV_EVENT_LID_CHANGE => "LID_CHANGE",
            IBV_EVENT_PKEY_CHANGE => "PKEY_CHANGE",
            IBV_EVENT_SM_CHANGE => "SM_CHANGE",
            IBV_EVENT_SRQ_ERR => "SRQ_ERR",
            IBV_EVENT_SRQ_LIMIT_REACHED => "SRQ_LIMIT_REACHED",
            IBV_EVENT_QP_LAST_WQE_REACHED => "QP_LAST_WQE_REACHED",
            IBV_EVENT_CLIENT_REREGISTER => "CLIENT_REREGISTER",
            IBV_EVENT_GID_CHANGE => "GID_CHANGE",
            IBV_EVENT_WQ_FATAL => "WQ_FATAL",
            _ => return None,
        })
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "event {}", self.0),
        }
    }
}

impl fmt::Debug for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What an event is about. Cookies are those given when the thing was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Subject {
    /// The whole device.
    Device,
    /// A port.
    Port(u8),
    /// The completion queue with this cookie.
    CompletionQueue(usize),
    /// The queue pair with this cookie.
    QueuePair(usize),
    /// Something that is not made here.
    Other,
}

/// Something a device told by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct AsyncEvent {
    /// What happened.
    pub kind: EventKind,
    /// To what.
    pub about: Subject,
}

impl AsyncEvent {
    /// Reads what the library filled in.
    ///
    /// # Safety
    ///
    /// The event must be from the library and not acknowledged yet.
    pub(crate) unsafe fn from_raw(raw: &ibv_async_event) -> Self {
        let about = match raw.event_type {
            IBV_EVENT_CQ_ERR => {
                // SAFETY: this kind of event has a queue.
                let cq = unsafe { raw.element.cq };
                // SAFETY: it is not destroyed before the event is acknowledged.
                let cookie = unsafe { (*cq).cq_context };
                Subject::CompletionQueue(cookie.addr())
            }
            IBV_EVENT_QP_FATAL..=IBV_EVENT_PATH_MIG_ERR | IBV_EVENT_QP_LAST_WQE_REACHED => {
                // SAFETY: this kind of event has a queue pair.
                let qp = unsafe { raw.element.qp };
                // SAFETY: it is not destroyed before the event is acknowledged.
                let cookie = unsafe { (*qp).qp_context };
                Subject::QueuePair(cookie.addr())
            }
            IBV_EVENT_DEVICE_FATAL => Subject::Device,
            IBV_EVENT_PORT_ACTIVE..=IBV_EVENT_SM_CHANGE
            | IBV_EVENT_CLIENT_REREGISTER
            | IBV_EVENT_GID_CHANGE => {
                // SAFETY: this kind of event has a port.
                let port = unsafe { raw.element.port_num };
                Subject::Port(u8::try_from(port).unwrap_or(0))
            }
            _ => Subject::Other,
        };
        Self { kind: EventKind(raw.event_type), about }
    }
}
