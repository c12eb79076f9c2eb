//! Serving lists of te peers.

use std::sync::Arc;
use std::time::Instant;

use te_memory::{Hold, RemoteOp};
use te_segment::Incarnation;
use te_transport::{Abort, Admitted, Op};

use super::Shared;
use super::native::{turn_away, why};
use super::serve::{Receiving, receive_all, send_payloads, settle};
use super::table::{Connection, Scratch, Stage};
use crate::counters::add;
use crate::io::{Step, Wait};
use crate::native::{ENTRY_LEN, Entry, List, Verdict};
use crate::progress::Progress;

/// Serves all requests of a list or none; whether the connection can serve another.
pub(super) fn serve_list(shared: &Shared, connection: &mut Connection, list: &List) -> bool {
    let Stage::Native(peer, _) = connection.stage else { return false };
    let mut scratch = std::mem::take(&mut connection.list);
    let served = serve(shared, connection, peer, list, &mut scratch);
    let Scratch { entries, holds, attempts } = &mut scratch;
    entries.clear();
    attempts.clear();
    // Nothing touches the memory any more.
    holds.clear();
    connection.list = scratch;
    served
}

fn serve(
    shared: &Shared,
    connection: &mut Connection,
    peer: Incarnation,
    list: &List,
    scratch: &mut Scratch,
) -> bool {
    let Scratch { entries, holds, attempts } = scratch;
    entries.resize(list.count * ENTRY_LEN, 0);
    if !read_entries(shared, connection, entries) {
        return false;
    }
    let decoded = || entries.as_chunks().0.iter().map(Entry::decode);
    let mut sum = 0;
    for entry in decoded() {
        let Ok(entry) = entry else { return unusable(shared, connection) };
        sum += u64::from(entry.len);
        attempts.push(entry.attempt);
    }
    if sum != list.len {
        return unusable(shared, connection);
    }
    // The order is that of a single request: marked, held, admitted.
    connection.current.set(decoded().flatten().map(|entry| entry.addr));
    if let Err(verdict) = hold_all(shared, list.op, decoded().flatten(), holds) {
        holds.clear();
        return refuse(shared, connection, list, verdict);
    }
    let executor: Arc<dyn Abort> = connection.wire.interrupter().clone();
    let Some(admitted) = Admitted::ask(&*shared.admission, peer, attempts, &executor) else {
        holds.clear();
        return refuse(shared, connection, list, Verdict::Fenced);
    };
    // Bytes that were here before an interruption can still be read: nothing new is begun with them.
    if connection.wire.interrupter().is_interrupted() {
        return false;
    }
    let served = match list.op {
        Op::Write => {
            receive_all(shared, connection, holds, Receiving { digest: false, answered: true, ahead: true })
        }
        Op::Read => send_payloads(shared, connection, holds, true, None),
    };
    drop(admitted);
    if served {
        add(&shared.counters.served, list.count as u64);
    }
    served
}

/// Holds on all the memory, which lets the regions stay, or what is to be said of the first that there is none of.
fn hold_all(
    shared: &Shared,
    op: Op,
    entries: impl Iterator<Item = Entry>,
    holds: &mut Vec<Hold>,
) -> Result<(), Verdict> {
    let op = match op {
        Op::Read => RemoteOp::Read,
        Op::Write => RemoteOp::Write,
    };
    for Entry { addr, len, generation, .. } in entries {
        let hold = shared.regions.remote_of(addr, u64::from(len), op, generation);
        holds.push(hold.map_err(|refusal| Verdict::Rejected(why(refusal)))?);
    }
    Ok(())
}

/// Receives what is behind the header of a list.
fn read_entries(shared: &Shared, connection: &mut Connection, entries: &mut [u8]) -> bool {
    let mut progress = Progress::new(shared.config.progress_timeout);
    let mut have = 0;
    while have < entries.len() {
        // Nothing is waited for while statuses are owed.
        let wait = if connection.owed == 0 { Wait::All } else { Wait::No };
        let Some(left) = progress.left(Instant::now()) else { break };
        match connection.wire.recv_bytes(&mut entries[have..], wait, left) {
            Ok(Step::Moved(bytes)) => have += bytes,
            Ok(Step::Quiet) if settle(shared, connection) => {}
            Ok(Step::Quiet | Step::Eof) | Err(_) => break,
        }
    }
    add(&shared.counters.wire_received, have as u64);
    have == entries.len()
}

/// Closes: the stream cannot be trusted any more.
fn unusable(shared: &Shared, connection: &mut Connection) -> bool {
    tracing::debug!(target: "te::transport_tcp", connection = connection.id, "closing: a list that makes no sense");
    settle(shared, connection);
    false
}

fn refuse(shared: &Shared, connection: &mut Connection, list: &List, verdict: Verdict) -> bool {
    let (id, List { op, count, len, .. }) = (connection.id, *list);
    tracing::debug!(target: "te::transport_tcp", connection = id, %op, count, len, ?verdict, "list refused");
    turn_away(shared, connection, (op, len), verdict)
}
