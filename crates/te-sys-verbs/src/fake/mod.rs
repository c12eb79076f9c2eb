//! For tests: NICs in this process, with faults on demand.
//!
//! A [`Fabric`] is a network of NICs. [`Fabric::verbs`] is a [`Verbs`] whose functions are this module's, so that everything
//! above it runs as it does on hardware: requests are carried out by copying between registered ranges, with keys, bounds,
//! access, protection domains and states checked, and completions arrive in queues and channels with real descriptors.
//! Requests run when they are posted, in the thread that posts, unless the fabric is told to hold them.
//!
//! It does what no hardware does when asked to: see the methods of [`Fabric`]. It records every call, so that a test can
//! ask for their order, and counts what exists.
//!
//! ```
//! use te_sys_verbs::fake::{Fabric, Fault, Nic};
//! use te_sys_verbs::{Call, Lacking};
//!
//! let fabric = Fabric::new([Nic::new("fake0"), Nic::new("fake1")]);
//! fabric.fail(Fault::new(Call::OpenDevice, libc::EACCES).on("fake1"));
//! let verbs = fabric.verbs();
//! assert!(verbs.open("fake0").is_ok());
//! assert_eq!(verbs.open("fake1").unwrap_err().what, Lacking::Permission("fake1".into()));
//! ```

mod backing;
mod calls;
mod devices;
mod engine;
mod objects;
mod pairs;
mod queues;
mod state;

use std::fmt;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard};

use crate::completion::Status;
use crate::error::Call;
use crate::event::EventKind;
use crate::port::{Gid, LinkLayer, Mtu};
use crate::verbs::Verbs;
use backing::DeviceMemory;
use state::{Core, State};

/// A NIC of a fabric, with one port.
#[derive(Debug, Clone)]
pub struct Nic {
    /// Its name.
    pub name: String,
    /// What its port is connected to.
    pub link_layer: LinkLayer,
    /// Its address in an InfiniBand subnet.
    pub lid: u16,
    /// Its table of addresses. If it is empty, the fabric fills in a link-local one and, at index 1, one of IPv4.
    pub gids: Vec<Gid>,
    /// What its port uses.
    pub mtu: Mtu,
    /// READs that a queue pair of it has under way at a time.
    pub reads: u8,
    /// Entries of its largest completion queue.
    pub completion_queue_entries: u32,
    /// Bytes of its largest registration.
    pub registration_bytes: u64,
}

impl Nic {
    /// RoCE, with an MTU of 4096.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            link_layer: LinkLayer::Ethernet,
            lid: 0,
            gids: Vec::new(),
            mtu: Mtu::B4096,
            reads: 16,
            completion_queue_entries: 1 << 16,
            registration_bytes: 1 << 40,
        }
    }
}

/// Calls that fail: of this kind, after so many that do not, so many times.
#[derive(Debug, Clone)]
pub struct Fault {
    call: Call,
    nic: Option<String>,
    skip: u64,
    times: u64,
    errno: i32,
}

impl Fault {
    /// Every such call fails with this error number.
    #[must_use]
    pub const fn new(call: Call, errno: i32) -> Self {
        Self { call, nic: None, skip: 0, times: u64::MAX, errno }
    }

    /// Only on this NIC.
    #[must_use]
    pub fn on(mut self, nic: &str) -> Self {
        self.nic = Some(nic.to_owned());
        self
    }

    /// Only after so many that succeed.
    #[must_use]
    pub const fn after(mut self, calls: u64) -> Self {
        self.skip = calls;
        self
    }

    /// Only so many.
    #[must_use]
    pub const fn times(mut self, calls: u64) -> Self {
        self.times = calls;
        self
    }
}

/// A call that was made, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Which.
    pub call: Call,
    /// On which NIC; empty for those on none.
    pub nic: String,
    /// The number of what it made, changed or destroyed: a key, a queue pair's number or a handle.
    pub handle: u32,
    /// What it returned; 0 if it succeeded.
    pub errno: i32,
}

