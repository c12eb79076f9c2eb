//! READ trains: requests go ahead of their answers, which are received in order straight into memory.

use super::exchange::Exchange;
use crate::counters::add;
use crate::error::Break;
use crate::frame::STATUS_LEN;
use crate::framing::HEADER_MAX;
use crate::io::{Spans, Step, Wait};
use crate::progress::Progress;

/// Answers taken with one call at most. Each takes two spans.
const GATHER: usize = Spans::MAX / 2;
/// No more is gathered beyond this; one answer may be larger.
const GATHER_BYTES: u64 = 1 << 20;
/// Headers sent with one call at most.
const HEADERS: usize = 64;

/// Bytes asked for ahead of their arrival at most, unless one request is larger: what is not asked for yet can be taken
/// over by another connection.
const AHEAD_BYTES: u64 = 4 << 20;

/// What has arrived of the answers at the front.
struct Arrived {
    /// Payload bytes of all requests under way.
    asked: u64,
    /// Statuses of the answers that one call takes.
    statuses: [[u8; STATUS_LEN]; GATHER],
    /// Bytes of the answer at the front that are here, its status included.
    bytes: u64,
}

impl Exchange<'_> {
    pub(super) fn read(&mut self) -> Result<(), Break> {
        let mut arrived = Arrived { asked: 0, statuses: [[0; STATUS_LEN]; GATHER], bytes: 0 };
        let config = self.peer.config();
        let mut progress = Progress::new(config.progress_timeout);
        let mut wait = Progress::new(config.status_timeout);
        loop {
            // Topped up when half is through: many headers in one call, and never a pause at the peer.
            let low = self.link.sent.len() <= self.window() / 2 && arrived.asked <= AHEAD_BYTES / 2;
            if low && self.send_headers(&mut arrived, &mut progress)? {
                wait.restart();
            }
            if self.link.sent.is_empty() {
                return Ok(());
            }
            let mut spans = Spans::new();
            self.gather_answers(&mut arrived, &mut spans);
            let left = if arrived.bytes == 0 {
                self.left(&mut wait, "no answer after the request was sent")?
            } else {
                self.left(&mut progress, "the peer sent no data")?
            };
            // SAFETY: the spans are statuses in `arrived`, which does not move while they are in use, and the memory of
            // units in `link.sent`, which stay there until their last byte is here; it is registered memory.
            let step = unsafe { self.link.wire.recv(&mut spans, Wait::All, left) };
            match step {
                Ok(Step::Moved(bytes)) => {
                    progress.moved(bytes);
                    self.answered = true;
                    if self.note_arrived(&mut arrived, bytes as u64)? {
                        progress.restart();
                        wait.restart();
                    }
                }
                Ok(Step::Quiet) => {}
                Ok(Step::Eof) => return Err(self.closed_mid_answer(arrived.bytes)),
                Err(error) => return Err(Break::from_io("receiving", &error)),
            }
        }
    }

    fn status_len(&self) -> u64 {
        if self.has_status() { STATUS_LEN as u64 } else { 0 }
    }

    /// Sends as many headers as the window allows; whether there were any.
    fn send_headers(&mut self, arrived: &mut Arrived, progress: &mut Progress) -> Result<bool, Break> {
        let header_len = self.header_len();
        let mut bytes = [0; HEADERS * HEADER_MAX];
        let room = self.window().saturating_sub(self.link.sent.len()).min(HEADERS);
        let mut count = 0;
        for slot in bytes.chunks_exact_mut(header_len).take(room) {
            if arrived.asked >= AHEAD_BYTES {
                break;
            }
            let Some(unit) = self.next_unit() else { break };
            arrived.asked += unit.len();
            slot.copy_from_slice(&self.header(&unit)[..header_len]);
            self.link.sent.push_back(unit);
            self.unsent += 1;
            count += 1;
        }
        let mut rest = &bytes[..count * header_len];
        while !rest.is_empty() {
            let left = self.left(progress, "the peer took no data")?;
            match self.link.wire.send_bytes(rest, left) {
                Ok(Step::Moved(sent)) => {
                    rest = &rest[sent..];
                    self.unsent = rest.len().div_ceil(header_len);
                    self.begun = !rest.len().is_multiple_of(header_len);
                    add(&self.peer.counters().wire_sent, sent as u64);
                }
                Ok(Step::Quiet | Step::Eof) => {}
                Err(error) => return Err(Break::from_io("sending", &error)),
            }
        }
        if count > 0 {
            progress.restart();
        }
        Ok(count > 0)
    }

    /// Lists where the next answers go.
    fn gather_answers(&mut self, arrived: &mut Arrived, spans: &mut Spans) {
        let status_len = self.status_len();
        let mut bytes = 0;
        // What of the front answer is here already.
        let mut skip = arrived.bytes;
        for (unit, status) in self.link.sent.iter().zip(&mut arrived.statuses) {
            if bytes >= GATHER_BYTES {
                break;
            }
            let in_status = skip.min(status_len);
            let in_payload = skip - in_status;
            skip = 0;
            // All are below the length of a mapped range or of a status.
            let size = |count: u64| usize::try_from(count).unwrap_or(0);
            spans.push(status.as_mut_ptr().wrapping_add(size(in_status)), size(status_len - in_status));
            spans.push(unit.start().wrapping_add(size(in_payload)), size(unit.len() - in_payload));
            bytes += unit.len();
        }
    }

    /// Accounts for received bytes; whether an answer became complete.
    fn note_arrived(&mut self, arrived: &mut Arrived, mut bytes: u64) -> Result<bool, Break> {
        add(&self.peer.counters().wire_received, bytes);
        let status_len = self.status_len();
        let mut answer = 0;
        let mut complete = false;
        while bytes > 0 {
            let Some(unit) = self.link.sent.front() else { break };
            let total = status_len + unit.len();
            let taken = bytes.min(total - arrived.bytes);
            let before = arrived.bytes;
            bytes -= taken;
            arrived.bytes += taken;
            if before < status_len && arrived.bytes >= status_len {
                Self::check_status(arrived.statuses[answer])?;
            }
            if arrived.bytes < total {
                // The rest of its status, if any is missing, goes on in the first slot.
                arrived.statuses[0] = arrived.statuses[answer];
                break;
            }
            arrived.bytes = 0;
            answer += 1;
            complete = true;
            if let Some(unit) = self.link.sent.pop_front() {
                arrived.asked -= unit.len();
                add(&self.peer.counters().payload_received, unit.len());
                self.peer.done(unit);
            }
        }
        Ok(complete)
    }

    fn closed_mid_answer(&self, arrived: u64) -> Break {
        let expected = self.link.sent.front().map_or(0, |unit| unit.len() + self.status_len());
        let refusal = if !self.has_status() && arrived == 0 {
            "; a version 1 peer refuses a range this way"
        } else {
            ""
        };
        Break::closed(format!(
            "the peer closed the connection after {arrived} of {expected} answer bytes{refusal}"
        ))
    }
}
