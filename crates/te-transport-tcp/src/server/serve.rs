//! Serving one connection: request after request, in order.

use std::time::{Duration, Instant};

use te_memory::{Hold, RemoteOp};
use te_segment::TcpFraming;
use te_transport::Op;

use super::Shared;
use super::list::serve_list;
use super::native::{greet, serve_request as serve_native};
use super::table::{Connection, Stage};
use crate::counters::add;
use crate::frame::{Request, STATUS_LEN, Status};
use crate::io::{Spans, Step, TICK, Wait};
use crate::native::{self, DIGEST_LEN, Hello};
use crate::progress::Progress;

/// Payloads up to this are taken together with the header behind them.
const SMALL: u64 = 64 << 10;
/// A thread that was away for longer, because its process was stopped or had no core, looks whether the peer has given up
/// before it takes more of a payload: what is in the receive buffer then belongs to a request that is over.
const AWAY: Duration = Duration::from_millis(5);
/// Statuses owed at most.
const OWED: usize = 32;

/// What becomes of a connection that a thread gives up.
pub(super) enum Next {
    /// It waits for its next header.
    Park(Connection),
    /// It is to be closed.
    Close(Connection),
}

/// Serves requests until none comes for a tick, or the connection has to be closed.
pub(super) fn serve(shared: &Shared, mut connection: Connection) -> Next {
    loop {
        match read_header(shared, &mut connection) {
            Header::Whole(head) => {
                let served = match head {
                    Head::Reference(request) => serve_request(shared, &mut connection, &request),
                    Head::Hello(hello) => greet(shared, &mut connection, &hello),
                    Head::Native(request) => serve_native(shared, &mut connection, &request),
                    Head::List(list) => serve_list(shared, &mut connection, &list),
                };
                connection.current.clear();
                if !served {
                    return Next::Close(connection);
                }
                if shared.is_stopping() {
                    settle(shared, &mut connection);
                    return Next::Close(connection);
                }
            }
            Header::Waiting if shared.is_stopping() => return Next::Close(connection),
            Header::Waiting => return Next::Park(connection),
            Header::Unusable => return Next::Close(connection),
        }
    }
}

enum Header {
    Whole(Head),
    Waiting,
    Unusable,
}

/// What a peer can ask for.
enum Head {
    Reference(Request),
    Hello(Hello),
    Native(native::Request),
    List(native::List),
}

/// Reads the next header. A part of one stays in the connection, so that a slow sender keeps no thread.
fn read_header(shared: &Shared, connection: &mut Connection) -> Header {
    if connection.have < connection.header_len() && !settle(shared, connection) {
        return Header::Unusable;
    }
    let left = if shared.may_linger() { TICK } else { Duration::ZERO };
    loop {
        let len = connection.header_len();
        while connection.have < len {
            let Connection { wire, head, have, .. } = &mut *connection;
            match wire.recv_bytes(&mut head[*have..len], Wait::All, left) {
                Ok(Step::Moved(bytes)) => *have += bytes,
                Ok(Step::Quiet) => return Header::Waiting,
                Ok(Step::Eof) | Err(_) => return Header::Unusable,
            }
        }
        let first = connection.headers == 0 && connection.stage == Stage::Reference;
        if !first || !connection.head.starts_with(&native::MAGIC) {
            break;
        }
        // The rest of the hello follows.
        connection.stage = Stage::Hello;
    }
    add(&shared.counters.wire_received, connection.have as u64);
    connection.have = 0;
    connection.headers += 1;
    match decode(connection) {
        Ok(head) => Header::Whole(head),
        Err(error) => {
            tracing::debug!(target: "te::transport_tcp", connection = connection.id, error, "closing");
            settle(shared, connection);
            Header::Unusable
        }
    }
}

fn decode(connection: &Connection) -> Result<Head, String> {
    // The header is as long as the stage says, so a part of that length is there.
    let head = &connection.head;
    match connection.stage {
        Stage::Reference if connection.surplus => Err("too many connections".to_owned()),
        Stage::Reference => {
            let header = head.first_chunk().ok_or("no header")?;
            Request::decode(header).map(Head::Reference).map_err(|error| error.to_string())
        }
        Stage::Hello => Hello::decode(head).map(Head::Hello).map_err(|error| error.to_string()),
        Stage::Native(_, version) => {
            let header = head.first_chunk().ok_or("no header")?;
            if version >= native::LIST_SINCE
                && let Some(list) = native::List::decode(header).map_err(|error| error.to_string())?
            {
                return Ok(Head::List(list));
            }
            native::Request::decode(header).map(Head::Native).map_err(|error| error.to_string())
        }
    }
}

