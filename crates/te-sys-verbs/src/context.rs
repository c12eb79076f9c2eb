//! An open device: what it is, what it tells by itself, and what is made from it.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Call, Lacking, Unavailable, VerbsError, last_errno};
use crate::event::AsyncEvent;
use crate::ffi::*;
use crate::memory::{Keep, ProtectionDomain, RawRegion};
use crate::port::{DeviceLimits, Gid, GidEntry, GidKind, PortInfo};
use crate::table::Symbols;
use crate::verbs::{Device, Loaded};

/// An open device. Copies are the same; it is closed after the last handle made from it.
#[derive(Clone)]
pub struct Context(pub(crate) Arc<Opened>);

pub(crate) struct Opened {
    raw: NonNull<ibv_context>,
    device: Device,
    users: Mutex<Users>,
    /// What keeps memory whose registration went with the device. Dropped once the context is closed.
    lost: Mutex<Vec<Keep>>,
    pub(crate) ops: Ops,
}

/// The calls that bypass the library, checked when the device is opened.
#[derive(Clone, Copy)]
pub(crate) struct Ops {
    pub(crate) poll_cq: PollCq,
    pub(crate) req_notify_cq: ReqNotifyCq,
    pub(crate) post_send: PostSend,
    pub(crate) post_recv: PostRecv,
}

/// Queues and queue pairs that exist, and the registrations that wait until there are none.
#[derive(Default)]
struct Users {
    count: usize,
    waiting: Vec<RawRegion>,
}

// SAFETY: libibverbs may be called from any thread on any of its objects.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.name()).finish_non_exhaustive()
    }
}

impl Context {
    /// Takes over an open context.
    ///
    /// # Safety
    ///
    /// It must be from `device`, just opened and nobody else's.
    pub(crate) unsafe fn adopt(raw: NonNull<ibv_context>, device: Device) -> Result<Self, Unavailable> {
        // SAFETY: the context is open.
        let shown = unsafe { raw.as_ref() };
        let (ops, fd) = (&shown.ops, shown.async_fd);
        let whole = (ops.poll_cq, ops.req_notify_cq, ops.post_send, ops.post_recv);
        let result = if let (Some(poll_cq), Some(req_notify_cq), Some(post_send), Some(post_recv)) = whole {
            set_nonblocking(fd).map(|()| Ops { poll_cq, req_notify_cq, post_send, post_recv }).map_err(
                |errno| {
                    let error = VerbsError::new(Call::GetAsyncEvent, device.name(), errno);
                    Unavailable { what: Lacking::Device(device.name().to_owned()), reason: error.to_string() }
                },
            )
        } else {
            Err(Unavailable {
                what: Lacking::Provider,
                reason: format!("the plug-in of {} lacks the calls to post or to poll", device.name()),
            })
        };
        match result {
            Ok(ops) => Ok(Self(Arc::new(Opened {
                raw,
                device,
                users: Mutex::default(),
                lost: Mutex::default(),
                ops,
            }))),
            Err(error) => {
                let loaded = device.loaded();
                // SAFETY: nothing was made from it.
                loaded.destroyed(unsafe { (loaded.symbols.close_device)(raw.as_ptr()) });
                Err(error)
            }
        }
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// What the device can do at most.
    ///
    /// # Errors
    ///
    /// The device does not answer.
    pub fn limits(&self) -> Result<DeviceLimits, VerbsError> {
        // SAFETY: numbers and bytes, for which zero is a value.
        let mut raw: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, the structure ours.
        check(Call::QueryDevice, self.name(), unsafe {
            (self.symbols().query_device)(self.raw(), &raw mut raw)
        })?;
        Ok(DeviceLimits::from_raw(&raw))
    }

    /// How a port is. Ports count from 1.
    ///
    /// # Errors
    ///
    /// There is no such port, or the device does not answer.
    pub fn port(&self, port: u8) -> Result<PortInfo, VerbsError> {
        // Longer than any version of the structure: which one is filled depends on the library.
        let mut room = [0u64; 16];
        let on = || format!("{} port {port}", self.name());
        // SAFETY: the context is open, the room ours and longer than what is written.
        check(Call::QueryPort, on, unsafe {
            (self.symbols().query_port)(self.raw(), port, room.as_mut_ptr().cast())
        })?;
        // SAFETY: the room is aligned, long enough, and any bytes are such a structure.
        Ok(PortInfo::from_raw(unsafe { &*room.as_ptr().cast::<ibv_port_attr>() }))
    }

    /// An address of a port.
    ///
    /// # Errors
    ///
    /// There is no such entry, or the device does not answer.
    pub fn gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        let mut gid = ibv_gid::default();
        let on = || format!("{} port {port} gid {index}", self.name());
        // SAFETY: the context is open, the structure ours.
        let rc = unsafe { (self.symbols().query_gid)(self.raw(), port, index.into(), &raw mut gid) };
        check(Call::QueryGid, on, rc)?;
        Ok(Gid(gid.raw))
    }

    /// An address of a port with its kind and its network interface. The kind is [`GidKind::Unknown`] where the library is
    /// too old to say.
    ///
    /// # Errors
    ///
    /// There is no such entry, or the device does not answer.
    pub fn gid_entry(&self, port: u8, index: u8) -> Result<GidEntry, VerbsError> {
        let Some(query) = self.symbols().query_gid_ex else {
            let gid = self.gid(port, index)?;
            return Ok(GidEntry { gid, index, kind: GidKind::Unknown, interface: None });
        };
        let mut raw = ibv_gid_entry::default();
        let size = size_of::<ibv_gid_entry>();
        let on = || format!("{} port {port} gid {index}", self.name());
        // SAFETY: the context is open, the structure ours and as long as it is said to be.
        let rc = unsafe { query(self.raw(), port.into(), index.into(), &raw mut raw, 0, size) };
        check(Call::QueryGid, on, rc)?;
        Ok(GidEntry::from_raw(&raw, index))
    }

