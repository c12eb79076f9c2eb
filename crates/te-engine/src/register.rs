//! Registration: reserve, ask every transport, commit; or roll everything back.

use std::collections::BTreeMap;
use std::sync::Arc;

use te_memory::{Memory, Region, Reservation, ReserveRejected, numa};
use te_segment::{Access, BufferDescriptor, FieldError, Location};
use te_transport::{Registration, Transport};

use crate::buffer::{Buffer, RegisterFailed, TransportSet, register_kind};
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::local::Vias;

/// A reservation that every transport has been asked about.
struct Accepted {
    reservation: Reservation,
    vias: Vias,
    registered: TransportSet,
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

/// Registers all of them or none. Blocks for as long as the transports do.
pub(crate) fn register_all(
    core: &Arc<Core>,
    memory: Vec<(Memory, Location, Access)>,
) -> std::result::Result<Vec<Buffer>, RegisterFailed> {
    if let Err(error) = core.check_running("register memory") {
        return Err(RegisterFailed {
            error,
            memory: memory.into_iter().map(|(memory, ..)| memory).collect(),
        });
    }
    let transports = core.transports();
    let mut accepted: Vec<Accepted> = Vec::with_capacity(memory.len());
    let mut rest = memory.into_iter();
    while let Some((memory, location, access)) = rest.next() {
        let failed = match reserve(core, memory, location, access) {
            Ok(reservation) => match ask(&transports, reservation.region()) {
                Ok((vias, registered)) => {
                    accepted.push(Accepted { reservation, vias, registered });
                    continue;
                }
                Err(error) => (error, reservation.abort().ok()),
            },
            Err((error, memory)) => (error, Some(memory)),
        };
        let (error, memory) = failed;
        let mut returned = roll_back(&transports, accepted);
        returned.extend(memory);
        returned.extend(rest.map(|(memory, ..)| memory));
        return Err(RegisterFailed { error, memory: returned });
    }
    // What no peer can use is not in the descriptor.
    let offers = accepted.iter().any(|accepted| accepted.reservation.region().access().is_remote());
    let buffers = accepted
        .into_iter()
        .map(|Accepted { reservation, vias, registered }| {
            core.local().set_vias(reservation.region().generation(), vias);
            Buffer::new(core.clone(), reservation.commit(), registered)
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
fn ask(transports: &[Arc<dyn Transport>], region: &Region) -> Result<(Vias, TransportSet)> {
    let operation = || format!("register {}", region.range());
    let mut vias: Vias = BTreeMap::new();
    let mut registered = TransportSet::default();
    let mut outcomes = Vec::with_capacity(transports.len());
    for (index, transport) in transports.iter().enumerate() {
        let kind = transport.kind();
        match transport.register(region) {
            Ok(Registration::Registered(via)) => {
                outcomes.push(format!("{kind}: registered, rolled back"));
                vias.insert(kind, via);
                registered.insert(index);
            }
            Ok(Registration::NotMine(reason)) => outcomes.push(format!("{kind}: not served ({reason})")),
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
    Ok((vias, registered))
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

fn roll_back(transports: &[Arc<dyn Transport>], accepted: Vec<Accepted>) -> Vec<Memory> {
    let mut memory: Vec<Memory> = accepted
        .into_iter()
        .rev()
        .filter_map(|Accepted { reservation, registered, .. }| {
            revoke(transports, reservation.region(), registered);
            reservation.abort().ok()
        })
        .collect();
    memory.reverse();
    memory
}
