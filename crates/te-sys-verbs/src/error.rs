//! What can go wrong, as values: what is lacking, and which call failed on what.

use std::fmt;
use std::io;

/// RDMA cannot be used here, or not on this device. A retry helps only after what is lacking has been provided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rdma is not available: {what}: {reason}")]
pub struct Unavailable {
    /// What there is not.
    pub what: Lacking,
    /// Why not, and what would provide it.
    pub reason: String,
}

/// What is lacking, from the outermost to the innermost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lacking {
    /// The library, by the name it was looked for.
    Library(String),
    /// A function of the library.
    Symbol(String),
    /// The kernel's part, or the library's plug-in for the device.
    Provider,
    /// The device of this name.
    Device(String),
    /// The right to open the device of this name.
    Permission(String),
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(name) => write!(f, "no library {name}"),
            Self::Symbol(name) => write!(f, "no function {name}"),
            Self::Provider => f.write_str("no provider"),
            Self::Device(name) => write!(f, "no device {name}"),
            Self::Permission(name) => write!(f, "no permission to open {name}"),
        }
    }
}

/// The calls that can fail, and that a fake records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is the function of that name")]
pub enum Call {
    GetDeviceList,
    FreeDeviceList,
    OpenDevice,
    CloseDevice,
    QueryDevice,
    QueryPort,
    QueryGid,
    QueryPkey,
    AllocPd,
    DeallocPd,
    RegMr,
    RegDmabufMr,
    DeregMr,
    CreateCompChannel,
    DestroyCompChannel,
    CreateCq,
    DestroyCq,
    GetCqEvent,
    ReqNotifyCq,
    PollCq,
    CreateQp,
    ModifyQp,
    QueryQp,
    DestroyQp,
    PostSend,
    PostRecv,
    GetAsyncEvent,
    ForkInit,
}

impl Call {
    /// The function's name in rdma-core.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GetDeviceList => "ibv_get_device_list",
            Self::FreeDeviceList => "ibv_free_device_list",
            Self::OpenDevice => "ibv_open_device",
            Self::CloseDevice => "ibv_close_device",
            Self::QueryDevice => "ibv_query_device",
            Self::QueryPort => "ibv_query_port",
            Self::QueryGid => "ibv_query_gid",
            Self::QueryPkey => "ibv_query_pkey",
            Self::AllocPd => "ibv_alloc_pd",
            Self::DeallocPd => "ibv_dealloc_pd",
            Self::RegMr => "ibv_reg_mr",
            Self::RegDmabufMr => "ibv_reg_dmabuf_mr",
            Self::DeregMr => "ibv_dereg_mr",
            Self::CreateCompChannel => "ibv_create_comp_channel",
            Self::DestroyCompChannel => "ibv_destroy_comp_channel",
            Self::CreateCq => "ibv_create_cq",
            Self::DestroyCq => "ibv_destroy_cq",
            Self::GetCqEvent => "ibv_get_cq_event",
            Self::ReqNotifyCq => "ibv_req_notify_cq",
            Self::PollCq => "ibv_poll_cq",
            Self::CreateQp => "ibv_create_qp",
            Self::ModifyQp => "ibv_modify_qp",
            Self::QueryQp => "ibv_query_qp",
            Self::DestroyQp => "ibv_destroy_qp",
            Self::PostSend => "ibv_post_send",
            Self::PostRecv => "ibv_post_recv",
            Self::GetAsyncEvent => "ibv_get_async_event",
            Self::ForkInit => "ibv_fork_init",
        }
    }
}

/// A call on a device failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerbsError {
    /// Which.
    pub call: Call,
    /// On what: the device, and the range, port or number.
    pub on: String,
    /// The system's number for the reason; 0 if the library gave none.
    pub errno: i32,
}

impl VerbsError {
    pub(crate) fn new(call: Call, on: impl Into<String>, errno: i32) -> Self {
        Self { call, on: on.into(), errno }
    }

    /// Of a call that says why through `errno`.
    pub(crate) fn last(call: Call, on: impl Into<String>) -> Self {
        Self::new(call, on, last_errno())
    }

    /// Whether the same call may succeed later, without anybody changing the set-up.
    #[must_use]
    pub const fn can_retry(&self) -> bool {
        matches!(self.errno, libc::EAGAIN | libc::ENOMEM | libc::EINTR | libc::EBUSY)
    }

    /// What the reason usually means for this call.
    #[must_use]
    pub const fn hint(&self) -> Option<&'static str> {
        let registering = matches!(self.call, Call::RegMr | Call::RegDmabufMr);
        match self.errno {
            libc::EAGAIN if registering => Some(
                "the device is out of memory keys (MKEY), or the limit of locked memory is reached: deregister what is \
                 not needed, look at `rdma resource show` and `ulimit -l`",
            ),
            libc::ENOMEM if registering => Some(
                "the limit of locked memory is reached, the device is out of memory keys (MKEY), or part of the range is not \
                 mapped: raise `ulimit -l`, register fewer or larger ranges",
            ),
            libc::EFAULT if registering => Some(
                "part of the range is not mapped, or it is memory that the device cannot reach: device memory needs a \
                 dma-buf or a peer-memory module",
            ),
            libc::EACCES | libc::EPERM if registering => {
                Some("the memory is read-only and write access was asked for")
            }
            libc::EOPNOTSUPP | libc::ENOSYS if registering => {
                Some("the device or its driver lacks this kind of registration")
            }
            libc::EINVAL if registering => {
                Some("the range is empty or longer than the device takes, or the access is not one it knows")
            }
            libc::ENOMEM => {
                Some("the device or the process is out of this resource: close what is not needed")
            }
            libc::EBUSY => Some("something that was made from it still exists"),
            libc::EIO | libc::ENODEV => Some("the device was reset or removed: open it anew"),
            libc::EMFILE | libc::ENFILE => Some("out of file descriptors: raise `ulimit -n`"),
            _ => None,
        }
    }
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} failed: {}", self.call.name(), self.on, errno_text(self.errno))?;
        if let Some(hint) = self.hint() {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for VerbsError {}

/// The system's words for an error number.
pub(crate) fn errno_text(errno: i32) -> String {
    if errno == 0 { "no reason given".to_owned() } else { io::Error::from_raw_os_error(errno).to_string() }
}

/// The reason of the last failed call of this thread.
pub(crate) fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
