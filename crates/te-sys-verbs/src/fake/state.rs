//! What a fabric knows: its NICs, everything made on them, and what is to go wrong.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::backing::{DeviceMemory, Mapping};
use super::objects::tell;
use super::{Fault, Live, Nic, Record};
use crate::error::Call;
use crate::ffi::*;

pub(super) struct Core(Mutex<State>);

impl Core {
    pub(super) fn new(nics: Vec<Nic>) -> Arc<Self> {
        let nics = nics
            .into_iter()
            .map(|config| NicState {
                config,
                is_there: true,
                active: true,
                keys: None,
                held: false,
                lingers: false,
                carried: (0, 0),
            })
            .collect();
        Arc::new(Self(Mutex::new(State { nics, ..State::default() })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fabrics of this process, by the tag that their functions are told, with the NICs that are found there.
static FABRICS: Mutex<(i32, BTreeMap<i32, Entry>)> = Mutex::new((0, BTreeMap::new()));

#[derive(Clone)]
struct Entry {
    core: Weak<Core>,
    nics: Vec<usize>,
}

/// Makes some of a fabric's NICs known under a new tag.
pub(super) fn enter(core: &Arc<Core>, nics: Vec<usize>) -> i32 {
    let mut fabrics = FABRICS.lock().unwrap_or_else(PoisonError::into_inner);
    fabrics.1.retain(|_, entry| entry.core.strong_count() > 0);
    // From 1: the real library is told 0.
    fabrics.0 += 1;
    let tag = fabrics.0;
    fabrics.1.insert(tag, Entry { core: Arc::downgrade(core), nics });
    tag
}

pub(super) fn by_tag(tag: i32) -> Option<(Arc<Core>, Vec<usize>)> {
    let fabrics = FABRICS.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = fabrics.1.get(&tag)?.clone();
    Some((entry.core.upgrade()?, entry.nics))
}

/// Instead of a NIC's number: that of a NIC which was taken away.
pub(super) const GONE: usize = usize::MAX;

#[derive(Default)]
pub(super) struct State {
    pub(super) nics: Vec<NicState>,
    last: u32,
    pub(super) lists: usize,
    pub(super) contexts: BTreeMap<u32, ContextState>,
    pub(super) domains: BTreeMap<u32, u32>,
    /// By local key, which is even; the remote key is the odd one after it.
    pub(super) regions: BTreeMap<u32, Region>,
    pub(super) devices: Vec<DeviceMemory>,
    pub(super) channels: BTreeMap<u32, ChannelState>,
    pub(super) queues: BTreeMap<u32, Queue>,
    pub(super) pairs: BTreeMap<u32, Pair>,
    pub(super) faults: Vec<Fault>,
    pub(super) refusals: Vec<(String, usize, i32)>,
    pub(super) outcomes: Vec<(String, String, u32, u64)>,
    pub(super) held: bool,
    pub(super) records: Vec<Record>,
    pub(super) posted: (u64, u64),
    /// WRITEs that are in the network although their queue pair has failed or is gone.
    pub(super) late: Vec<Late>,
    buried: Vec<Buried>,
}

/// What was destroyed and may still be looked at by a thread that has just taken an event of it: a real library waits for
/// that thread, this one keeps the structure.
struct Buried {
    _kept: Box<dyn Any>,
}

// SAFETY: nothing is done with it but to free its memory.
unsafe impl Send for Buried {}

pub(super) struct NicState {
    pub(super) config: Nic,
    pub(super) is_there: bool,
    pub(super) active: bool,
    pub(super) keys: Option<(usize, i32)>,
    pub(super) held: bool,
    pub(super) lingers: bool,
    /// Requests that it has carried out, and their bytes.
    pub(super) carried: (u64, u64),
}

/// A WRITE on its way without anybody here who waits for it.
pub(super) struct Late {
    /// The queue pair that it is from.
    pub(super) from: u32,
    /// The one that it goes to.
    pub(super) to: u32,
    pub(super) remote: u64,
    pub(super) rkey: u32,
    pub(super) bytes: Vec<u8>,
}

pub(super) struct ContextState {
    pub(super) nic: usize,
    /// The NIC was taken away under it.
    pub(super) is_gone: bool,
    pub(super) events: OwnedFd,
}

pub(super) struct Region {
    pub(super) nic: usize,
    pub(super) domain: u32,
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) access: u32,
    /// What to add to an address in the region for one in this process.
    pub(super) shift: u64,
    /// What is behind it, if it is not memory of this process.
    pub(super) _mapping: Option<Mapping>,
}

pub(super) struct ChannelState {
    pub(super) context: u32,
    pub(super) events: OwnedFd,
}

pub(super) struct Queue {
    pub(super) context: u32,
    pub(super) channel: Option<u32>,
    /// The structure that was given out.
    pub(super) raw: usize,
    pub(super) room: usize,
    /// With the number of the request, among those of its queue pair.
    pub(super) entries: VecDeque<(ibv_wc, u64)>,
    /// Whether, and whether for solicited completions only.
    pub(super) armed: Option<bool>,
    pub(super) unacknowledged: u32,
    pub(super) overrun: bool,
}

pub(super) struct Pair {
    pub(super) context: u32,
    pub(super) nic: usize,
    pub(super) domain: u32,
    pub(super) raw: usize,
    pub(super) send: u32,
    pub(super) receive: u32,
    pub(super) size: ibv_qp_cap,
    pub(super) attributes: ibv_qp_attr,
    pub(super) accepted: u64,
    pub(super) freed: u64,
    pub(super) waiting: VecDeque<Request>,
    pub(super) receives: VecDeque<Receive>,
}

pub(super) struct Request {
    pub(super) number: u64,
    pub(super) id: u64,
    pub(super) opcode: u32,
    pub(super) flags: u32,
    pub(super) immediate: u32,
    pub(super) local: Ranges<ibv_sge>,
    pub(super) remote: u64,
    pub(super) rkey: u32,
}

pub(super) struct Receive {
    pub(super) id: u64,
    pub(super) local: Ranges<ibv_sge>,
}

/// The ranges of a request. Most have one, which takes no allocation, so that tests can count those of what is above.
pub(super) struct Ranges<T> {
    first: Option<T>,
    others: Vec<T>,
}

impl<T> Ranges<T> {
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.others)
    }

    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }
}

