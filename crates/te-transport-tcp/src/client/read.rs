//! READ trains: requests go ahead of their answers, which are received in order straight into memory.

use super::exchange::{Exchange, HEAD_MAX};
use super::unit::Unit;
use crate::counters::add;
use crate::error::Break;
use crate::frame::STATUS_LEN;
use crate::io::{Spans, Step, Wait};
use crate::native::DIGEST_LEN;
use crate::progress::Progress;

/// Answers taken with one call at most, that of a list as one.
const GATHER: usize = 24;
/// No more is gathered beyond this; one answer may be larger.
const GATHER_BYTES: u64 = 1 << 20;
/// Headers sent with one call at most.
const HEADERS: usize = 64;
/// Room for them, or for a list behind some of them.
const HEADS: usize = 2 * HEAD_MAX;

/// Bytes asked for ahead of their arrival at most, unless one request is larger: what is not asked for yet can be taken
/// over by another connection.
pub(super) const AHEAD_BYTES: u64 = 4 << 20;

/// Bytes in front of a payload with a digest.
const FRONT: usize = STATUS_LEN + DIGEST_LEN;

/// What has arrived of the answers at the front.
struct Arrived {
    /// Payload bytes of all requests under way.
    asked: u64,
    /// What is in front of the payloads that one call takes: statuses, some with a digest.
    statuses: [[u8; FRONT]; GATHER],
    /// Bytes of the unit at the front that are here. Those of the first of an answer include its status.
    bytes: u64,
}

impl Exchange<'_> {
    pub(super) fn read(&mut self) -> Result<(), Break> {
        let mut arrived = Arrived { asked: 0, statuses: [[0; FRONT]; GATHER], bytes: 0 };
        let config = self.peer.config();
        let mut progress = Progress::new(config.progress_timeout);
        let mut wait = Progress::new(config.status_timeout);
        loop {
            // Topped up when half is through: many headers in one call, and never a pause at the peer.
            let low = self.link.frames <= self.window() / 2 && arrived.asked <= AHEAD_BYTES / 2;
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

    /// Bytes in front of the payload of a unit.
    fn front_len(&self, unit: &Unit) -> u64 {
        match (self.has_status() && unit.leads, unit.digest) {
            (true, true) => FRONT as u64,
            (true, false) => STATUS_LEN as u64,
            (false, _) => 0,
        }
    }

    /// Sends as many headers as the window allows; whether there were any.
    fn send_headers(&mut self, arrived: &mut Arrived, progress: &mut Progress) -> Result<bool, Break> {
        let mut bytes = [0; HEADS];
        let mut ends = [(0, 0); HEADERS];
        let (mut used, mut count) = (0, 0);
        while count < HEADERS
            && used + HEAD_MAX <= HEADS
            && self.link.frames < self.window()
            && arrived.asked < AHEAD_BYTES
        {
            let Some(frame) = self.next_frame(&mut bytes[used..]) else { break };
            arrived.asked += frame.len;
            used += frame.head;
            ends[count] = (used, frame.units);
            count += 1;
        }
        let (mut sent, mut first) = (0, 0);
        while sent < used {
            let left = self.left(progress, "the peer took no data")?;
            match self.link.wire.send_bytes(&bytes[sent..used], left) {
                Ok(Step::Moved(more)) => {
                    sent += more;
                    while first < count && ends[first].0 <= sent {
                        self.unsent -= ends[first].1;
                        first += 1;
                    }
                    let begins = if first == 0 { 0 } else { ends[first - 1].0 };
                    self.begun = if sent > begins { ends[first].1 } else { 0 };
                    add(&self.peer.counters().wire_sent, more as u64);
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
        let mut bytes = 0;
        let mut answers = 0;
        // What of the front unit is here already.
        let mut skip = arrived.bytes;
        for unit in &self.link.sent {
            if bytes >= GATHER_BYTES || spans.room() < 2 {
                break;
            }
            let front_len = self.front_len(unit);
            let in_front = skip.min(front_len);
            let in_payload = skip - in_front;
            skip = 0;
            // All are below the length of a mapped range or of a status.
            let size = |count: u64| usize::try_from(count).unwrap_or(0);
            if unit.leads {
                let Some(status) = arrived.statuses.get_mut(answers) else { break };
                let start = status.as_mut_ptr().wrapping_add(size(in_front));
                spans.push(start, size(front_len - in_front));
                answers += 1;
            }
            spans.push(unit.start().wrapping_add(size(in_payload)), size(unit.len() - in_payload));
            bytes += unit.len();
        }
    }

    /// Accounts for received bytes; whether a unit became complete.
    fn note_arrived(&mut self, arrived: &mut Arrived, mut bytes: u64) -> Result<bool, Break> {
        add(&self.peer.counters().wire_received, bytes);
        let mut answer = 0;
        let mut complete = false;
        while bytes > 0 {
            let Some(unit) = self.link.sent.front() else { break };
            let (front_len, leads) = (self.front_len(unit), unit.leads);
            let total = front_len + unit.len();
            let taken = bytes.min(total - arrived.bytes);
            let before = arrived.bytes;
            bytes -= taken;
            arrived.bytes += taken;
            let status_len = front_len.min(STATUS_LEN as u64);
            if before < status_len && arrived.bytes >= status_len {
                let status = arrived.statuses[answer].first_chunk().copied();
                Self::check_status(status.unwrap_or_default())?;
            }
            if arrived.bytes < total {
                if leads {
                    // What is missing of its front goes on in the first slot.
                    arrived.statuses[0] = arrived.statuses[answer];
                }
                break;
            }
            arrived.bytes = 0;
            let expected = arrived.statuses.get(answer).and_then(|front| front.last_chunk()).copied();
            answer += usize::from(leads);
            complete = true;
            if let Some(unit) = self.pop_answered(leads) {
                arrived.asked -= unit.len();
                add(&self.peer.counters().payload_received, unit.len());
                let fits = || unit.compute_digest() == expected.map(u64::from_le_bytes);
                if unit.digest && !fits() {
                    self.peer.damaged(unit);
                } else {
                    self.peer.done(unit);
                }
            }
        }
        Ok(complete)
    }

    fn closed_mid_answer(&self, arrived: u64) -> Break {
        let expected = self.link.sent.front().map_or(0, |unit| unit.len() + self.front_len(unit));
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
