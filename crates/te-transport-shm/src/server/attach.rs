//! Which buffers a peer uses, and under which numbers in the page.

use std::collections::HashMap;

use te_memory::{Refusal, RegionState, RemoteOp};
use te_segment::Generation;

use super::Shared;
use super::connection::Connection;
use crate::counters::add;
use crate::frame::{Denial, Frame};
use crate::hold;
use crate::offer::{self, Reached};

/// The numbers of one connection.
pub(super) struct Numbers {
    of: HashMap<u64, u32>,
    free: Vec<u32>,
    next: u32,
    limit: u32,
}

impl Numbers {
    pub(super) fn new(limit: u32) -> Self {
        Self { of: HashMap::new(), free: Vec::new(), next: 0, limit }
    }

    /// The number of a buffer that the peer uses.
    pub(super) fn of(&self, generation: u64) -> Option<u32> {
        self.of.get(&generation).copied()
    }

    /// The number of a buffer, a free one if it has none yet.
    fn give(&mut self, generation: u64) -> Option<u32> {
        if let Some(number) = self.of(generation) {
            return Some(number);
        }
        let number = self.free.pop().or_else(|| {
            let fresh = (self.next < self.limit).then_some(self.next)?;
            self.next += 1;
            Some(fresh)
        })?;
        self.of.insert(generation, number);
        Some(number)
    }

    /// The number can be used again.
    fn take_back(&mut self, generation: u64) {
        self.free.extend(self.of.remove(&generation));
    }
}

fn denial(refusal: Refusal) -> Denial {
    match refusal {
        Refusal::Gone | Refusal::Withdrawn => Denial::Gone,
        Refusal::PermissionDenied => Denial::Access,
        Refusal::TooManyHolds => Denial::Full,
        _ => Denial::Range,
    }
}

impl Connection {
    /// Lets the peer use a buffer, if the region table does.
    pub(super) fn attach(
        &self,
        shared: &Shared,
        generation: u64,
        (address, len): (u64, u64),
        write: bool,
    ) -> Result<(), String> {
        let denied = |denial| {
            add(&shared.counters.denied, 1);
            let frame = Frame::Denied { generation, denial };
            self.socket.send(&frame, None).map_err(|error| format!("the peer does not listen: {error}"))
        };
        let op = if write { RemoteOp::Write } else { RemoteOp::Read };
        let hold = match shared.regions.remote_of(address, len, op, Generation::new(generation)) {
            Ok(hold) => hold,
            Err(refusal) => return denied(denial(refusal)),
        };
        let region = hold.region();
        let number = {
            let mut numbers = self.numbers.lock();
            let known = numbers.of(generation).is_some();
            let Some(number) = numbers.give(generation) else {
                drop(numbers);
                return denied(Denial::Full);
            };
            // A withdrawal blocks the region before it looks for numbers: either it finds this one, or we see the block.
            if region.state() != RegionState::Active {
                if !known {
                    numbers.take_back(generation);
                }
                drop(numbers);
                return denied(Denial::Gone);
            }
            number
        };
        let (range, access) = (region.range(), region.access());
        let file = region.shared_file().filter(|_| offer::reached(region) == Reached::File);
        let frame = Frame::Attached {
            generation,
            buffer: number,
            address: range.start(),
            len: range.len(),
            read: access.allows_read(),
            write: access.allows_write(),
            file: file.is_some(),
        };
        add(&shared.counters.attached, 1);
        let sent = self.socket.send(&frame, file.as_ref().map(te_memory::SharedFile::lend));
        sent.map_err(|error| format!("the peer does not listen: {error}"))
    }

    /// The peer has forgotten a buffer.
    pub(super) fn detach(&self, generation: u64, buffer: u32) -> Result<(), String> {
        let mut numbers = self.numbers.lock();
        if numbers.of(generation) != Some(buffer) {
            return Err("it gives back a buffer that it does not have".to_owned());
        }
        if hold::copying(&self.page, Some(buffer)) > 0 {
            return Err("it gives back a buffer that it copies".to_owned());
        }
        hold::renew(&self.page, buffer);
        numbers.take_back(generation);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_once_and_again() {
        let mut numbers = Numbers::new(2);
        assert_eq!((numbers.give(10), numbers.give(11), numbers.give(10)), (Some(0), Some(1), Some(0)));
        assert_eq!(numbers.give(12), None);
        numbers.take_back(10);
        numbers.take_back(10);
        assert_eq!((numbers.of(10), numbers.give(12), numbers.give(13)), (None, Some(0), None));
    }
}
