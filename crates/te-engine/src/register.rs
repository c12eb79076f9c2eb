//! Registration: reserve, ask every transport, commit; or roll everything back.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use te_memory::{Memory, Region, Reservation, ReserveRejected, numa};
use te_segment::{Access, BufferDescriptor, FieldError, Location, TransportKind};
use te_transport::{Registration, Transport};

use crate::buffer::{Buffer, RegisterFailed, TransportSet, register_kind};
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::local::Vias;

/// A reservation that every transport has been asked about.
struct Accepted {
    reservation: Reservation,
    answers: Answers,
}

/// What the transports said.
struct Answers {
    vias: Vias,
    registered: TransportSet,
    unserved: Box<[(TransportKind, String)]>,
}

/// Registrations that a caller's thread does itself, in one call, at most.
const QUICK_COUNT: usize = 16;
/// Bytes of such memory at most: that its pages are mapped is asked of the kernel.
const QUICK_BYTES: usize = 64 << 20;

/// Whether registering this takes no longer than to have another thread do it.
pub(crate) fn is_quick(core: &Core, memory: &[(Memory, Location, Access)]) -> bool {
    memory.len() <= QUICK_COUNT
        && memory.iter().fold(0, |sum: usize, (memory, ..)| sum.saturating_add(memory.len())) <= QUICK_BYTES
        && core.transports().iter().all(|transport| transport.capabilities().registers_at_once)
}

/// How far the registration of a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegisterProgress {
    /// Members that every transport has taken.
    pub buffers: usize,
    /// All members.
    pub of_buffers: usize,
    /// Bytes of those that are taken.
    pub bytes: u64,
    /// Bytes of all.
    pub of_bytes: u64,
}

/// Threads that register one batch, at most: drivers serialise beyond a few.
const REGISTRARS: usize = 8;

type Member = (Memory, Location, Access);

/// A batch that is being registered: members are taken in the order of their addresses, which drivers like best.
struct Registrars<'a> {
    core: &'a Core,
    transports: Arc<[Arc<dyn Transport>]>,
    progress: &'a (dyn Fn(RegisterProgress) + Sync),
    state: Mutex<Registering>,
}

struct Registering {
    /// Last address first, each with its place in the batch.
    left: Vec<(usize, Member)>,
    accepted: Vec<(usize, Accepted)>,
    /// The first that failed, and its memory and that of others that failed.
    failed: Option<(usize, Error)>,
    returned: Vec<(usize, Memory)>,
    reached: RegisterProgress,
}

impl Registrars<'_> {
    /// Takes members until none is left or one has failed.
    fn work(&self) {
        loop {
            let (place, (memory, location, access)) = {
                let mut state = self.state.lock();
                let next = if state.failed.is_none() { state.left.pop() } else { None };
                let Some(member) = next else { return };
                member
            };
            let taken = match reserve(self.core, memory, location, access) {
                Ok(reservation) => match ask(&self.transports, reservation.region()) {
                    Ok(answers) => Ok(Accepted { reservation, answers }),
                    Err(error) => Err((error, reservation.abort().ok())),
                },
                Err((error, memory)) => Err((error, Some(memory))),
            };
            let mut state = self.state.lock();
            match taken {
                Ok(accepted) => {
                    state.reached.buffers += 1;
                    state.reached.bytes += accepted.reservation.region().range().len();
                    state.accepted.push((place, accepted));
                    // Under the lock, so that what is told only grows.
                    (self.progress)(state.reached);
                }
                Err((error, memory)) => {
                    state.returned.extend(memory.map(|memory| (place, memory)));
                    if state.failed.as_ref().is_none_or(|(first, _)| place < *first) {
                        state.failed = Some((place, error));
                    }
                }
            }
        }
    }
}

/// Registers all of them or none. Blocks for as long as the transports do.
pub(crate) fn register_all(
    core: &Arc<Core>,
    memory: Vec<Member>,
    progress: &(dyn Fn(RegisterProgress) + Sync),
) -> std::result::Result<Vec<Buffer>, RegisterFailed> {
    if let Err(error) = core.check_running("register memory") {
        return Err(RegisterFailed {
            error,
            memory: memory.into_iter().map(|(memory, ..)| memory).collect(),
        });
    }
    let transports = core.transports();
    let at_once = transports.iter().all(|transport| transport.capabilities().registers_at_once);
    let threads = if at_once { 1 } else { memory.len().min(REGISTRARS) };
    let (count, bytes) = (memory.len(), memory.iter().map(|(memory, ..)| memory.len() as u64).sum());
    let mut left: Vec<(usize, Member)> = memory.into_iter().enumerate().collect();
    left.sort_by_key(|(_, (memory, ..))| std::cmp::Reverse(memory.address()));
    let reached = RegisterProgress { buffers: 0, of_buffers: count, bytes: 0, of_bytes: bytes };
    let (accepted, returned) = (Vec::with_capacity(count), Vec::new());
    let state = Mutex::new(Registering { left, accepted, failed: None, returned, reached });
    let registrars = Registrars { core, transports: transports.clone(), progress, state };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            let name = "te-register".to_owned();
            // Without it the others do the work.
            let _ = std::thread::Builder::new().name(name).spawn_scoped(scope, || registrars.work());
        }
        registrars.work();
    });
    let Registering { left, mut accepted, failed, mut returned, .. } = registrars.state.into_inner();
    if let Some((_, error)) = failed {
        returned.extend(roll_back(&transports, accepted));
        returned.extend(left.into_iter().map(|(place, (memory, ..))| (place, memory)));
        returned.sort_by_key(|(place, _)| *place);
        return Err(RegisterFailed {
            error,
            memory: returned.into_iter().map(|(_, memory)| memory).collect(),
        });
    }
    accepted.sort_by_key(|(place, _)| *place);
    // What no peer can use is not in the descriptor.
    let offers = accepted.iter().any(|(_, taken)| taken.reservation.region().access().is_remote());
    let buffers = accepted
        .into_iter()
        .map(|(_, Accepted { reservation, answers })| {
            let Answers { vias, registered, unserved } = answers;
            core.local().set_vias(reservation.region().generation(), vias);
            Buffer::new(core.clone(), reservation.commit(), registered, unserved)
        })
        .collect();
    if offers {
        core.local().bump();
        core.wake_publisher();
    }
    Ok(buffers)
}