/// Serves one request; whether the connection can serve another.
fn serve_request(shared: &Shared, connection: &mut Connection, request: &Request) -> bool {
    let op = match request.op {
        Op::Read => RemoteOp::Read,
        Op::Write => RemoteOp::Write,
    };
    // Marked before the look-up: whoever withdraws a region sees every request that got a hold before it was blocked.
    connection.current.set([request.addr]);
    // The hold keeps the region registered and in place for as long as the request touches it.
    let hold = match shared.regions.remote(request.addr, request.len, op) {
        Ok(hold) => hold,
        Err(refusal) => {
            let (id, op, addr, len) = (connection.id, request.op, request.addr, request.len);
            tracing::debug!(target: "te::transport_tcp", connection = id, %op, addr, len, %refusal, "refused");
            add(&shared.counters.refused, 1);
            connection.current.clear();
            refuse(shared, connection, request.framing);
            return false;
        }
    };
    let served = match request.op {
        Op::Write => receive(shared, connection, &hold, request.framing),
        Op::Read => send(shared, connection, &hold, request.framing),
    };
    if served {
        add(&shared.counters.served, 1);
    }
    served
}

/// Takes the payload of a WRITE; the status says that the last byte is in memory.
///
/// With a small payload the header behind it is taken along if it is there. Then the peer has more under way, and the
/// status is owed: it is sent with others, before anything is waited for.
pub(super) fn receive(
    shared: &Shared,
    connection: &mut Connection,
    hold: &Hold,
    framing: TcpFraming,
) -> bool {
    let holds = std::slice::from_ref(hold);
    let answered = framing == TcpFraming::V2;
    receive_all(shared, connection, holds, Receiving { digest: false, answered, ahead: hold.len() <= SMALL })
}

/// How payloads are received.
pub(super) struct Receiving {
    /// A digest is behind them, which goes to the connection.
    pub(super) digest: bool,
    /// A status is owed for them.
    pub(super) answered: bool,
    /// The header behind them is taken along if it is there.
    pub(super) ahead: bool,
}

/// Takes the payloads of WRITEs, one after the other, and owes one status for all of them.
pub(super) fn receive_all(
    shared: &Shared,
    connection: &mut Connection,
    holds: &[Hold],
    Receiving { digest, answered, ahead }: Receiving,
) -> bool {
    let mut spans = Spans::new();
    let Some(payload) = push_all(&mut spans, holds) else { return false };
    let mut len = payload;
    if digest {
        spans.push(connection.trailer.as_mut_ptr(), DIGEST_LEN);
        len += DIGEST_LEN;
    }
    let header_len = connection.header_len();
    if ahead {
        spans.push(connection.head.as_mut_ptr(), header_len);
    }
    let mut progress = Progress::new(shared.config.progress_timeout);
    let mut missing = len;
    while missing > 0 {
        let now = Instant::now();
        let Some(left) = progress.left(now) else { break };
        if now.saturating_duration_since(connection.looked) > AWAY
            && connection.wire.await_bytes(Duration::ZERO).is_err()
        {
            break;
        }
        connection.looked = now;
        // SAFETY: the ranges are the holds', which are mapped while they live and whose users expect writes, and the
        // connection's digest and header, which are borrowed exclusively.
        let step = unsafe { connection.wire.recv(&mut spans, Wait::No, left) };
        match step {
            Ok(Step::Moved(bytes)) => {
                spans.advance(bytes);
                progress.moved(bytes);
                connection.have = bytes.saturating_sub(missing);
                missing = missing.saturating_sub(bytes);
            }
            Ok(Step::Quiet) if connection.owed == 0 => {
                if connection.wire.await_bytes(left).is_err() {
                    break;
                }
                connection.looked = Instant::now();
            }
            Ok(Step::Quiet) => {}
            Ok(Step::Eof) | Err(_) => break,
        }
        if missing > 0 && !settle(shared, connection) {
            break;
        }
    }
    let moved = (len - missing) as u64;
    add(&shared.counters.wire_received, moved);
    add(&shared.counters.payload_received, moved.min(payload as u64));
    if missing > 0 {
        return false;
    }
    if answered {
        connection.owed += 1;
    }
    // With the next header here the peer is not waiting for this status alone.
    (connection.have == header_len && connection.owed < OWED) || settle(shared, connection)
}

/// Sends the payload of a READ, after the status in version 2, and what is owed before it.
pub(super) fn send(shared: &Shared, connection: &mut Connection, hold: &Hold, framing: TcpFraming) -> bool {
    send_payloads(shared, connection, std::slice::from_ref(hold), framing == TcpFraming::V2, None)
}

