//! Registered memory in the caller's hands.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::time::{Duration, Instant};

use te_memory::{Hold, Memory, Refusal, Region, RegisterError};
use te_segment::{Access, AddressRange, Generation, Location, TransportKind};

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::process::{InProcess, OfProcess};
use crate::withdraw::Withdrawal;

/// Which of the engine's transports, by position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TransportSet(u64);

impl TransportSet {
    /// More transports than this cannot be installed.
    pub(crate) const CAPACITY: usize = 64;

    pub(crate) fn all() -> Self {
        Self(u64::MAX)
    }

    pub(crate) fn insert(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    pub(crate) fn contains(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }
}

/// A point in time, or a while from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Instant);

impl Deadline {
    /// At that instant.
    #[must_use]
    pub fn at(instant: Instant) -> Self {
        Self(instant)
    }

    /// That long from now.
    #[must_use]
    pub fn after(time: Duration) -> Self {
        // Beyond what the clock can say is as good as a century.
        let now = Instant::now();
        Self(now.checked_add(time).unwrap_or(now + Duration::from_secs(3_153_600_000)))
    }

    /// That many seconds from now.
    #[must_use]
    pub fn after_secs(seconds: u64) -> Self {
        Self::after(Duration::from_secs(seconds))
    }

    /// The instant.
    #[must_use]
    pub fn instant(self) -> Instant {
        self.0
    }
}

/// Registered memory: peers with permission can reach it, batches can use it.
///
/// It is the only owner the caller has; [`unregister`](Self::unregister) gives the memory back. Dropping it instead
/// withdraws the memory in the background and frees it when nothing uses it any more. Leaking it leaks the memory.
pub struct Buffer {
    core: InProcess<Core>,
    region: Region,
    registered: TransportSet,
    unserved: Box<[(TransportKind, String)]>,
    withdrawal: Option<Withdrawal>,
}

impl Buffer {
    pub(crate) fn new(
        core: Arc<Core>,
        region: Region,
        registered: TransportSet,
        unserved: Box<[(TransportKind, String)]>,
    ) -> Self {
        let withdrawal = Some(Withdrawal::new(region.clone(), registered));
        Self { core: core.into(), region, registered, unserved, withdrawal }
    }

    /// Addresses of the memory.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        self.region.range()
    }

