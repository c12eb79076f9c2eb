//! Completions: where they arrive, how to wait for them, and what they say.

use std::ffi::c_int;
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::context::{Context, User, check, set_nonblocking};
use crate::error::{Call, VerbsError, last_errno};
use crate::ffi::*;

/// How a request ended, by the library's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

#[expect(missing_docs, reason = "each is the status of that name")]
impl Status {
    pub const SUCCESS: Self = Self(IBV_WC_SUCCESS);
    pub const LOC_LEN_ERR: Self = Self(IBV_WC_LOC_LEN_ERR);
    pub const LOC_QP_OP_ERR: Self = Self(IBV_WC_LOC_QP_OP_ERR);
    pub const LOC_PROT_ERR: Self = Self(IBV_WC_LOC_PROT_ERR);
    pub const WR_FLUSH_ERR: Self = Self(IBV_WC_WR_FLUSH_ERR);
    pub const REM_INV_REQ_ERR: Self = Self(IBV_WC_REM_INV_REQ_ERR);
    pub const REM_ACCESS_ERR: Self = Self(IBV_WC_REM_ACCESS_ERR);
    pub const REM_OP_ERR: Self = Self(IBV_WC_REM_OP_ERR);
    pub const RETRY_EXC_ERR: Self = Self(IBV_WC_RETRY_EXC_ERR);
    pub const RNR_RETRY_EXC_ERR: Self = Self(IBV_WC_RNR_RETRY_EXC_ERR);
    pub const FATAL_ERR: Self = Self(IBV_WC_FATAL_ERR);
    pub const GENERAL_ERR: Self = Self(IBV_WC_GENERAL_ERR);

