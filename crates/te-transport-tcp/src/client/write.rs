//! WRITE trains: requests go out without waiting for the answers of those before them.

use std::time::Duration;

use super::exchange::{Exchange, HEAD_MAX};
use crate::counters::add;
use crate::error::Break;
use crate::frame::{HEADER_LEN, Request, STATUS_LEN};
use crate::framing::Framing;
use crate::io::{Spans, Step, Wait};
use crate::native::{DIGEST_LEN, LIST_MAX, Verdict};
use crate::progress::Progress;

/// Requests gathered into one call at most.
const GATHER: usize = 16;
/// Spans that a list takes, or a request with its digest or its read-back.
const FRAME_SPANS: usize = 2 + LIST_MAX;
/// No more is gathered beyond this; one request may be larger.
const GATHER_BYTES: u64 = 64 << 10;
/// Room for answers not looked at yet.
const ANSWERS: usize = 64 * STATUS_LEN;

/// Room for what goes around payloads: for a list behind single requests.
const HEADS: usize = 2 * HEAD_MAX;
/// Room that one more request may need.
const HEAD_ROOM: usize = HEAD_MAX + DIGEST_LEN;

/// The requests of one call and how much of each is left to send.
struct Gathered {
    spans: Spans,
    heads: [u8; HEADS],
    used: usize,
    /// Of each request or list: bytes to send, and units.
    left: [(u64, usize); GATHER],
    first: usize,
    len: usize,
}

impl Gathered {
    fn new() -> Self {
        Self { spans: Spans::new(), heads: [0; HEADS], used: 0, left: [(0, 0); GATHER], first: 0, len: 0 }
    }

    fn clear(&mut self) {
        self.spans.clear();
        self.used = 0;
        self.first = 0;
        self.len = 0;
    }
}

/// Answers received and not looked at yet.
struct Answers {
    bytes: [u8; ANSWERS],
    have: usize,
    /// The wait for the next one, from the moment when the last one came or the last request went out.
    wait: Progress,
}