    /// Address of the first byte, as peers name it.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.region.range().start()
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.region.range().len()
    }

    /// Always false: memory without bytes cannot be registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// What peers may do.
    #[must_use]
    pub fn access(&self) -> Access {
        self.region.access()
    }

    /// Where the memory lives.
    #[must_use]
    pub fn location(&self) -> &Location {
        self.region.location()
    }

    /// Tells this registration from every other one of this engine.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.region.generation()
    }

    /// The installed transports that do not serve this memory, each with what was tried and why that failed, in one
    /// lower-case line.
    pub fn unserved(&self) -> impl Iterator<Item = (&TransportKind, &str)> {
        self.unserved.iter().map(|(transport, reason)| (transport, reason.as_str()))
    }

    /// A part of the buffer for a batch. Bounds are checked when the batch is submitted.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<u64>) -> LocalSlice {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len(),
        };
        LocalSlice {
            region: self.region.clone(),
            registered: self.registered,
            offset: start,
            len: end.saturating_sub(start),
        }
    }

    /// Copies bytes out, from `offset`. Peers may be writing: what is read then is unspecified.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] outside the buffer, [`ErrorKind::BufferGone`] once it is withdrawn.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.core.check_process("read local memory")?;
        self.region.read_at(offset, bytes).map_err(|refusal| self.refused("read", refusal))
    }

    /// Copies bytes in, at `offset`.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.core.check_process("write local memory")?;
        self.region.write_at(offset, bytes).map_err(|refusal| self.refused("write", refusal))
    }

    fn refused(&self, verb: &str, refusal: Refusal) -> Error {
        let operation = format!("{verb} local buffer {}", self.range());
        Error::new(refusal_kind(refusal), operation, refusal.to_string())
    }

    /// Withdraws the memory and gives it back: new use is refused, peers are told, requests under way finish, then
    /// transports give up their keys. Batches of this engine that still use it after the drain time
    /// ([`Limits::drain`](crate::Limits), or three quarters of what is left to the deadline) are cut off: they fail with
    /// [`ErrorKind::BufferGone`] and say that the buffer is being withdrawn.
    ///
    /// # Errors
    ///
    /// [`UnregisterFailed`] with the buffer and what still holds it; the call can be repeated and goes on where it
    /// stopped.
    pub async fn unregister(mut self, deadline: Deadline) -> std::result::Result<Memory, UnregisterFailed> {
        if let Err(error) = self.core.check_process("unregister") {
            return Err(UnregisterFailed { error, buffer: self });
        }
        let Some(withdrawal) = self.withdrawal.take() else {
            let error = Error::new(ErrorKind::BufferGone, "unregister", "the buffer was withdrawn before");
            return Err(UnregisterFailed { error, buffer: self });
        };
        let core = self.core.arc().clone();
        let (withdrawal, outcome) = withdrawal.run(core, deadline.instant()).await;
        match outcome {
            Ok(memory) => Ok(memory),
            Err(error) => {
                self.withdrawal = Some(withdrawal);
                Err(UnregisterFailed { error, buffer: self })
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(withdrawal) = self.withdrawal.take().filter(|_| !self.core.mark().is_forked()) {
            withdrawal.in_background(self.core.arc().clone());
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("range", &self.range())
            .field("access", &self.access())
            .field("location", self.location())
            .finish_non_exhaustive()
    }
}

/// A part of a [`Buffer`], for a batch. It keeps nothing alive: if the buffer is withdrawn before the batch is
/// submitted, submitting fails.
#[derive(Clone, Debug)]
pub struct LocalSlice {
    region: Region,
    registered: TransportSet,
    offset: u64,
    len: u64,
}

impl LocalSlice {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes; such a slice cannot be submitted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn hold(&self) -> std::result::Result<Hold, Refusal> {
        self.region.hold(self.offset, self.len)
    }

    /// Its addresses; those of the whole buffer while its bounds are not checked.
    pub(crate) fn range(&self) -> AddressRange {
        let buffer = self.region.range();
        buffer.slice(self.offset, self.len).unwrap_or(buffer)
    }

    pub(crate) fn is_of(&self, region: &Region) -> bool {
        self.region == *region
    }

    pub(crate) fn location(&self) -> &Location {
        self.region.location()
    }

    pub(crate) fn registered(&self) -> TransportSet {
        self.registered
    }
}

pub(crate) fn refusal_kind(refusal: Refusal) -> ErrorKind {
    match refusal {
        Refusal::Withdrawn | Refusal::OutsideAnyRegion => ErrorKind::BufferGone,
        Refusal::PermissionDenied => ErrorKind::PermissionDenied,
        Refusal::TooManyHolds => ErrorKind::LimitReached,
        _ => ErrorKind::InvalidArgument,
    }
}

/// Memory could not be registered; it comes back with the reason.
#[derive(Debug)]
pub struct RegisterFailed {
    /// Why.
    pub error: Error,
    /// The memory, untouched; more than one piece for a batch form.
    pub memory: Vec<Memory>,
}

impl fmt::Display for RegisterFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for RegisterFailed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<RegisterFailed> for Error {
    fn from(failed: RegisterFailed) -> Self {
        failed.error
    }
}

/// Memory could not be withdrawn in time; the buffer comes back with what holds it.
#[derive(Debug)]
pub struct UnregisterFailed {
    /// Why.
    pub error: Error,
    /// The buffer: blocked, but still registered. Unregister it again.
    pub buffer: Buffer,
}

impl fmt::Display for UnregisterFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for UnregisterFailed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<UnregisterFailed> for Error {
    fn from(failed: UnregisterFailed) -> Self {
        failed.error
    }
}

pub(crate) fn register_kind(error: &RegisterError) -> ErrorKind {
    match error {
        RegisterError::Overlaps { .. } => ErrorKind::Overlaps,
        RegisterError::LimitReached { .. } => ErrorKind::LimitReached,
        _ => ErrorKind::BadMemory,
    }
}