    /// A partition key of a port, in the host's byte order.
    ///
    /// # Errors
    ///
    /// There is no such entry, or the device does not answer.
    pub fn pkey(&self, port: u8, index: u16) -> Result<u16, VerbsError> {
        let mut pkey = 0u16;
        let on = || format!("{} port {port} pkey {index}", self.name());
        // SAFETY: the context is open, the number ours.
        let rc = unsafe { (self.symbols().query_pkey)(self.raw(), port, index.into(), &raw mut pkey) };
        check(Call::QueryPkey, on, rc)?;
        Ok(u16::from_be(pkey))
    }

    /// How many completion vectors there are: interrupts that completion queues can be spread over.
    #[must_use]
    pub fn completion_vectors(&self) -> u32 {
        // SAFETY: the context is open.
        u32::try_from(unsafe { self.0.raw.as_ref() }.num_comp_vectors).unwrap_or(0)
    }

    /// Becomes readable when [`Self::next_event`] has something.
    #[must_use]
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open.
        let fd = unsafe { self.0.raw.as_ref() }.async_fd;
        // SAFETY: the descriptor stays open while the context does.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// What the device told since, one event at a time; none if there is none now. Never waits.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn next_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        let mut raw = ibv_async_event { element: ibv_async_element { port_num: 0 }, event_type: 0 };
        // SAFETY: the context is open, the structure ours. The descriptor does not block.
        if unsafe { (self.symbols().get_async_event)(self.raw(), &raw mut raw) } != 0 {
            return match last_errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                errno => Err(VerbsError::new(Call::GetAsyncEvent, self.name(), errno)),
            };
        }
        // SAFETY: just filled by the library; what it points to is not destroyed before the event is acknowledged.
        let event = unsafe { AsyncEvent::from_raw(&raw) };
        // SAFETY: acknowledged once, and not used after.
        unsafe { (self.symbols().ack_async_event)(&raw mut raw) };
        Ok(Some(event))
    }

    /// A new protection domain: what registrations and queue pairs that belong together are made in.
    ///
    /// # Errors
    ///
    /// The device is out of them.
    pub fn protection_domain(&self) -> Result<ProtectionDomain, VerbsError> {
        ProtectionDomain::new(self)
    }

    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.0.raw.as_ptr()
    }

    pub(crate) fn symbols(&self) -> &Symbols {
        &self.loaded().symbols
    }

    pub(crate) fn loaded(&self) -> &Loaded {
        self.0.device.loaded()
    }

    /// Notes a queue or queue pair, until the note is dropped.
    pub(crate) fn user(&self) -> User {
        self.0.users().count += 1;
        User(self.clone())
    }

    /// Gives a registration to be ended when no queue and no queue pair is left, which may be now.
    pub(crate) fn end_later(&self, region: RawRegion) {
        let mut users = self.0.users();
        if users.count > 0 {
            users.waiting.push(region);
        } else {
            drop(users);
            drop(region);
        }
    }

    /// Keeps memory in place until the context is closed.
    pub(crate) fn keep_until_closed(&self, keep: Keep) {
        self.0.lost.lock().unwrap_or_else(PoisonError::into_inner).push(keep);
    }
}

impl Opened {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let loaded = self.device.loaded();
        // SAFETY: whatever was made from the context had a share of it, and is gone.
        let is_closed = loaded.destroyed(unsafe { (loaded.symbols.close_device)(self.raw.as_ptr()) });
        let lost = std::mem::take(self.lost.get_mut().unwrap_or_else(PoisonError::into_inner));
        if !is_closed {
            // The device may still touch that memory.
            lost.into_iter().for_each(std::mem::forget);
        }
    }
}

/// A note that a queue or a queue pair exists.
pub(crate) struct User(Context);

impl Drop for User {
    fn drop(&mut self) {
        let mut users = self.0.0.users();
        users.count -= 1;
        let ended = if users.count == 0 { std::mem::take(&mut users.waiting) } else { Vec::new() };
        drop(users);
        drop(ended);
    }
}

/// What a call that returns an error number says.
pub(crate) fn check(call: Call, on: impl Place, rc: c_int) -> Result<(), VerbsError> {
    match rc {
        0 => Ok(()),
        // Some of the library's functions return -1 and leave the reason in `errno`.
        -1 => Err(VerbsError::last(call, on.place())),
        errno => Err(VerbsError::new(call, on.place(), errno.saturating_abs())),
    }
}

/// What a call was made on, put into words only when it failed.
pub(crate) trait Place {
    fn place(self) -> String;
}

impl Place for &str {
    fn place(self) -> String {
        self.to_owned()
    }
}

impl<F: FnOnce() -> String> Place for F {
    fn place(self) -> String {
        self()
    }
}

/// The text of a fixed-size field.
pub(crate) fn text(field: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|c| c.to_ne_bytes()[0]).collect();
    CStr::from_bytes_until_nul(&bytes).map(|t| t.to_string_lossy().into_owned()).unwrap_or_default()
}

pub(crate) fn set_nonblocking(fd: RawFd) -> Result<(), i32> {
    // SAFETY: the descriptor is the library's, which leaves its mode to us.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(last_errno());
    }
    // SAFETY: as above.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}