    /// Whether the request did what it was to do.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 == IBV_WC_SUCCESS
    }

    /// Whether the request was not begun, or not finished, because its queue pair had failed before: the reason is in an
    /// earlier completion.
    #[must_use]
    pub const fn is_flush(self) -> bool {
        self.0 == IBV_WC_WR_FLUSH_ERR
    }

    const fn words(self) -> Option<&'static str> {
        Some(match self.0 {
            IBV_WC_SUCCESS => "success",
            IBV_WC_LOC_LEN_ERR => "LOC_LEN_ERR: the request is longer than the device takes",
            IBV_WC_LOC_QP_OP_ERR => "LOC_QP_OP_ERR: the queue pair does not take this request",
            IBV_WC_LOC_PROT_ERR => "LOC_PROT_ERR: the local key does not cover the local range",
            IBV_WC_WR_FLUSH_ERR => "WR_FLUSH_ERR: the queue pair had failed before",
            IBV_WC_MW_BIND_ERR => "MW_BIND_ERR: a memory window could not be bound",
            IBV_WC_BAD_RESP_ERR => "BAD_RESP_ERR: the peer's answer made no sense",
            IBV_WC_LOC_ACCESS_ERR => "LOC_ACCESS_ERR: the local range does not permit this",
            IBV_WC_REM_INV_REQ_ERR => "REM_INV_REQ_ERR: the peer's device does not take this request",
            IBV_WC_REM_ACCESS_ERR => {
                "REM_ACCESS_ERR: the remote key does not cover the remote range, or not for this"
            }
            IBV_WC_REM_OP_ERR => "REM_OP_ERR: the peer's device could not finish the request",
            IBV_WC_RETRY_EXC_ERR => "RETRY_EXC_ERR: the peer's device does not answer",
            IBV_WC_RNR_RETRY_EXC_ERR => "RNR_RETRY_EXC_ERR: the peer posts no receives",
            IBV_WC_REM_ABORT_ERR => "REM_ABORT_ERR: the peer aborted the request",
            IBV_WC_FATAL_ERR => "FATAL_ERR: the device failed",
            IBV_WC_RESP_TIMEOUT_ERR => "RESP_TIMEOUT_ERR: no answer in time",
            IBV_WC_GENERAL_ERR => "GENERAL_ERR: the transport failed",
            _ => return None,
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            Some(words) => f.write_str(words),
            None => write!(f, "status {}", self.0),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A finished request.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Completion(ibv_wc);

impl Completion {
    /// The number that the request was posted with.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// How it ended. Unless it succeeded, only [`Self::id`], [`Self::queue_pair`] and [`Self::vendor_error`] mean anything
    /// besides.
    #[must_use]
    pub const fn status(&self) -> Status {
        Status(self.0.status)
    }

    /// The number of the queue pair it was posted to.
    #[must_use]
    pub const fn queue_pair(&self) -> u32 {
        self.0.qp_num
    }

    /// The bytes that a READ or a receive brought.
    #[must_use]
    pub const fn bytes(&self) -> u32 {
        self.0.byte_len
    }

    /// The number that came with a WRITE or a SEND.
    #[must_use]
    pub const fn immediate(&self) -> Option<u32> {
        if self.0.wc_flags & IBV_WC_WITH_IMM != 0 { Some(u32::from_be(self.0.imm_data)) } else { None }
    }

    /// Whether it is of a receive.
    #[must_use]
    pub const fn is_receive(&self) -> bool {
        self.0.opcode & IBV_WC_OP_RECV != 0
    }

    /// The maker's number for the reason of a failure.
    #[must_use]
    pub const fn vendor_error(&self) -> u32 {
        self.0.vendor_err
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("id", &self.id())
            .field("status", &self.status())
            .field("queue_pair", &self.queue_pair())
            .field("bytes", &self.bytes())
            .field("vendor_error", &self.vendor_error())
            .finish_non_exhaustive()
    }
}

/// Where armed completion queues say that they have something. Copies are the same.
#[derive(Clone)]
pub struct CompletionChannel(Arc<Channel>);

struct Channel {
    raw: NonNull<ibv_comp_channel>,
    context: Context,
}

// SAFETY: libibverbs may be called from any thread on any of its objects.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Drop for Channel {
    fn drop(&mut self) {
        let loaded = self.context.loaded();
        // SAFETY: queues on the channel had a share of it, and are gone.
        loaded.destroyed(unsafe { (loaded.symbols.destroy_comp_channel)(self.raw.as_ptr()) });
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel").field("fd", &self.fd()).finish()
    }
}

impl CompletionChannel {
    /// Becomes readable when [`Self::next`] has something.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists.
        let fd = unsafe { self.0.raw.as_ref() }.fd;
        // SAFETY: the descriptor stays open while the channel exists.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// The cookie of the next completion queue that has something, each once for each time it was armed; none if there is
    /// none now. Never waits. Arm the queue again and then poll it, in this order, or a completion may be missed.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn next(&self) -> Result<Option<usize>, VerbsError> {
        let symbols = self.0.context.symbols();
        let (mut queue, mut cookie) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel exists, the places are ours. The descriptor does not block.
        if unsafe { (symbols.get_cq_event)(self.0.raw.as_ptr(), &raw mut queue, &raw mut cookie) } != 0 {
            return match last_errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                errno => Err(VerbsError::new(Call::GetCqEvent, self.0.context.name(), errno)),
            };
        }
        // SAFETY: a queue is not destroyed before its events are acknowledged, and this one is here.
        unsafe { (symbols.ack_cq_events)(queue, 1) };
        Ok(Some(cookie.addr()))
    }
}

/// How a completion queue is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueSize {
    /// Completions it holds at least. Requests beyond it overrun the queue, which is fatal to it and its queue pairs.
    pub entries: u32,
    /// Which of [`Context::completion_vectors`] it uses.
    pub vector: u32,
}

/// Where the completions of any number of queue pairs arrive. Copies are the same; it is destroyed after the last of them
/// and of its queue pairs.
#[derive(Clone)]
pub struct CompletionQueue(Arc<Queue>);

/// Fields are dropped in this order.
struct Queue {
    raw: NonNull<ibv_cq>,
    _user: User,
    channel: Option<CompletionChannel>,
    context: Context,
}

// SAFETY: libibverbs may be called from any thread on any of its objects.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        let loaded = self.context.loaded();
        // SAFETY: queue pairs had a share of it, and are gone; its events have been acknowledged as they came.
        loaded.destroyed(unsafe { (loaded.symbols.destroy_cq)(self.raw.as_ptr()) });
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("entries", &self.entries()).finish_non_exhaustive()
    }
}

