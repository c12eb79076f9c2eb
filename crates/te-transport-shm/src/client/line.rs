//! A live connection to a target, and the buffers that are attached over it.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::RwLock;
use te_segment::AddressRange;
use te_transport::Op;

use crate::frame::Frame;
use crate::map::Mapping;
use crate::page::ControlPage;
use crate::process::Process;
use crate::socket::Socket;

/// What copies need of a connection. It lives as long as anything that was attached over it.
pub(crate) struct Ties {
    pub(crate) socket: Socket,
    pub(crate) page: ControlPage,
    pub(crate) pid: i32,
    /// The peer's process if its memory may be accessed, else why not.
    pub(crate) process: Result<Process, String>,
    lost: AtomicBool,
    copying: AtomicUsize,
}

/// A copy under way. The socket is not closed before it ends.
pub(crate) struct Copying<'a>(&'a Ties);

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        self.0.copying.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Ties {
    pub(crate) fn new(socket: Socket, page: ControlPage, pid: i32, process: Result<Process, String>) -> Self {
        Self { socket, page, pid, process, lost: AtomicBool::new(false), copying: AtomicUsize::new(0) }
    }

    /// Counts a copy, unless the connection is lost.
    pub(crate) fn enter(&self) -> Option<Copying<'_>> {
        // Counted before looking, and `lose` says so before counting: one of the two sees the other.
        self.copying.fetch_add(1, Ordering::SeqCst);
        let copying = Copying(self);
        (!self.lost.load(Ordering::SeqCst)).then_some(copying)
    }

    /// No copy begins any more.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.copying.load(Ordering::SeqCst) == 0
    }
}

/// A buffer of the peer that can be used.
pub(crate) struct Attached {
    pub(crate) ties: Arc<Ties>,
    generation: u64,
    /// Its number in the page.
    pub(crate) buffer: u32,
    pub(crate) range: AddressRange,
    read: bool,
    write: bool,
    /// Present until the end; without a mapping it is reached through the kernel.
    memory: Option<Mapping>,
}

impl Attached {
    /// Takes the target at its word, as far as this process cannot be hurt by it.
    pub(crate) fn open(ties: &Arc<Ties>, frame: &Frame, file: Option<OwnedFd>) -> Result<Self, String> {
        let Frame::Attached { generation, buffer, address, len, read, write, .. } = *frame else {
            return Err("no buffer is attached by this frame".to_owned());
        };
        if buffer >= ties.page.buffers() {
            return Err(format!("the peer counts buffer {buffer} of {}", ties.page.buffers()));
        }
        let range = AddressRange::new(address, len).map_err(|error| format!("the peer's buffer: {error}"))?;
        let mut attached = Self { ties: ties.clone(), generation, buffer, range, read, write, memory: None };
        if let Some(file) = file {
            let mapping = Mapping::open(file.as_fd(), len, write)
                .map_err(|error| format!("the file of the peer's buffer {range} is refused: {error}"))?;
            attached.memory = Some(mapping);
        }
        Ok(attached)
    }

    pub(crate) fn permits(&self, op: Op) -> bool {
        match op {
            Op::Read => self.read,
            Op::Write => self.write,
        }
    }

    pub(crate) fn mapping(&self) -> Option<&Mapping> {
        self.memory.as_ref()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // Unmapped before the number is given back: the target may use it for another buffer then.
        self.memory = None;
        let frame = Frame::Detach { generation: self.generation, buffer: self.buffer };
        // Without room, or without peer, the number ends with the connection.
        let _ = self.ties.socket.try_send(&frame, None);
    }
}

/// A connection and what is attached over it, shared by all threads.
pub(crate) struct Line {
    pub(crate) ties: Arc<Ties>,
    attached: RwLock<HashMap<u64, Arc<Attached>>>,
}

impl Line {
    pub(crate) fn new(ties: Ties) -> Self {
        Self { ties: Arc::new(ties), attached: RwLock::default() }
    }

    pub(crate) fn find(&self, generation: u64) -> Option<Arc<Attached>> {
        self.attached.read().get(&generation).cloned()
    }

    pub(crate) fn keep(&self, attached: Arc<Attached>) {
        // What was there before is dropped outside of the lock.
        let _before = self.attached.write().insert(attached.generation, attached);
    }

    pub(crate) fn forget(&self, generation: u64) {
        let _before = self.attached.write().remove(&generation);
    }

    pub(crate) fn forget_all(&self) {
        let _before = std::mem::take(&mut *self.attached.write());
    }

    /// How many buffers are mapped.
    pub(crate) fn mappings(&self) -> usize {
        self.attached.read().values().filter(|attached| attached.memory.is_some()).count()
    }
}
