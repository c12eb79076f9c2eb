//! Requests and their answers, without the ids that tie them on the wire.

use te_segment::{DescriptorVersion, Generation};

use super::frame::{BatchOutcome, ControlFrame, FenceOutcome, FencedAttempt, RequestId};

/// What one side can ask of the other. All of them may be repeated: a repetition has no further effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Request {
    /// Keep me informed; see [`ControlFrame::Interest`].
    Interest {
        /// The version the sender has.
        known: DescriptorVersion,
    },
    /// Forget what is older; see [`ControlFrame::Invalidate`].
    Invalidate {
        /// The version that is served now.
        version: DescriptorVersion,
        /// The buffers that were withdrawn.
        withdrawn: Vec<Generation>,
    },
    /// Stop attempts; see [`ControlFrame::Fence`].
    Fence {
        /// What to stop.
        requests: Vec<FencedAttempt>,
    },
    /// Take a notification; see [`ControlFrame::Notify`].
    Notify {
        /// Tells notifications apart.
        batch: u64,
        /// What is notified.
        name: String,
        /// Opaque.
        message: String,
        /// How the batch ended.
        outcome: BatchOutcome,
    },
    /// Anybody there? Answered by the connection itself, never by a handler.
    Probe,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Answer {
    /// To [`Request::Interest`].
    Interest {
        /// The version that is served now.
        version: DescriptorVersion,
    },
    /// To [`Request::Invalidate`].
    Invalidate,
    /// To [`Request::Fence`].
    Fence {
        /// One for each attempt, in the same order.
        stopped: Vec<FenceOutcome>,
    },
    /// To [`Request::Notify`].
    Notify {
        /// False if there was no room for it.
        taken: bool,
    },
    /// To [`Request::Probe`].
    Probe,
}

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestKind {
    /// [`Request::Interest`].
    Interest,
    /// [`Request::Invalidate`].
    Invalidate,
    /// [`Request::Fence`].
    Fence,
    /// [`Request::Notify`].
    Notify,
    /// [`Request::Probe`].
    Probe,
}

impl Request {
    /// What it is about.
    pub fn kind(&self) -> RequestKind {
        match self {
            Self::Interest { .. } => RequestKind::Interest,
            Self::Invalidate { .. } => RequestKind::Invalidate,
            Self::Fence { .. } => RequestKind::Fence,
            Self::Notify { .. } => RequestKind::Notify,
            Self::Probe => RequestKind::Probe,
        }
    }

    /// What its answer must look like.
    pub(crate) fn shape(&self) -> Shape {
        let items = if let Self::Fence { requests } = self { requests.len() } else { 0 };
        Shape { kind: self.kind(), items }
    }

    pub(crate) fn into_frame(self, id: RequestId) -> ControlFrame {
        match self {
            Self::Interest { known } => ControlFrame::Interest { id, known },
            Self::Invalidate { version, withdrawn } => ControlFrame::Invalidate { id, version, withdrawn },
            Self::Fence { requests } => ControlFrame::Fence { id, requests },
            Self::Notify { batch, name, message, outcome } => {
                ControlFrame::Notify { id, batch, name, message, outcome }
            }
            Self::Probe => ControlFrame::Probe { id },
        }
    }
}

impl Answer {
    /// What it is about.
    pub fn kind(&self) -> RequestKind {
        self.shape().kind
    }

    pub(crate) fn shape(&self) -> Shape {
        let (kind, items) = match self {
            Self::Interest { .. } => (RequestKind::Interest, 0),
            Self::Invalidate => (RequestKind::Invalidate, 0),
            Self::Fence { stopped } => (RequestKind::Fence, stopped.len()),
            Self::Notify { .. } => (RequestKind::Notify, 0),
            Self::Probe => (RequestKind::Probe, 0),
        };
        Shape { kind, items }
    }

    pub(crate) fn into_frame(self, id: RequestId) -> ControlFrame {
        match self {
            Self::Interest { version } => ControlFrame::InterestAck { id, version },
            Self::Invalidate => ControlFrame::InvalidateAck { id },
            Self::Fence { stopped } => ControlFrame::FenceAck { id, stopped },
            Self::Notify { taken } => ControlFrame::NotifyAck { id, taken },
            Self::Probe => ControlFrame::ProbeAck { id },
        }
    }
}

/// What must agree between a request and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) kind: RequestKind,
    items: usize,
}

/// A frame by its role in the conversation.
pub(crate) enum Sorted {
    Request(RequestId, Request),
    Answer(RequestId, Answer),
    Goodbye(String),
    Handshake(ControlFrame),
}

pub(crate) fn sort(frame: ControlFrame) -> Sorted {
    match frame {
        ControlFrame::Interest { id, known } => Sorted::Request(id, Request::Interest { known }),
        ControlFrame::Invalidate { id, version, withdrawn } => {
            Sorted::Request(id, Request::Invalidate { version, withdrawn })
        }
        ControlFrame::Fence { id, requests } => Sorted::Request(id, Request::Fence { requests }),
        ControlFrame::Notify { id, batch, name, message, outcome } => {
            Sorted::Request(id, Request::Notify { batch, name, message, outcome })
        }
        ControlFrame::Probe { id } => Sorted::Request(id, Request::Probe),
        ControlFrame::InterestAck { id, version } => Sorted::Answer(id, Answer::Interest { version }),
        ControlFrame::InvalidateAck { id } => Sorted::Answer(id, Answer::Invalidate),
        ControlFrame::FenceAck { id, stopped } => Sorted::Answer(id, Answer::Fence { stopped }),
        ControlFrame::NotifyAck { id, taken } => Sorted::Answer(id, Answer::Notify { taken }),
        ControlFrame::ProbeAck { id } => Sorted::Answer(id, Answer::Probe),
        ControlFrame::Goodbye { reason } => Sorted::Goodbye(reason),
        ControlFrame::Hello { .. } | ControlFrame::Welcome { .. } | ControlFrame::Refuse { .. } => {
            Sorted::Handshake(frame)
        }
    }
}
