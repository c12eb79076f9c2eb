//! The loaded library, and the devices it finds.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libloading::Library;

use crate::completion::Status;
use crate::context::Context;
use crate::error::{Call, Lacking, Unavailable, VerbsError, errno_text, last_errno};
use crate::ffi::{IBV_FORK_DISABLED, ibv_device};
use crate::table::Symbols;

/// What the library is called where it is installed.
pub const DEFAULT_LIBRARY: &str = "libibverbs.so.1";

const INSTALL: &str = "install rdma-core (libibverbs1 and ibverbs-providers)";

/// libibverbs, loaded. Copies are cheap and the same library; it stays loaded until the process ends, since its plug-ins
/// cannot be unloaded.
#[derive(Clone)]
pub struct Verbs(pub(crate) Arc<Loaded>);

pub(crate) struct Loaded {
    pub(crate) symbols: Symbols,
    pub(crate) undestroyed: AtomicU64,
}

impl Loaded {
    /// Counts what could not be destroyed; its memory is never given back.
    pub(crate) fn destroyed(&self, result: c_int) -> bool {
        if result != 0 {
            self.undestroyed.fetch_add(1, Ordering::Relaxed);
        }
        result == 0
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verbs").field("undestroyed", &self.undestroyed()).finish_non_exhaustive()
    }
}

impl Verbs {
    /// Loads the system's libibverbs.
    ///
    /// # Errors
    ///
    /// There is none, or one that lacks a function.
    pub fn load() -> Result<Self, Unavailable> {
        // SAFETY: under this name there is rdma-core's library or nothing.
        unsafe { Self::load_from(DEFAULT_LIBRARY) }
    }

    /// Loads libibverbs from this path, or by this name from the system's folders.
    ///
    /// # Safety
    ///
    /// What is there must be libibverbs, or have its functions with their signatures and their contracts.
    ///
    /// # Errors
    ///
    /// There is none, or one that lacks a function.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Self, Unavailable> {
        let path = path.as_ref();
        // SAFETY: the caller vouches for the library and so for its initialisers.
        let library = unsafe { Library::new(path) }.map_err(|error| Unavailable {
            what: Lacking::Library(path.display().to_string()),
            reason: format!("{error}; {INSTALL}"),
        })?;
        let library = ManuallyDrop::new(library);
        // SAFETY: the caller vouches for the signatures; the library is never unloaded.
        let symbols = unsafe { Symbols::find(&library) }?;
        Ok(Self::from_symbols(symbols))
    }

    pub(crate) fn from_symbols(symbols: Symbols) -> Self {
        Self(Arc::new(Loaded { symbols, undestroyed: AtomicU64::new(0) }))
    }

    /// The devices there are, in the library's order. None is not an error if the kernel has none either.
    ///
    /// # Errors
    ///
    /// The kernel has no RDMA, or devices for which the library has no plug-in.
    pub fn devices(&self) -> Result<Vec<Device>, Unavailable> {
        let provider = |reason| Unavailable { what: Lacking::Provider, reason };
        let mut count: c_int = self.0.symbols.tag;
        // SAFETY: the count is ours to be written.
        let raw = unsafe { (self.0.symbols.get_device_list)(&raw mut count) };
        let Some(raw) = NonNull::new(raw) else {
            let reason = match last_errno() {
                libc::ENOSYS => {
                    "the kernel has no RDMA support: load ib_uverbs and the driver of the device".to_owned()
                }
                errno => format!("{} failed: {}", Call::GetDeviceList.name(), errno_text(errno)),
            };
            return Err(provider(reason));
        };
        let list = Arc::new(List { loaded: Arc::clone(&self.0), raw });
        // SAFETY: the library wrote as many pointers as it counted.
        let pointers = unsafe { slice::from_raw_parts(raw.as_ptr(), usize::try_from(count).unwrap_or(0)) };
        let mut devices = Vec::with_capacity(pointers.len());
        for raw in pointers.iter().filter_map(|raw| NonNull::new(*raw)) {
            // SAFETY: the device is on a list that has not been freed.
            let name = unsafe { (self.0.symbols.get_device_name)(raw.as_ptr()) };
            if name.is_null() {
                continue;
            }
            // SAFETY: the library's names end with a zero and live as long as the list.
            let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
            devices.push(Device { list: Arc::clone(&list), raw, name });
        }
        if devices.is_empty() && self.0.symbols.tag == 0 {
            let undriven = kernel_devices();
            if !undriven.is_empty() {
                let names = undriven.join(", ");
                return Err(provider(format!("the kernel has {names}, but no plug-in drives it; {INSTALL}")));
            }
        }
        Ok(devices)
    }

    /// Opens the device of this name.
    ///
    /// # Errors
    ///
    /// There is none of this name, or it cannot be opened.
    pub fn open(&self, name: &str) -> Result<Context, Unavailable> {
        let devices = self.devices()?;
        let Some(device) = devices.iter().find(|d| d.name == name) else {
            let names: Vec<_> = devices.iter().map(Device::name).collect();
            let reason = match names.as_slice() {
                [] => "there is none at all".to_owned(),
                names => format!("there are {}", names.join(", ")),
            };
            return Err(Unavailable { what: Lacking::Device(name.to_owned()), reason });
        };
        device.open()
    }

    /// Makes `fork` safe for processes that register memory. To be called before the first registration; where the kernel
    /// copies registered pages at a fork anyway, it costs nothing.
    ///
    /// # Errors
    ///
    /// Memory has been registered already, or the kernel lacks support.
    pub fn fork_init(&self) -> Result<(), VerbsError> {
        // SAFETY: takes nothing.
        match unsafe { (self.0.symbols.fork_init)() } {
            0 => Ok(()),
            errno => Err(VerbsError::new(Call::ForkInit, "this process", errno)),
        }
    }

    /// Whether a fork is safe now; unknown if the library is too old to say.
    #[must_use]
    pub fn is_fork_safe(&self) -> Option<bool> {
        let status = self.0.symbols.is_fork_initialized?;
        // SAFETY: takes nothing.
        Some(unsafe { status() } != IBV_FORK_DISABLED)
    }

    /// The library's words for a completion's status.
    #[must_use]
    pub fn status_text(&self, status: Status) -> String {
        // SAFETY: any number is answered.
        let text = unsafe { (self.0.symbols.wc_status_str)(status.0) };
        if text.is_null() {
            return status.to_string();
        }
        // SAFETY: a constant of the library.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// How many objects could not be destroyed when their last handle was dropped. Not 0 is a leak.
    #[must_use]
    pub fn undestroyed(&self) -> u64 {
        self.0.undestroyed.load(Ordering::Relaxed)
    }
}