impl<T> FromIterator<T> for Ranges<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let mut all = all.into_iter();
        Self { first: all.next(), others: all.collect() }
    }
}

impl<T> IntoIterator for Ranges<T> {
    type Item = T;
    type IntoIter = std::iter::Chain<std::option::IntoIter<T>, std::vec::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.others)
    }
}

impl State {
    pub(super) fn bury(&mut self, kept: Box<dyn Any>) {
        self.buried.push(Buried { _kept: kept });
    }

    pub(super) fn nic(&self, name: &str) -> Option<usize> {
        self.nics.iter().position(|nic| nic.config.name == name)
    }

    /// A number that nothing else has.
    pub(super) fn number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// The error number with which this call is to fail.
    pub(super) fn fault(&mut self, call: Call, nic: usize) -> Option<i32> {
        if nic == GONE {
            return Some(libc::EIO);
        }
        let name = &self.nics.get(nic)?.config.name;
        let meant = |fault: &&mut Fault| {
            fault.call == call && fault.times > 0 && fault.nic.as_ref().is_none_or(|nic| nic == name)
        };
        for fault in self.faults.iter_mut().filter(meant) {
            if fault.skip > 0 {
                fault.skip -= 1;
            } else {
                fault.times = fault.times.saturating_sub(1);
                return Some(fault.errno);
            }
        }
        None
    }

    pub(super) fn record(&mut self, call: Call, nic: Option<usize>, handle: u32, errno: i32) {
        let nic =
            nic.and_then(|nic| self.nics.get(nic)).map(|nic| nic.config.name.clone()).unwrap_or_default();
        self.records.push(Record { call, nic, handle, errno });
    }

    pub(super) fn live(&self) -> Live {
        Live {
            lists: self.lists,
            contexts: self.contexts.len(),
            domains: self.domains.len(),
            regions: self.regions.len(),
            channels: self.channels.len(),
            completion_queues: self.queues.len(),
            queue_pairs: self.pairs.len(),
        }
    }

    /// Tells every context of a NIC of something about its port.
    pub(super) fn raise_port(&mut self, nic: usize, kind: u32) {
        for context in self.contexts.values().filter(|context| context.nic == nic && !context.is_gone) {
            tell(&context.events, [kind.into(), 1]);
        }
    }

    /// Takes a NIC away: its contexts are told, and all that was made from them is gone but for the descriptors of events.
    pub(super) fn unplug(&mut self, nic: usize) {
        self.raise_port(nic, IBV_EVENT_DEVICE_FATAL);
        self.nics[nic].is_there = false;
        let mut gone = Vec::new();
        for (id, context) in self.contexts.iter_mut().filter(|(_, context)| context.nic == nic) {
            context.is_gone = true;
            gone.push(*id);
        }
        self.pairs.retain(|_, pair| !gone.contains(&pair.context));
        self.queues.retain(|_, queue| !gone.contains(&queue.context));
        self.channels.retain(|_, channel| !gone.contains(&channel.context));
        let domains = std::mem::take(&mut self.domains);
        let (lost, kept) = domains.into_iter().partition(|(_, context)| gone.contains(context));
        self.domains = kept;
        let lost: BTreeMap<u32, u32> = lost;
        self.regions.retain(|_, region| !lost.contains_key(&region.domain));
    }

    /// Tells a context of something about one of its objects.
    pub(super) fn raise_object(&mut self, context: u32, kind: u32, raw: usize) {
        if let Some(context) = self.contexts.get(&context) {
            tell(&context.events, [kind.into(), raw as u64]);
        }
    }
}
