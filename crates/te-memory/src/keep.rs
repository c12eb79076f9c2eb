//! What keeps a region's memory in place for a device.

use std::fmt;

use crate::region::Region;

/// Keeps the memory of a region in place for a device that may read and write it at any time, such as a network card
/// with a registration over it. Made by [`Region::keep`].
///
/// While it lives, [`Region::release`] fails with [`ReleaseError::Kept`](crate::ReleaseError::Kept). It is no hold: it
/// gives no access to the memory, and a withdrawal drains without it, because keys are revoked only after that. Drop it
/// when the device has given its registration up, never before. Leaking it keeps the memory for ever and does no other
/// harm.
#[must_use = "dropping a keep says that the device touches the memory no more"]
pub struct Keep {
    region: Region,
}

impl Keep {
    pub(crate) fn new(region: &Region) -> Option<Self> {
        region.gate().keep().then(|| Self { region: region.clone() })
    }

    /// The region whose memory stays in place.
    pub fn region(&self) -> &Region {
        &self.region
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        if self.region.gate().unkeep() {
            // The region was abandoned, so nobody waits for the memory.
            drop(self.region.take());
        }
    }
}

impl fmt::Debug for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keep")
            .field("range", &self.region.range())
            .field("generation", &self.region.generation())
            .finish()
    }
}

#[cfg(test)]
mod tests;
