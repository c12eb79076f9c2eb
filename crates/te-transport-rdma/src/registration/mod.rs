//! Registering one buffer at every NIC, as a state machine over what the devices answer.
//!
//! A [`Registration`] hands out [`Task`]s, any number of which may run at the same time, and is told their outcomes in
//! whatever order they come. It ends with one [`Outcome`]: registered everywhere, to be staged through host memory, or
//! failed. In the last two cases everything has been undone before, in reverse.
//!
//! Memory of a device that a NIC does not register by address (EFAULT, for want of a peer-memory driver) is exported as a
//! dma-buf, once for all NICs and parts, and imported by each; the export is closed after the last import, also on a failure.
//!
//! ```
//! use te_segment::{AddressRange, MemoryKey};
//! use te_transport_rdma::registration::{Keys, Memory, Registration, Outcome, Task, Went};
//!
//! let buffer = AddressRange::new(0x10000, 100)?;
//! let mut registration = Registration::new(buffer, vec!["mlx5_0".parse()?], 64.try_into()?, Memory::Host);
//! let keys = Keys { local: MemoryKey::new(1), remote: MemoryKey::new(2) };
//! for task in registration.tasks() {
//!     registration.done(task, Ok(Went::Registered(keys)));
//! }
//! match registration.outcome() {
//!     Some(Outcome::Registered(chunks)) => assert_eq!(chunks.len(), 2),
//!     other => return Err(format!("not registered: {other:?}").into()),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod machine;
mod unwind;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use te_segment::{AddressRange, MemoryKey, NicName};

pub use machine::Registration;
pub use unwind::Unwind;

/// Whose memory a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// The host's.
    Host,
    /// A device's, to be registered by its address first.
    Device,
    /// A device's that cannot be registered by its address, as is known before: exported at once.
    DeviceByExport,
}

/// A part of the buffer at a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The NIC.
    pub nic: NicName,
    /// Which part of the buffer, counted from its start.
    pub chunk: usize,
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Register a part of the buffer at a NIC, by its address.
    Register(Place, AddressRange),
    /// Import a part of the buffer from the export at a NIC. The offset is that of the part in the buffer.
    Import(Place, AddressRange, u64),
    /// Export the buffer as one dma-buf.
    Export,
    /// Close the export.
    CloseExport,
    /// Undo a registration.
    Deregister(Place),
}

/// The keys of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// For work requests of this side.
    pub local: MemoryKey,
    /// For those of peers.
    pub remote: MemoryKey,
}

/// A task that went well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Went {
    /// A registration or an import.
    Registered(Keys),
    /// Any other task.
    Done,
}

/// The system's error number of a task that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    const EPERM: Self = Self(1);
    const EIO: Self = Self(5);
    const EAGAIN: Self = Self(11);
    const ENOMEM: Self = Self(12);
    const EFAULT: Self = Self(14);
    const ENODEV: Self = Self(19);
    const EINVAL: Self = Self(22);
    const ENOSYS: Self = Self(38);
    const EPROTONOSUPPORT: Self = Self(93);
    const EOPNOTSUPP: Self = Self(95);

    /// Whether the device cannot register such memory in this way at all.
    fn is_incapable(self) -> bool {
        [Self::EFAULT, Self::ENOSYS, Self::EPROTONOSUPPORT, Self::EOPNOTSUPP].contains(&self)
    }

    /// Whether the same call can succeed later.
    fn is_passing(self) -> bool {
        [Self::EAGAIN, Self::ENOMEM, Self::EIO, Self::ENODEV].contains(&self)
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::EFAULT => "the memory is not mapped, or the NIC cannot reach it by its address",
            Self::EAGAIN => {
                "the device has no memory keys left: registrations of processes that were killed may still hold them"
            }
            Self::ENOMEM => "not enough memory can be locked: raise the limit (ulimit -l)",
            Self::EIO | Self::ENODEV => {
                "the device does not work: one that has failed is left out until it is back"
            }
            Self::EPERM => "locking memory is not permitted",
            Self::EINVAL => "the device refuses the length or the access",
            Self::ENOSYS | Self::EPROTONOSUPPORT | Self::EOPNOTSUPP => {
                "the device or its driver cannot do it"
            }
            _ => "see the kernel log",
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error {}: {}", self.0, self.meaning())
    }
}

/// A part of the buffer that is registered at every NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its addresses.
    pub range: AddressRange,
    /// Its keys, by NIC.
    pub keys: BTreeMap<NicName, Keys>,
}

/// How a registration ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Registered at every NIC, in parts of at most the largest size that a NIC takes.
    Registered(Vec<Chunk>),
    /// No NIC is to touch it: it has to be copied through host memory. Why, one line for each way that was tried.
    Stage(Vec<String>),
    /// Failed.
    Failed {
        /// Why, in one lower-case line.
        cause: String,
        /// Whether trying again can help.
        retryable: bool,
        /// What could not be undone and still exists, to be tried again.
        left: Unwind,
    },
}