/// How many of each thing exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "each is the number of things of that name")]
pub struct Live {
    pub lists: usize,
    pub contexts: usize,
    pub domains: usize,
    pub regions: usize,
    pub channels: usize,
    pub completion_queues: usize,
    pub queue_pairs: usize,
}

/// A network of NICs in this process. It must outlive the [`Verbs`] that it gives out.
pub struct Fabric(Arc<Core>);

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").field("live", &self.live()).finish_non_exhaustive()
    }
}

impl Fabric {
    /// With these NICs, all connected with each other.
    pub fn new(nics: impl IntoIterator<Item = Nic>) -> Self {
        let mut nics: Vec<_> = nics.into_iter().collect();
        for (number, nic) in (1u8..).zip(&mut nics) {
            if nic.gids.is_empty() {
                let mut link_local = [0; 16];
                (link_local[0], link_local[1], link_local[15]) = (0xfe, 0x80, number);
                nic.gids =
                    vec![Gid(link_local), Gid(Ipv4Addr::new(10, 99, 0, number).to_ipv6_mapped().octets())];
            }
        }
        Self(Core::new(nics))
    }

    /// A library that finds every NIC.
    #[must_use]
    pub fn verbs(&self) -> Verbs {
        let all = (0..self.state().nics.len()).collect();
        Verbs::from_symbols(calls::symbols(state::enter(&self.0, all)))
    }

    /// A library that finds these NICs only, as on one host of several.
    #[must_use]
    pub fn verbs_with(&self, nics: &[&str]) -> Verbs {
        let state = self.state();
        let found = nics.iter().filter_map(|name| state.nic(name)).collect();
        drop(state);
        Verbs::from_symbols(calls::symbols(state::enter(&self.0, found)))
    }