impl Exchange<'_> {
    /// Version 2: each answer is a status. Version 1: a WRITE has none, so it is followed by a READ of its last byte
    /// on the same connection; the peer serves requests in order, so that byte says that the body is applied.
    pub(super) fn write(&mut self) -> Result<(), Break> {
        let mut gathered = Gathered::new();
        let config = self.peer.config();
        let mut answers =
            Answers { bytes: [0; ANSWERS], have: 0, wait: Progress::new(config.status_timeout) };
        let mut progress = Progress::new(config.progress_timeout);
        loop {
            if gathered.spans.is_empty() {
                self.gather_requests(&mut gathered);
                progress.restart();
            }
            if gathered.spans.is_empty() {
                if self.link.sent.is_empty() {
                    return Ok(());
                }
                self.await_answers(&mut answers)?;
                continue;
            }
            let left = self.left(&mut progress, "the peer took no data")?;
            // SAFETY: the spans are headers in `gathered`, which does not move while they are in use, and the memory of
            // units in `link.sent`, which are removed only after their last byte is sent.
            let step = unsafe { self.link.wire.send(&mut gathered.spans, left) };
            match step {
                Ok(Step::Moved(bytes)) => {
                    progress.moved(bytes);
                    self.note_sent(&mut gathered, bytes as u64);
                    answers.wait.restart();
                    if !gathered.spans.is_empty() || self.link.sent.len() > 1 || !self.train.units.is_empty()
                    {
                        self.poll_answers(&mut answers)?;
                    }
                }
                Ok(Step::Quiet | Step::Eof) => self.poll_answers(&mut answers)?,
                Err(error) => {
                    // The reason may have arrived before the connection broke.
                    self.poll_answers(&mut answers)?;
                    return Err(Break::from_io("sending", &error));
                }
            }
        }
    }

    /// Takes the next units into one call.
    fn gather_requests(&mut self, gathered: &mut Gathered) {
        gathered.clear();
        let (window, confirms) = (self.window(), self.has_status());
        let mut bytes = 0;
        while gathered.len < GATHER
            && self.link.frames < window
            && bytes < GATHER_BYTES
            && gathered.used + HEAD_ROOM <= HEADS
            && gathered.spans.room() >= FRAME_SPANS
        {
            let head = &mut gathered.heads[gathered.used..];
            let Some(frame) = self.next_frame(head) else { break };
            gathered.spans.push(head.as_mut_ptr(), frame.head);
            gathered.used += frame.head;
            let mut total = frame.head as u64 + frame.len;
            let first = self.link.sent.len() - frame.units;
            for unit in self.link.sent.range(first..) {
                gathered.spans.push(unit.start(), usize::try_from(unit.len()).unwrap_or(0));
                if !confirms {
                    let last = Request {
                        op: te_transport::Op::Read,
                        framing: te_segment::TcpFraming::V1,
                        addr: unit.remote() + (unit.len() - 1),
                        len: 1,
                    };
                    let head = &mut gathered.heads[gathered.used..][..HEADER_LEN];
                    head.copy_from_slice(&last.encode());
                    gathered.spans.push(head.as_mut_ptr(), HEADER_LEN);
                    gathered.used += HEADER_LEN;
                    total += HEADER_LEN as u64;
                }
            }
            if frame.digest
                && let Some(digest) =
                    self.link.sent.back().map(|unit| unit.compute_digest().unwrap_or_default())
            {
                let trailer = &mut gathered.heads[gathered.used..][..DIGEST_LEN];
                trailer.copy_from_slice(&digest.to_le_bytes());
                gathered.spans.push(trailer.as_mut_ptr(), DIGEST_LEN);
                gathered.used += DIGEST_LEN;
                total += DIGEST_LEN as u64;
            }
            bytes += frame.len;
            gathered.left[gathered.len] = (total, frame.units);
            gathered.len += 1;
        }
    }

    fn note_sent(&mut self, gathered: &mut Gathered, mut bytes: u64) {
        add(&self.peer.counters().wire_sent, bytes);
        while bytes > 0 && gathered.first < gathered.len {
            let (left, units) = &mut gathered.left[gathered.first];
            if bytes < *left {
                *left -= bytes;
                self.begun = *units;
                return;
            }
            bytes -= *left;
            gathered.first += 1;
            self.unsent -= *units;
            self.begun = 0;
        }
    }

    /// Takes the answers that are here.
    fn poll_answers(&mut self, answers: &mut Answers) -> Result<(), Break> {
        let have = answers.have;
        match self.link.wire.recv_bytes(&mut answers.bytes[have..], Wait::No, Duration::ZERO) {
            Ok(Step::Moved(bytes)) => self.note_answers(answers, bytes),
            Ok(Step::Quiet) => Ok(()),
            Ok(Step::Eof) => Err(self.closed_unanswered()),
            Err(error) => Err(Break::from_io("waiting for answers", &error)),
        }
    }

    /// Waits for answers: for all when there is nothing else to do, else for one, which makes room for more.
    fn await_answers(&mut self, answers: &mut Answers) -> Result<(), Break> {
        let wait = if self.train.units.is_empty() { Wait::All } else { Wait::Some };
        let size = if self.has_status() { STATUS_LEN } else { 1 };
        let wanted = (self.link.frames * size).min(ANSWERS);
        let left = self.left(&mut answers.wait, "no answer after the last byte was sent")?;
        let have = answers.have;
        match self.link.wire.recv_bytes(&mut answers.bytes[have..wanted], wait, left) {
            Ok(Step::Moved(bytes)) => self.note_answers(answers, bytes),
            Ok(Step::Quiet) => Ok(()),
            Ok(Step::Eof) => Err(self.closed_unanswered()),
            Err(error) => Err(Break::from_io("waiting for answers", &error)),
        }
    }

    fn note_answers(&mut self, answers: &mut Answers, bytes: usize) -> Result<(), Break> {
        self.answered = true;
        add(&self.peer.counters().wire_received, bytes as u64);
        answers.have += bytes;
        answers.wait.restart();
        let size = if self.has_status() { STATUS_LEN } else { 1 };
        let mut at = 0;
        while answers.have - at >= size {
            let mut refused = None;
            if let Some(status) = answers.bytes[at..].first_chunk::<STATUS_LEN>()
                && self.has_status()
            {
                match Self::check_status(*status) {
                    Err(Break::Refused(code)) if self.goes_on(code) => refused = Some(code),
                    checked => checked?,
                }
            }
            at += size;
            if self.link.sent.len() <= self.unsent {
                return Err(Break::Protocol("an answer before the request was sent".to_owned()));
            }
            match refused {
                None => self.answered(),
                Some(code) => self.turned_away(code),
            }
        }
        answers.bytes.copy_within(at..answers.have, 0);
        answers.have -= at;
        Ok(())
    }

    /// The request or list at the front is applied.
    fn answered(&mut self) {
        let mut first = true;
        while let Some(unit) = self.pop_answered(first) {
            add(&self.peer.counters().payload_sent, unit.len());
            self.peer.done(unit);
            first = false;
        }
    }

    /// The request or list at the front is refused. Those of a list get a verdict each.
    fn turned_away(&mut self, code: u32) {
        let Some(mut unit) = self.pop_answered(true) else { return };
        let before = self.train.units.len();
        while let Some(mut other) = self.pop_answered(false) {
            other.alone = true;
            self.train.units.push_front(other);
        }
        if self.train.units.len() == before {
            add(&self.peer.counters().payload_sent, unit.len());
            return self.peer.refused(self.train.op, unit, code);
        }
        unit.alone = true;
        self.train.units.push_front(unit);
    }

    /// Whether the connection can be used after this refusal of the request at the front: all of it is on its way, so the
    /// target can throw it away, and it says that it will.
    fn goes_on(&self, code: u32) -> bool {
        let whole = self.link.sent.len() > self.unsent;
        self.peer.framing() == Framing::Native && whole && !Verdict::is_last(code)
    }

    fn closed_unanswered(&self) -> Break {
        let waiting = self.link.sent.len();
        Break::closed(format!("the peer closed the connection with {waiting} requests unanswered"))
    }
}