/// What the kernel knows, whether or not the library can drive it.
fn kernel_devices() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The library's list: freed with the last device and context from it.
struct List {
    loaded: Arc<Loaded>,
    raw: NonNull<*mut ibv_device>,
}

// SAFETY: the list is only read, and freed once; libibverbs may be called from any thread.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: this is the list's last user.
        unsafe { (self.loaded.symbols.free_device_list)(self.raw.as_ptr()) }
    }
}

/// A device that was found. It may not be there any more when it is opened.
#[derive(Clone)]
pub struct Device {
    list: Arc<List>,
    raw: NonNull<ibv_device>,
    name: String,
}

// SAFETY: the structure belongs to the list, which lives as long, and is not written.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Device {
    /// Its name, like `mlx5_0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens it.
    ///
    /// # Errors
    ///
    /// It is gone, somebody else's, or its driver refuses.
    pub fn open(&self) -> Result<Context, Unavailable> {
        // SAFETY: the device is on a list that has not been freed.
        let raw = unsafe { (self.loaded().symbols.open_device)(self.raw.as_ptr()) };
        let errno = last_errno();
        let Some(raw) = NonNull::new(raw) else {
            let name = self.name.clone();
            let words = format!("{} failed: {}", Call::OpenDevice.name(), errno_text(errno));
            return Err(match errno {
                libc::EACCES | libc::EPERM => Unavailable {
                    what: Lacking::Permission(name),
                    reason: format!(
                        "{words}; /dev/infiniband/uverbs* must be readable and writable for this user"
                    ),
                },
                _ => Unavailable { what: Lacking::Device(name), reason: words },
            });
        };
        // SAFETY: the context has just been opened, and is nobody else's.
        unsafe { Context::adopt(raw, self.clone()) }
    }

    pub(crate) fn loaded(&self) -> &Arc<Loaded> {
        &self.list.loaded
    }
}