/// Sends the payloads of READs, one after the other, after what is owed, one status for all of them if they are `answered`,
/// and their digest.
pub(super) fn send_payloads(
    shared: &Shared,
    connection: &mut Connection,
    holds: &[Hold],
    answered: bool,
    digest: Option<u64>,
) -> bool {
    let statuses = connection.owed + usize::from(answered);
    connection.owed = 0;
    let mut head = [Status::Ok.encode(); OWED + 2];
    let mut front = statuses * STATUS_LEN;
    if let Some(digest) = digest {
        head[statuses] = digest.to_le_bytes();
        front += DIGEST_LEN;
    }
    let mut spans = Spans::new();
    spans.push(head.as_flattened_mut().as_mut_ptr(), front);
    if push_all(&mut spans, holds).is_none() {
        return false;
    }
    let mut progress = Progress::new(shared.config.progress_timeout);
    let mut moved = 0;
    while !spans.is_empty() {
        let Some(left) = progress.left(Instant::now()) else { break };
        // SAFETY: the ranges are a local array and the holds', which are mapped while they live.
        let step = unsafe { connection.wire.send(&mut spans, left) };
        match step {
            Ok(Step::Moved(bytes)) => {
                moved += bytes;
                progress.moved(bytes);
            }
            Ok(Step::Quiet) => {}
            Ok(Step::Eof) | Err(_) => break,
        }
    }
    add(&shared.counters.wire_sent, moved as u64);
    add(&shared.counters.payload_sent, moved.saturating_sub(front) as u64);
    spans.is_empty()
}

/// Adds the memory of the holds, which are at most as many as a list has, and returns how many bytes that is; none for memory
/// that is not the host's.
fn push_all(spans: &mut Spans, holds: &[Hold]) -> Option<usize> {
    let mut sum = 0_usize;
    for hold in holds {
        let len = usize::try_from(hold.len()).ok()?;
        spans.push(hold.as_ptr()?, len);
        sum = sum.checked_add(len)?;
    }
    Some(sum)
}

/// Sends what is owed.
pub(super) fn settle(shared: &Shared, connection: &mut Connection) -> bool {
    let owed = std::mem::take(&mut connection.owed);
    let statuses = [Status::Ok.encode(); OWED];
    send_all(shared, connection, &statuses.as_flattened()[..owed * STATUS_LEN])
}

pub(super) fn send_all(shared: &Shared, connection: &mut Connection, bytes: &[u8]) -> bool {
    let mut progress = Progress::new(shared.config.progress_timeout);
    let mut sent = 0;
    while sent < bytes.len() {
        let Some(left) = progress.left(Instant::now()) else { break };
        match connection.wire.send_bytes(&bytes[sent..], left) {
            Ok(Step::Moved(more)) => sent += more,
            Ok(Step::Quiet) => {}
            Ok(Step::Eof) | Err(_) => break,
        }
    }
    add(&shared.counters.wire_sent, sent as u64);
    sent == bytes.len()
}

/// Refuses a request. In version 2 the status is sent and the rest of the stream read and thrown away within bounds:
/// closing with unread bytes would reset the connection and could destroy the status. Version 1 just closes.
fn refuse(shared: &Shared, connection: &mut Connection, framing: TcpFraming) {
    if !settle(shared, connection) || framing == TcpFraming::V1 {
        return;
    }
    if !send_all(shared, connection, &Status::REJECTED.encode()) {
        return;
    }
    part(shared, connection);
}

/// Says no more, and reads and throws away the rest of the stream within bounds.
pub(super) fn part(shared: &Shared, connection: &mut Connection) {
    if connection.wire.shutdown_write().is_ok() {
        discard(shared, connection, shared.config.reject_drain_bytes);
    }
}

/// Reads and throws away `most` bytes, within the bounds for that; whether it got all of them.
pub(super) fn discard(shared: &Shared, connection: &mut Connection, most: u64) -> bool {
    let mut left = most;
    let end = Instant::now() + shared.config.reject_drain_time;
    while left > 0 && !shared.is_stopping() {
        let time = end.saturating_duration_since(Instant::now());
        match connection.wire.discard(usize::try_from(left).unwrap_or(usize::MAX), time) {
            Ok(Step::Moved(bytes)) => {
                left = left.saturating_sub(bytes as u64);
                add(&shared.counters.wire_received, bytes as u64);
            }
            Ok(Step::Quiet) if !time.is_zero() => {}
            Ok(Step::Quiet | Step::Eof) | Err(_) => return false,
        }
    }
    left == 0
}
