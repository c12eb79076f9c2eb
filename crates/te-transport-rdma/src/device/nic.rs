//! A NIC that is open: its queues, the links over it, and whose queue pair is whose.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use te_segment::{Device, Generation, Gid, Incarnation, NicName, SegmentDescriptor};
use te_sys_verbs::MemoryRegion;

use super::link::{Link, LinkKey};
use super::open::OpenDevice;
use super::poll::Taking;
use super::signals::Signals;
use crate::client::Common;
use crate::negotiate::Port;
use crate::store::{Room, Store};
use crate::wire::NicPath;

/// The port and its address as they are now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Own {
    pub(crate) port: Port,
    /// Its number, from 1.
    pub(crate) number: u8,
    pub(crate) gid: Gid,
    /// Its place in the port's table.
    pub(crate) gid_index: u8,
    pub(crate) lid: u16,
}

/// Whose a queue pair is.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) link: Arc<Link>,
    pub(crate) of: Generation,
    pub(crate) lane: usize,
}

/// What a NIC is made of.
pub(crate) struct NicParts {
    pub(crate) name: NicName,
    pub(crate) own: Own,
    pub(crate) signals: Arc<Signals>,
}

/// See the module.
pub(crate) struct Nic {
    parts: NicParts,
    /// None between the end of a device that has failed and its return.
    device: RwLock<Option<Arc<OpenDevice>>>,
    life: AtomicU64,
    own: RwLock<Own>,
    common: Arc<Common>,
    here: NicPath,
    links: Mutex<Store<LinkKey, Arc<Link>>>,
    /// By the numbers of queue pairs.
    pairs: RwLock<HashMap<u32, Owner>>,
    /// By the cookies of queue pairs, which events name.
    cookies: Mutex<HashMap<usize, (Arc<Link>, Generation)>>,
    next_cookie: AtomicUsize,
    identifiers: AtomicU32,
    taking: Mutex<Taking>,
    /// The port carries traffic and the device works.
    up: AtomicBool,
    /// The device or its queue has failed: nothing is asked of it until it is back.
    broken: AtomicBool,
}

impl Nic {
    pub(crate) fn new(parts: NicParts, device: OpenDevice, here: NicPath, common: Arc<Common>) -> Self {
        let nic = Self {
            device: RwLock::default(),
            life: AtomicU64::new(0),
            own: RwLock::new(parts.own),
            parts,
            here,
            links: Mutex::new(Store::new(usize::try_from(common.config.endpoints).unwrap_or(usize::MAX))),
            common,
            pairs: RwLock::default(),
            cookies: Mutex::default(),
            next_cookie: AtomicUsize::new(1),
            identifiers: AtomicU32::new(1),
            taking: Mutex::default(),
            up: AtomicBool::new(true),
            broken: AtomicBool::new(false),
        };
        nic.install(device);
        nic
    }

    pub(crate) fn name(&self) -> &NicName {
        &self.parts.name
    }

    pub(crate) fn common(&self) -> &Arc<Common> {
        &self.common
    }

    /// The device, if it is open. Nobody has it for longer than a moment but the polling thread, and that only while it is not
    /// [broken](Self::is_broken): it is closed once nobody else has it.
    pub(crate) fn device(&self) -> Option<Arc<OpenDevice>> {
        self.device.read().clone()
    }

    /// Which opening of the device is the last one.
    pub(crate) fn life(&self) -> u64 {
        self.life.load(Ordering::SeqCst)
    }

    /// A device that was just opened. Nothing is under way, and nothing is asked of it before it is said to work.
    pub(crate) fn install(&self, device: OpenDevice) {
        self.signals().set_room(usize::try_from(device.queue.entries()).unwrap_or(usize::MAX));
        self.life.store(device.life, Ordering::SeqCst);
        self.taking.lock().set_queue(Some((device.life, device.queue.clone())));
        *self.device.write() = Some(Arc::new(device));
    }

    /// Nobody takes completions any more. To be called without a lock that whoever is told of one may need.
    pub(crate) fn stop_taking(&self) {
        self.taking.lock().set_queue(None);
    }

    /// Closes the device with what `regions` says is registered at it; false if somebody still has it, and then nothing was
    /// asked. Its queue pairs are gone, and nobody takes completions.
    pub(crate) fn close_device(&self, regions: impl FnOnce() -> Vec<MemoryRegion>) -> bool {
        let open = {
            // Under the lock nobody comes to have it.
            let mut device = self.device.write();
            match device.take().map(Arc::try_unwrap) {
                None => return true,
                Some(Ok(open)) => open,
                Some(Err(shared)) => {
                    *device = Some(shared);
                    return false;
                }
            }
        };
        open.close(regions());
        true
    }

    /// Who may take completions.
    pub(crate) fn taking(&self) -> &Mutex<Taking> {
        &self.taking
    }

    pub(crate) fn signals(&self) -> &Arc<Signals> {
        &self.parts.signals
    }

    pub(crate) fn own(&self) -> Own {
        *self.own.read()
    }

