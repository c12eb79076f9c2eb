//! Memory of a device, which the CPU does not touch.

use std::{fmt, os::fd::OwnedFd, sync::Arc};

use te_segment::{AddressRange, DeviceKind, Location};

/// Which device memory is on, and whether other devices can be given it as a dma-buf.
///
/// ```
/// use te_memory::DeviceMemory;
/// use te_segment::{DeviceKind, Location};
/// let device = DeviceMemory::new(DeviceKind::Cuda, 3);
/// assert_eq!(device.location(), Location::device(DeviceKind::Cuda, 3));
/// assert!(device.exporter().is_none());
/// ```
#[derive(Clone)]
pub struct DeviceMemory {
    kind: DeviceKind,
    index: u32,
    exporter: Option<Arc<dyn Export>>,
}

/// Exports memory of a device, so that devices that cannot reach it by its address can import it. What a vendor's library does
/// for its devices.
pub trait Export: Send + Sync {
    /// Exports a range inside of the memory that this was handed over with. Each call makes a descriptor of its own; one is
    /// enough for any number of importing devices.
    ///
    /// # Errors
    ///
    /// Why not, in one lower-case line that says what would help.
    fn export(&self, range: AddressRange) -> Result<DmaBuf, String>;
}

/// A range of device memory as a dma-buf. Dropping it closes the descriptor; what was imported before stays.
#[derive(Debug)]
pub struct DmaBuf {
    /// The dma-buf. Vendors export whole allocations, so that it may begin before the range and end behind it.
    pub fd: OwnedFd,
    /// Where the range begins in it, in bytes.
    pub offset: u64,
    /// How many bytes it has from there on: at least those of the range.
    pub len: u64,
}

impl DeviceMemory {
    /// Memory of this device that nobody exports.
    #[must_use]
    pub const fn new(kind: DeviceKind, index: u32) -> Self {
        Self { kind, index, exporter: None }
    }

    /// The same, exported by `exporter` where a device needs that.
    #[must_use]
    pub fn exported_by(self, exporter: Arc<dyn Export>) -> Self {
        Self { exporter: Some(exporter), ..self }
    }

    /// What kind of device.
    #[must_use]
    pub const fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// Its ordinal.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// The device as a location.
    #[must_use]
    pub const fn location(&self) -> Location {
        Location::device(self.kind, self.index)
    }

    /// Who exports it, if it can be exported.
    #[must_use]
    pub fn exporter(&self) -> Option<&Arc<dyn Export>> {
        self.exporter.as_ref()
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("device", &format_args!("{}", self.location()))
            .field("exportable", &self.exporter.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests;
