//! Executing a train on one connection: what both directions share.

use std::cell::Cell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use te_segment::TcpFraming;
use te_transport::{Failure, FailureKind, Op};

use super::peer::Peer;
use super::unit::{Train, Unit};
use crate::error::Break;
use crate::frame::{HEADER_LEN, Request, STATUS_LEN, Status};
use crate::framing::{Framing, HEADER_MAX};
use crate::io::Wire;
use crate::native;
use crate::progress::Progress;

/// A connection of the initiator.
pub(crate) struct Link {
    pub(crate) wire: Wire,
    /// Units whose request is under way, oldest first. Empty between trains; kept here for its capacity.
    pub(crate) sent: VecDeque<Unit>,
    /// When the last train on it ended, if one has run: the peer may have closed it since.
    pub(crate) used: Option<Instant>,
    /// Requests sent on it.
    pub(crate) parts: u32,
}

impl Link {
    pub(crate) fn new(wire: Wire) -> Self {
        Self { wire, sent: VecDeque::new(), used: None, parts: 0 }
    }
}

/// A train on a link.
pub(super) struct Exchange<'a> {
    pub(super) peer: &'a Peer,
    pub(super) link: &'a mut Link,
    pub(super) train: &'a mut Train,
    /// Units at the back of `link.sent` whose last byte is not sent.
    pub(super) unsent: usize,
    /// Whether the first of them has begun.
    pub(super) begun: bool,
    /// Whether the peer has answered anything in this train.
    pub(super) answered: bool,
    /// The last look at the clock.
    pub(super) looked: Cell<Instant>,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(peer: &'a Peer, link: &'a mut Link, train: &'a mut Train, now: Instant) -> Self {
        Self { peer, link, train, unsent: 0, begun: false, answered: false, looked: Cell::new(now) }
    }

    /// Runs the train to its end or to what breaks it.
    pub(super) fn run(&mut self) -> Result<(), Break> {
        match self.train.op {
            Op::Read => self.read(),
            Op::Write => self.write(),
        }
    }

    /// Units at the front of `link.sent` of which a byte may be on the way.
    pub(super) fn started(&self) -> usize {
        self.link.sent.len() - self.unsent + usize::from(self.begun)
    }

    /// Whether every request is answered with a status.
    pub(super) fn has_status(&self) -> bool {
        self.peer.framing().has_status()
    }

    pub(super) fn header_len(&self) -> usize {
        self.peer.framing().header_len()
    }

    /// Requests in flight at most. Version 1 has no way to say which of several failed.
    pub(super) fn window(&self) -> usize {
        if self.has_status() && !self.train.one_at_a_time { self.peer.config().pipeline } else { 1 }
    }

    /// The next unit to send, if there is one.
    pub(super) fn next_unit(&mut self) -> Option<Unit> {
        loop {
            if self.train.units.is_empty() {
                self.peer.refill(self.train);
            }
            let unit = self.train.units.pop_front()?;
            if !unit.is_void() {
                return Some(unit);
            }
            let failure = Failure::new(FailureKind::Cancelled, "another part of the request failed");
            self.peer.fail(unit, failure);
        }
    }

    /// The header of a request: the first [`header_len`](Self::header_len) bytes.
    pub(super) fn header(&mut self, unit: &Unit) -> [u8; HEADER_MAX] {
        let (op, addr, len) = (self.train.op, unit.remote(), unit.len());
        let framing = match self.peer.framing() {
            Framing::Native => {
                let (part, attempt, generation) = (self.link.parts, unit.attempt, unit.generation);
                self.link.parts = part.wrapping_add(1);
                return native::Request { op, attempt, part, addr, len, generation }.encode();
            }
            Framing::V2 => TcpFraming::V2,
            Framing::V1 => TcpFraming::V1,
        };
        let mut bytes = [0; HEADER_MAX];
        bytes[..HEADER_LEN].copy_from_slice(&Request { op, framing, addr, len }.encode());
        bytes
    }

    /// Time left for the next call, by `progress` and the deadline.
    pub(super) fn left(&self, progress: &mut Progress, waiting_for: &str) -> Result<Duration, Break> {
        let now = Instant::now();
        self.looked.set(now);
        if self.train.scope.cancelled().is_some() || now >= self.train.deadline {
            return Err(Break::Ended);
        }
        let Some(left) = progress.left(now) else {
            return Err(Break::Stalled(format!("{waiting_for} for {} ms", progress.timeout().as_millis())));
        };
        Ok(left.min(self.train.deadline - now))
    }

    /// Reads a status for the unit at the front.
    pub(super) fn check_status(bytes: [u8; STATUS_LEN]) -> Result<(), Break> {
        match Status::decode(bytes) {
            Ok(Status::Ok) => Ok(()),
            Ok(Status::Rejected(code)) => Err(Break::Refused(code)),
            Err(error) => Err(Break::Protocol(error.to_string())),
        }
    }
}