    /// Notes that the port or its address have changed; whether they have.
    pub(crate) fn set_own(&self, own: Own) -> bool {
        std::mem::replace(&mut *self.own.write(), own) != own
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::SeqCst) && !self.is_broken()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    /// Whether that is new.
    pub(crate) fn set_broken(&self) -> bool {
        !self.broken.swap(true, Ordering::SeqCst)
    }

    /// The device is back.
    pub(crate) fn set_working(&self) {
        self.broken.store(false, Ordering::SeqCst);
    }

    /// Whether that is new.
    pub(crate) fn set_up(&self, up: bool) -> bool {
        self.up.swap(up, Ordering::SeqCst) != up
    }

    /// As descriptors name it.
    pub(crate) fn described(&self) -> Device {
        let own = self.own();
        Device::rdma(self.name().clone(), own.lid, own.gid)
    }

    /// The link under a key, made if there is none.
    pub(crate) fn link(&self, key: &LinkKey, target: Option<&Arc<SegmentDescriptor>>) -> Arc<Link> {
        let mut links = self.links.lock();
        let link = match links.get(key) {
            Some(link) => link.clone(),
            None => {
                let (first, signals) = (links.first_generation(), self.signals().clone());
                let link =
                    Arc::new(Link::new(key.clone(), self.here.clone(), first, self.common.clone(), signals));
                links.insert(key.clone(), link.clone());
                link
            }
        };
        if let Some(target) = target {
            link.aim(target);
        }
        link
    }

    /// Makes room for one endpoint more. What is evicted for it is told so; the caller carries that out and asks again.
    pub(crate) fn room(&self) -> Room<Arc<Link>> {
        let mut links = self.links.lock();
        let used: Vec<_> =
            links.kept().filter(|(_, link)| link.take_used()).map(|(key, _)| key.clone()).collect();
        for key in &used {
            links.get(key);
        }
        match links.room() {
            Room::Free => Room::Free,
            Room::Full { cap, busy, retiring } => Room::Full { cap, busy, retiring },
            Room::Evicted(key) => {
                let evicted = links.retired().find(|link| *link.key() == key && !link.is_retired()).cloned();
                drop(links);
                let Some(evicted) = evicted else { return Room::Free };
                evicted.retire();
                Room::Evicted(evicted)
            }
        }
    }

    /// Retires every link: what comes from now on goes to others.
    pub(crate) fn retire_links(&self) {
        let mut links = self.links.lock();
        let kept: Vec<_> = links.kept().map(|(key, link)| (key.clone(), link.clone())).collect();
        kept.iter().for_each(|(key, _)| {
            links.retire(key);
        });
        drop(links);
        kept.iter().for_each(|(_, link)| link.retire());
    }

    /// Every link, those that are retired included.
    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        let mut links = self.links.lock();
        let mut all: Vec<_> = links.kept().map(|(_, link)| link.clone()).collect();
        all.extend(links.retired().map(|link| link.clone()));
        all
    }

    /// Those of one life of a peer.
    pub(crate) fn links_of(&self, life: Incarnation) -> Vec<Arc<Link>> {
        self.links().into_iter().filter(|link| link.key().life == Some(life)).collect()
    }

    /// Forgets links without queue pairs that nobody uses.
    pub(crate) fn reclaim(&self) {
        self.links.lock().reclaim();
    }

    /// Endpoints whose queue pairs exist.
    pub(crate) fn endpoints(&self) -> usize {
        self.links.lock().endpoints()
    }

    /// A number for events about a queue pair of the endpoint.
    pub(crate) fn cookie(&self, link: &Arc<Link>, of: Generation) -> usize {
        let cookie = self.next_cookie.fetch_add(1, Ordering::Relaxed);
        self.cookies.lock().insert(cookie, (link.clone(), of));
        cookie
    }

    /// Whom an event is about.
    pub(crate) fn by_cookie(&self, cookie: usize) -> Option<(Arc<Link>, Generation)> {
        self.cookies.lock().get(&cookie).cloned()
    }

    /// Where the identifiers of a send queue begin: far from those of the last ones.
    pub(crate) fn first_identifier(&self) -> u32 {
        self.identifiers.fetch_add(1 << 16, Ordering::Relaxed)
    }

    pub(crate) fn own_pair(&self, number: u32, owner: Owner) {
        self.pairs.write().insert(number, owner);
    }

    /// Whose a queue pair is; none once it is gone.
    pub(crate) fn owner(&self, number: u32) -> Option<Owner> {
        self.pairs.read().get(&number).cloned()
    }

    /// The queue pairs of an endpoint are about to go.
    pub(crate) fn disown(&self, link: &Arc<Link>, of: Generation) {
        self.pairs.write().retain(|_, owner| owner.of != of || !Arc::ptr_eq(&owner.link, link));
        self.cookies.lock().retain(|_, (owner, known)| *known != of || !Arc::ptr_eq(owner, link));
    }
}

impl std::fmt::Debug for Nic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nic").field("name", self.name()).field("own", &self.own()).finish_non_exhaustive()
    }
}