impl Context {
    /// A new completion channel.
    ///
    /// # Errors
    ///
    /// The process is out of descriptors.
    pub fn completion_channel(&self) -> Result<CompletionChannel, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { (self.symbols().create_comp_channel)(self.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last(Call::CreateCompChannel, self.name()))?;
        let channel = CompletionChannel(Arc::new(Channel { raw, context: self.clone() }));
        set_nonblocking(channel.fd().as_raw_fd())
            .map_err(|errno| VerbsError::new(Call::CreateCompChannel, self.name(), errno))?;
        Ok(channel)
    }

    /// A new completion queue. If it is to be armed, it needs a channel, which tells its cookie.
    ///
    /// # Errors
    ///
    /// The size is more than the device takes, or the device is out of them.
    pub fn completion_queue(
        &self,
        size: QueueSize,
        channel: Option<&CompletionChannel>,
        cookie: usize,
    ) -> Result<CompletionQueue, VerbsError> {
        let on = || format!("{} with {} entries", self.name(), size.entries);
        let number =
            |n: u32| c_int::try_from(n).map_err(|_| VerbsError::new(Call::CreateCq, on(), libc::EINVAL));
        let (entries, vector) = (number(size.entries)?, number(size.vector)?);
        if channel.is_some_and(|channel| channel.0.context.raw() != self.raw()) {
            return Err(VerbsError::new(Call::CreateCq, on(), libc::EINVAL));
        }
        let events = channel.map_or(ptr::null_mut(), |channel| channel.0.raw.as_ptr());
        let cookie = ptr::without_provenance_mut(cookie);
        // SAFETY: the context is open and the channel, if any, is of it.
        let raw = unsafe { (self.symbols().create_cq)(self.raw(), entries, cookie, events, vector) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last(Call::CreateCq, on()))?;
        let (user, channel) = (self.user(), channel.cloned());
        Ok(CompletionQueue(Arc::new(Queue { raw, _user: user, channel, context: self.clone() })))
    }
}

impl CompletionQueue {
    /// How many completions it holds: as many as were asked for, or more.
    #[must_use]
    pub fn entries(&self) -> u32 {
        // SAFETY: the queue exists.
        u32::try_from(unsafe { self.0.raw.as_ref() }.cqe).unwrap_or(0)
    }

    /// The channel it was made with.
    #[must_use]
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.0.channel.as_ref()
    }

    /// Has the channel told of the next completion that arrives, once; of the next *solicited* one if `solicited`. What
    /// has arrived before is not told of: poll after arming.
    ///
    /// # Errors
    ///
    /// The queue has no channel, or has failed.
    pub fn arm(&self, solicited: bool) -> Result<(), VerbsError> {
        let on = self.0.context.name();
        if self.0.channel.is_none() {
            return Err(VerbsError::new(Call::ReqNotifyCq, on, libc::EINVAL));
        }
        // SAFETY: the queue exists.
        let rc = unsafe { (self.0.context.0.ops.req_notify_cq)(self.0.raw.as_ptr(), solicited.into()) };
        check(Call::ReqNotifyCq, on, rc)
    }

    /// Takes what has arrived, into `room`, and says how many these are. Fewer than there is room for means that there are
    /// no more now. Never waits.
    ///
    /// # Errors
    ///
    /// The queue has failed; what it held is lost.
    pub fn poll<'a>(&self, room: &'a mut [Completion]) -> Result<&'a [Completion], VerbsError> {
        let len = c_int::try_from(room.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue exists; a completion is the library's structure, and there is room for so many.
        let count =
            unsafe { (self.0.context.0.ops.poll_cq)(self.0.raw.as_ptr(), len, room.as_mut_ptr().cast()) };
        match usize::try_from(count) {
            Ok(count) => Ok(&room[..count.min(room.len())]),
            Err(_) => Err(VerbsError::new(Call::PollCq, self.0.context.name(), count.saturating_neg())),
        }
    }

    pub(crate) fn raw(&self) -> *mut ibv_cq {
        self.0.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }
}
