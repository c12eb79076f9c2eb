//! Undoing registrations, one at a time and in reverse.

use te_segment::NicName;

use super::{Errno, Place};

/// Registrations that are to be undone, the last one first. What could not be undone stays, so that the call can be
/// repeated; nothing is undone twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unwind {
    /// In the order in which they were made.
    left: Vec<Place>,
    /// In reverse: those that could not be undone.
    failed: Vec<(Place, Errno)>,
}

impl Unwind {
    /// To undo these, which were made in this order.
    #[must_use]
    pub fn new(made: Vec<Place>) -> Self {
        Self { left: made, failed: Vec::new() }
    }

    /// One more, made after the others.
    pub fn push(&mut self, place: Place) {
        self.left.push(place);
    }

    /// Leaves out those at a NIC, which are gone with its device.
    pub fn leave_out(&mut self, nic: &NicName) {
        self.left.retain(|place| place.nic != *nic);
    }

    /// The one to undo now. It stays the same until [`done`](Self::done) is told.
    #[must_use]
    pub fn next(&self) -> Option<&Place> {
        self.left.last()
    }

    /// How undoing it went.
    pub fn done(&mut self, outcome: Result<(), Errno>) {
        if let Some(place) = self.left.pop()
            && let Err(errno) = outcome
        {
            self.failed.push((place, errno));
        }
    }

    /// What could not be undone, and why.
    #[must_use]
    pub fn failed(&self) -> &[(Place, Errno)] {
        &self.failed
    }

    /// To try once more what could not be undone, in the same order.
    #[must_use]
    pub fn again(self) -> Self {
        Self::new(
            self.left.into_iter().chain(self.failed.into_iter().rev().map(|(place, _)| place)).collect(),
        )
    }
}
