//! Owned memory and its registration. This crate moves nothing between processes and knows no transport.
//!
//! A program hands memory in, the table reserves its range, transports register it, and peers' requests are turned
//! into counted [`Hold`]s by one checked look-up.
//!
//! # Quick start
//!
//! ```
//! use std::time::{Duration, Instant};
//! use te_memory::{Memory, RegionTable, RemoteOp};
//! use te_segment::{Access, Location};
//!
//! let table = RegionTable::default();
//! let memory = Memory::allocate(8192)?;
//! let region = table.reserve(memory, Access::REMOTE_READ, Location::Any)?.commit();
//! region.write_at(100, b"bytes")?;
//!
//! // A peer asks for a range.
//! let hold = table.remote(region.range().start() + 100, 5, RemoteOp::Read)?;
//! let mut bytes = [0; 5];
//! hold.read_at(0, &mut bytes)?;
//! assert_eq!(&bytes, b"bytes");
//! drop(hold);
//!
//! // Withdrawal: block, drain, release.
//! region.block();
//! region.wait_drained(Instant::now() + Duration::from_secs(1))?;
//! let memory = region.release()?;
//! assert_eq!(memory.len(), 8192);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees
//!
//! * A [`Memory`] is moved into its registration and comes back exactly once, from [`Region::release`]. Until then no
//!   safe code has a reference to its bytes; they are reached by copying, through [`copy`](mod@copy) alone.
//! * While a [`Hold`] exists, its memory stays in place. Leaking a hold, a keep, a region, a reservation or memory leaks
//!   memory and does nothing else.
//! * While a [`Keep`] exists, its memory stays in place too, and [`Region::release`] fails with [`ReleaseError::Kept`]. It
//!   is for devices, which may touch the memory until their registration is revoked: a withdrawal drains without it, and
//!   releases only when it is gone. Of a keep and a release at the same time one fails.
//! * No two registered ranges share a byte. Crossing, nested and identical ranges are refused; adjacent ones are allowed
//!   and never merged. Of concurrent overlapping reservations exactly one wins.
//! * A [`Generation`](te_segment::Generation) is given out once per table.
//! * After [`Region::block`] returns, nobody gets a new hold, and no wake-up of a waiter for the last hold is lost.
//!
//! # Memory of devices
//!
//! [`Memory::from_device`] is memory that no CPU touches: [`DeviceMemory`] says on which device it is and, where it can be
//! exported, who does that ([`Export`]). It is reserved, held, kept and released as any other. [`Hold::as_ptr`] is none for
//! it, so what copies or makes system calls has nothing to do that with, and copying here refuses it
//! ([`Refusal::DeviceMemory`]), as does the look-up for peers' requests. Who moves it does so through the device, by
//! [`Hold::address`].
//!
//! # Thread safety
//!
//! Every type is `Send` and `Sync`. [`Region::hold`] takes no lock; [`RegionTable::remote`] takes the table's lock for
//! reading; only reservation and release take it for writing. Neither of the first two allocates.
//!
//! # Failure behaviour
//!
//! Every address, length and offset is fine as input: what does not fit is a [`Refusal`] or a [`RegisterError`], nothing
//! wraps and nothing panics. A refused access has touched nothing; a refused reservation gives the memory back. What is
//! read while somebody writes is unspecified bytes.
//!
//! Memory from [`Memory::from_raw`] is as good as its caller's word. A file mapping whose file is truncated raises
//! `SIGBUS` when touched, as anywhere.

#![deny(unsafe_op_in_unsafe_fn)]

pub mod copy;
mod counting;
mod device;
mod error;
mod fork;
mod gate;
mod hold;
mod keep;
mod memory;
pub mod numa;
mod region;
mod sync;
mod table;
#[cfg(test)]
mod testing;

pub use counting::CountingAllocator;
pub use device::{DeviceMemory, DmaBuf, Export};
pub use error::{CopyError, MemoryError, Refusal, RegisterError, ReleaseError, ReserveRejected, StillHeld};
pub use fork::ForkMark;
pub use hold::{Hold, copy_between, same_bytes};
pub use keep::Keep;
pub use memory::{Memory, SharedFile, Sharing};
pub use region::{HoldCount, Region, RegionState};
pub use table::{DEFAULT_REGION_LIMIT, RegionTable, RemoteOp, Reservation};
