//! Executing a train on one connection: what both directions share.

use std::cell::Cell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use te_segment::{Generation, TcpFraming};
use te_transport::{Failure, FailureKind, Op};

use super::peer::Peer;
use super::unit::{Train, Unit};
use crate::config::DigestChoice;
use crate::error::Break;
use crate::frame::{HEADER_LEN, Request, STATUS_LEN, Status};
use crate::framing::{Framing, HEADER_MAX};
use crate::io::Wire;
use crate::native::{self, ENTRY_LEN, Entry, LIST_MAX, List, REQUEST_LEN};
use crate::progress::Progress;

/// A connection of the initiator.
pub(crate) struct Link {
    pub(crate) wire: Wire,
    /// Units whose request is under way, oldest first. Empty between trains; kept here for its capacity.
    pub(crate) sent: VecDeque<Unit>,
    /// When the last train on it ended, if one has run: the peer may have closed it since.
    pub(crate) used: Option<Instant>,
    /// Requests sent on it, a list as one.
    pub(crate) parts: u32,
    /// Requests that `sent` makes, a list as one.
    pub(crate) frames: usize,
    /// Whether the peer takes lists.
    lists: bool,
    digests: Digests,
}

/// Which of the next units carries a digest.
enum Digests {
    Never,
    /// The one behind so many others.
    After(u32),
    Always,
}

/// One in so many units carries a digest if they are sampled.
const SAMPLE: u32 = 64;

impl Link {
    /// A connection on which requests may be sent, in this version of the native framing if it is one.
    pub(crate) fn new(wire: Wire, version: Option<u16>, digest: DigestChoice) -> Self {
        let speaks = |since| version.is_some_and(|version| version >= since);
        let lists = speaks(native::LIST_SINCE);
        let digests = match digest {
            DigestChoice::Sampled if speaks(native::DIGEST_SINCE) => Digests::After(0),
            DigestChoice::Always if speaks(native::DIGEST_SINCE) => Digests::Always,
            _ => Digests::Never,
        };
        Self { wire, sent: VecDeque::new(), used: None, parts: 0, frames: 0, lists, digests }
    }

    fn digest_is_due(&self) -> bool {
        matches!(self.digests, Digests::After(0) | Digests::Always)
    }
}

/// A request or a list as it goes out; its units are the last in `link.sent`.
pub(super) struct Frame {
    /// Bytes in front of the payload.
    pub(super) head: usize,
    pub(super) units: usize,
    /// Payload bytes.
    pub(super) len: u64,
    /// Whether a digest goes with them; then there is one unit.
    pub(super) digest: bool,
}

/// Most bytes of a frame in front of its payload.
pub(super) const HEAD_MAX: usize = native::LIST_LEN;

/// Payload bytes after which a list is not made longer.
const LIST_BYTES: u64 = 128 << 10;

/// A train on a link.
pub(super) struct Exchange<'a> {
    pub(super) peer: &'a Peer,
    pub(super) link: &'a mut Link,
    pub(super) train: &'a mut Train,
    /// Units at the back of `link.sent` that belong to frames whose last byte is not sent.
    pub(super) unsent: usize,
    /// Those of them whose frame has begun.
    pub(super) begun: usize,
    /// Whether the peer has answered anything in this train.
    pub(super) answered: bool,
    /// The last look at the clock.
    pub(super) looked: Cell<Instant>,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(peer: &'a Peer, link: &'a mut Link, train: &'a mut Train, now: Instant) -> Self {
        Self { peer, link, train, unsent: 0, begun: 0, answered: false, looked: Cell::new(now) }
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
        self.link.sent.len() - self.unsent + self.begun
    }

    /// Whether every request is answered with a status.
    pub(super) fn has_status(&self) -> bool {
        self.peer.framing().has_status()
    }

    /// Requests in flight at most, a list as one. Version 1 has no way to say which of several failed.
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

    /// Takes the next units as one frame, in `link.sent`, and writes what goes in front of their payload to `head`, which has
    /// room for [`HEAD_MAX`] bytes.
    pub(super) fn next_frame(&mut self, head: &mut [u8]) -> Option<Frame> {
        let unit = self.next_unit()?;
        self.link.frames += 1;
        let digest = self.link.digest_is_due();
        let mut frame = Frame { head: self.peer.framing().header_len(), units: 1, len: unit.len(), digest };
        if self.link.lists && !digest && !self.train.one_at_a_time && unit.is_listable() {
            self.list(unit, head, &mut frame);
        } else {
            let header = self.header(&unit);
            head[..frame.head].copy_from_slice(&header[..frame.head]);
            self.push_sent(unit, true);
        }
        Some(frame)
    }

    /// Makes a list of this unit and those behind it, or a single request if there are none that fit.
    fn list(&mut self, first: Unit, head: &mut [u8], frame: &mut Frame) {
        let header = self.header(&first);
        let mut count = 0;
        let mut next = Some(first);
        let (front, entries) = head.split_at_mut(REQUEST_LEN);
        for slot in entries.as_chunks_mut::<ENTRY_LEN>().0.iter_mut().take(LIST_MAX) {
            let Some(unit) = next.take() else { break };
            // Units without a generation, or too long for an entry, are not listable.
            let (generation, len) = (unit.generation.unwrap_or(Generation::new(0)), unit.len() as u32);
            *slot = Entry { attempt: unit.attempt, len, addr: unit.remote(), generation }.encode();
            if count > 0 {
                frame.len += unit.len();
            }
            self.push_sent(unit, count == 0);
            count += 1;
            if frame.len < LIST_BYTES && count < LIST_MAX {
                next = self.next_listable();
            }
        }
        if count > 1 {
            let part = self.link.parts.wrapping_sub(1);
            front.copy_from_slice(&List { op: self.train.op, part, count, len: frame.len }.encode());
            frame.head = REQUEST_LEN + count * ENTRY_LEN;
            frame.units = count;
        } else {
            front.copy_from_slice(&header);
        }
    }

    /// The next unit if it can be sent in a list.
    fn next_listable(&mut self) -> Option<Unit> {
        if self.link.digest_is_due() {
            return None;
        }
        if self.train.units.is_empty() {
            self.peer.refill(self.train);
        }
        self.train.units.front().filter(|unit| unit.is_listable())?;
        self.train.units.pop_front()
    }

    fn push_sent(&mut self, mut unit: Unit, leads: bool) {
        unit.leads = leads;
        unit.digest = self.link.digest_is_due();
        if let Digests::After(others) = &mut self.link.digests {
            *others = others.checked_sub(1).unwrap_or(SAMPLE - 1);
        }
        self.link.sent.push_back(unit);
        self.unsent += 1;
    }

    /// Takes the units of the front frame one by one: its `first`, and then the others until there is none.
    pub(super) fn pop_answered(&mut self, first: bool) -> Option<Unit> {
        self.link.sent.front().filter(|unit| unit.leads == first)?;
        let unit = self.link.sent.pop_front()?;
        self.link.frames -= usize::from(first);
        Some(unit)
    }

    /// The header of a request: as many bytes as the framing's headers have.
    fn header(&mut self, unit: &Unit) -> [u8; HEADER_MAX] {
        let (op, addr, len) = (self.train.op, unit.remote(), unit.len());
        let framing = match self.peer.framing() {
            Framing::Native => {
                let (part, attempt, generation) = (self.link.parts, unit.attempt, unit.generation);
                self.link.parts = part.wrapping_add(1);
                let digest = self.link.digest_is_due();
                return native::Request { op, attempt, part, addr, len, generation, digest }.encode();
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