fn reserve(
    core: &Core,
    memory: Memory,
    location: Location,
    access: Access,
) -> std::result::Result<Reservation, (Error, Memory)> {
    let operation =
        format!("register {} at {:#x}", crate::size::bytes(memory.len() as u64), memory.address());
    let location = match location {
        Location::Any => place_of(&memory),
        stated => stated,
    };
    core.local().regions().reserve(memory, access, location).map_err(|ReserveRejected { error, memory }| {
        (Error::new(register_kind(&error), operation, error.to_string()).with_source(error), memory)
    })
}

/// The NUMA node of the first page, as the reference engine resolves `*`; `*` when the kernel does not say.
fn place_of(memory: &Memory) -> Location {
    numa::node_of(memory.address()).map_or(Location::Any, Location::cpu)
}

/// Asks every transport; on a failure those that had accepted are rolled back in reverse.
fn ask(transports: &[Arc<dyn Transport>], region: &Region) -> Result<Answers> {
    let operation = || format!("register {}", region.range());
    let mut vias: Vias = BTreeMap::new();
    let mut registered = TransportSet::default();
    let mut unserved = Vec::new();
    let mut outcomes = Vec::with_capacity(transports.len());
    for (index, transport) in transports.iter().enumerate() {
        let kind = transport.kind();
        match transport.register(region) {
            Ok(Registration::Registered(via)) => {
                outcomes.push(format!("{kind}: registered, rolled back"));
                vias.insert(kind, via);
                registered.insert(index);
            }
            Ok(Registration::NotMine(reason)) => {
                outcomes.push(format!("{kind}: not served ({reason})"));
                unserved.push((kind, reason));
            }
            Ok(_) => outcomes.push(format!("{kind}: unknown answer")),
            Err(error) => {
                let retry = if error.retryable { Retry::Later } else { Retry::No };
                outcomes.push(format!("{kind}: failed ({})", error.cause));
                outcomes.extend(
                    transports[index + 1..].iter().map(|other| format!("{}: not asked", other.kind())),
                );
                revoke(transports, region, registered);
                let failed = Error::new(ErrorKind::Transport, operation(), outcomes.join(", "));
                return Err(failed.with_retry(retry).with_source(error));
            }
        }
    }
    if vias.is_empty() {
        let cause =
            if outcomes.is_empty() { "no transport is installed".to_owned() } else { outcomes.join(", ") };
        return Err(Error::new(ErrorKind::NoPath, operation(), cause));
    }
    if let Err(error) = describe(region, &vias) {
        revoke(transports, region, registered);
        return Err(Error::new(ErrorKind::Transport, operation(), error.to_string()).with_source(error));
    }
    Ok(Answers { vias, registered, unserved: unserved.into() })
}

/// Whether the answers of the transports fit into a descriptor; found out now, not when a peer asks.
fn describe(region: &Region, vias: &Vias) -> std::result::Result<BufferDescriptor, FieldError> {
    let offered = if region.access().is_remote() { vias.clone() } else { Vias::new() };
    let generation = Some(region.generation());
    BufferDescriptor::new(region.range(), region.location().clone(), region.access(), generation, offered)
}

fn revoke(transports: &[Arc<dyn Transport>], region: &Region, registered: TransportSet) {
    for (_, transport) in transports.iter().enumerate().rev().filter(|(index, _)| registered.contains(*index))
    {
        if let Err(error) = transport.unregister(region) {
            tracing::warn!(target: "te::engine", %error, "rolling back a registration");
        }
    }
}

fn roll_back(
    transports: &[Arc<dyn Transport>],
    accepted: Vec<(usize, Accepted)>,
) -> impl Iterator<Item = (usize, Memory)> {
    accepted.into_iter().rev().filter_map(|(place, Accepted { reservation, answers })| {
        revoke(transports, reservation.region(), answers.registered);
        Some((place, reservation.abort().ok()?))
    })
}