    /// Has calls fail from now on.
    pub fn fail(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    /// Ends every fault of [`Self::fail`], [`Self::refuse_request`], [`Self::limit_keys`] and [`Self::complete_with`].
    pub fn heal(&self) {
        let mut state = self.state();
        state.faults.clear();
        state.refusals.clear();
        state.outcomes.clear();
        state.nics.iter_mut().for_each(|nic| nic.keys = None);
    }

    /// Has a NIC refuse the next list of requests at the one with this place in it, after it has accepted those before. Lists
    /// that are shorter are accepted.
    pub fn refuse_request(&self, nic: &str, place: usize, errno: i32) {
        self.state().refusals.push((nic.to_owned(), place, errno));
    }

    /// Has requests from one NIC to another end with this status, so many times. They move no bytes.
    pub fn complete_with(&self, from: &str, to: &str, status: Status, times: u64) {
        self.state().outcomes.push((from.to_owned(), to.to_owned(), status.0, times));
    }

    /// Has a NIC run out of keys: registrations fail with this error number while it has so many.
    pub fn limit_keys(&self, nic: &str, keys: usize, errno: i32) {
        let mut state = self.state();
        if let Some(nic) = state.nic(nic) {
            state.nics[nic].keys = Some((keys, errno));
        }
    }

    /// Places memory of a device, whose bytes are those of a file, at addresses that nothing of this process has. NICs register
    /// it by these if `by_address`, as where a peer-memory driver is loaded, and are refused with EFAULT otherwise. A
    /// descriptor of the file is a dma-buf of it.
    pub fn place_device(&self, start: u64, len: u64, file: OwnedFd, by_address: bool) {
        self.state().devices.push(DeviceMemory { start, len, file, by_address });
    }

    /// Keeps requests under way: what is posted from now on waits for [`Self::release`], or is flushed when its queue pair
    /// fails.
    pub fn hold(&self) {
        self.state().held = true;
    }

    /// Keeps requests of one NIC under way, as [`Self::hold`] does for all.
    pub fn hold_nic(&self, nic: &str) {
        let mut state = self.state();
        if let Some(nic) = state.nic(nic) {
            state.nics[nic].held = true;
        }
    }

    /// Has WRITEs of one NIC that are held be in the network already: when their queue pair fails or goes, they are flushed as
    /// always, and arrive at the peer with [`Self::release`] nevertheless, if its queue pair is still there.
    pub fn linger(&self, nic: &str) {
        let mut state = self.state();
        if let Some(nic) = state.nic(nic) {
            state.nics[nic].lingers = true;
        }
    }

    /// Carries out what was held, in the order of the queue pairs' numbers.
    pub fn release(&self) {
        let mut state = self.state();
        state.arrive_late();
        state.held = false;
        state.nics.iter_mut().for_each(|nic| nic.held = false);
        state.run_all();
    }

    /// Has a NIC tell of an event of the device or of its port, so many times. Events of queues and of queue pairs come by
    /// themselves.
    pub fn raise(&self, nic: &str, kind: EventKind, times: usize) {
        let mut state = self.state();
        let of_object = kind.0 <= EventKind::QP_ACCESS_ERR.0;
        if let Some(nic) = state.nic(nic).filter(|_| !of_object) {
            (0..times).for_each(|_| state.raise_port(nic, kind.0));
        }
    }

    /// Takes a port down or up, which makes an event. Requests of a port that is down end with `RETRY_EXC_ERR`.
    pub fn set_port(&self, nic: &str, active: bool) {
        let mut state = self.state();
        if let Some(nic) = state.nic(nic) {
            state.nics[nic].active = active;
            let kind = if active { EventKind::PORT_ACTIVE } else { EventKind::PORT_ERR };
            state.raise_port(nic, kind.0);
        }
    }

    /// Takes a NIC away, as when a driver is reset: every context of it is told, all that was made from them stops working,
    /// and calls on it fail with EIO, those that destroy as well. Only closing a context succeeds.
    pub fn unplug(&self, nic: &str) {
        let mut state = self.state();
        if let Some(nic) = state.nic(nic) {
            state.unplug(nic);
        }
    }

    /// Brings a NIC back that was taken away. Contexts from before stay dead; it can be opened again.
    pub fn plug(&self, nic: &str) {
        let mut state = self.state();
        if let Some(nic) = state.nic(nic) {
            state.nics[nic].is_there = true;
        }
    }

    /// Changes an address, which makes an event. Queue pairs that are connected to the old one lose their peer.
    pub fn set_gid(&self, nic: &str, index: usize, gid: Gid) {
        let mut state = self.state();
        if let Some(nic) = state.nic(nic) {
            let gids = &mut state.nics[nic].config.gids;
            if gids.len() <= index {
                gids.resize(index + 1, Gid::default());
            }
            gids[index] = gid;
            state.raise_port(nic, EventKind::GID_CHANGE.0);
        }
    }

    /// The address of a NIC with this index; null if it has none.
    #[must_use]
    pub fn gid(&self, nic: &str, index: usize) -> Gid {
        let state = self.state();
        let gids = state.nic(nic).map(|nic| &state.nics[nic].config.gids);
        gids.and_then(|gids| gids.get(index)).copied().unwrap_or_default()
    }

    /// The calls that were made since the beginning or since the last time, without those that only ask, poll or post.
    #[must_use]
    pub fn take_records(&self) -> Vec<Record> {
        std::mem::take(&mut self.state().records)
    }

    /// What exists now.
    #[must_use]
    pub fn live(&self) -> Live {
        self.state().live()
    }

    /// How many lists of requests were posted, that is how often a doorbell was rung, and how many requests were in them.
    #[must_use]
    pub fn posted(&self) -> (u64, u64) {
        self.state().posted
    }

    /// How many READs and WRITEs of a NIC have moved their bytes, and how many bytes these were.
    #[must_use]
    pub fn carried(&self, nic: &str) -> (u64, u64) {
        let state = self.state();
        state.nic(nic).map_or((0, 0), |nic| state.nics[nic].carried)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}
