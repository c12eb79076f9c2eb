//! Serving one connection: request after request, in order.

use std::time::{Duration, Instant};

use te_memory::{Hold, RemoteOp};
use te_segment::TcpFraming;
use te_transport::Op;

use super::Shared;
use super::table::Connection;
use crate::counters::add;
use crate::frame::{HEADER_LEN, Request, STATUS_LEN, Status};
use crate::io::{Spans, Step, TICK};
use crate::progress::Progress;

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
            Header::Whole(request) => {
                let served = serve_request(shared, &mut connection, &request);
                connection.current.clear();
                if !served || shared.is_stopping() {
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
    Whole(Request),
    Waiting,
    Unusable,
}

/// Reads the next header. A part of one stays in the connection, so that a slow sender keeps no thread.
fn read_header(shared: &Shared, connection: &mut Connection) -> Header {
    let Connection { wire, head, have, .. } = connection;
    let wait = if shared.may_linger() { TICK } else { Duration::ZERO };
    while *have < HEADER_LEN {
        // A zero wait polls: what is there is taken.
        match wire.recv_bytes(&mut head[*have..], true, wait) {
            Ok(Step::Moved(bytes)) => *have += bytes,
            Ok(Step::Quiet) => return Header::Waiting,
            Ok(Step::Eof) | Err(_) => return Header::Unusable,
        }
    }
    *have = 0;
    connection.headers += 1;
    add(&shared.counters.wire_received, HEADER_LEN as u64);
    match Request::decode(&connection.head) {
        Ok(request) => Header::Whole(request),
        Err(error) => {
            tracing::debug!(target: "te::transport_tcp", connection = connection.id, %error, "closing");
            Header::Unusable
        }
    }
}

/// Serves one request; whether the connection can serve another.
fn serve_request(shared: &Shared, connection: &mut Connection, request: &Request) -> bool {
    let op = match request.op {
        Op::Read => RemoteOp::Read,
        Op::Write => RemoteOp::Write,
    };
    // The hold keeps the region registered and in place for as long as the request touches it.
    let hold = match shared.regions.remote(request.addr, request.len, op) {
        Ok(hold) => hold,
        Err(refusal) => {
            let (id, op, addr, len) = (connection.id, request.op, request.addr, request.len);
            tracing::debug!(target: "te::transport_tcp", connection = id, %op, addr, len, %refusal, "refused");
            add(&shared.counters.refused, 1);
            refuse(shared, connection, request.framing);
            return false;
        }
    };
    connection.current.set(hold.address());
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
fn receive(shared: &Shared, connection: &mut Connection, hold: &Hold, framing: TcpFraming) -> bool {
    let Ok(len) = usize::try_from(hold.len()) else { return false };
    let mut spans = Spans::new();
    spans.push(hold.as_ptr(), len);
    let mut progress = Progress::new(shared.config.progress_timeout);
    let mut moved = 0;
    while !spans.is_empty() {
        let Some(left) = progress.left(Instant::now()) else { break };
        // SAFETY: the range is the hold's, which is mapped while it lives; users of registered memory expect writes.
        let step = unsafe { connection.wire.recv(&mut spans, left) };
        match step {
            Ok(Step::Moved(bytes)) => {
                spans.advance(bytes);
                moved += bytes as u64;
                progress.moved(bytes);
            }
            Ok(Step::Quiet) => {}
            Ok(Step::Eof) | Err(_) => break,
        }
    }
    add(&shared.counters.wire_received, moved);
    add(&shared.counters.payload_received, moved);
    if !spans.is_empty() {
        return false;
    }
    framing == TcpFraming::V1 || send_status(shared, connection, Status::Ok)
}

/// Sends the payload of a READ, after the status in version 2.
fn send(shared: &Shared, connection: &mut Connection, hold: &Hold, framing: TcpFraming) -> bool {
    let Ok(len) = usize::try_from(hold.len()) else { return false };
    let mut status = Status::Ok.encode();
    let head = if framing == TcpFraming::V2 { STATUS_LEN } else { 0 };
    let mut spans = Spans::new();
    spans.push(status.as_mut_ptr(), head);
    spans.push(hold.as_ptr(), len);
    let mut progress = Progress::new(shared.config.progress_timeout);
    let mut moved = 0;
    while !spans.is_empty() {
        let Some(left) = progress.left(Instant::now()) else { break };
        // SAFETY: the ranges are a local array and the hold's, which is mapped while it lives.
        let step = unsafe { connection.wire.send(&mut spans, left) };
        match step {
            Ok(Step::Moved(bytes)) => {
                moved += bytes as u64;
                progress.moved(bytes);
            }
            Ok(Step::Quiet) => {}
            Ok(Step::Eof) | Err(_) => break,
        }
    }
    add(&shared.counters.wire_sent, moved);
    add(&shared.counters.payload_sent, moved.saturating_sub(head as u64));
    spans.is_empty()
}

fn send_status(shared: &Shared, connection: &mut Connection, status: Status) -> bool {
    let bytes = status.encode();
    let mut progress = Progress::new(shared.config.progress_timeout);
    let mut sent = 0;
    while sent < STATUS_LEN {
        let Some(left) = progress.left(Instant::now()) else { break };
        match connection.wire.send_bytes(&bytes[sent..], left) {
            Ok(Step::Moved(more)) => sent += more,
            Ok(Step::Quiet) => {}
            Ok(Step::Eof) | Err(_) => break,
        }
    }
    add(&shared.counters.wire_sent, sent as u64);
    sent == STATUS_LEN
}

/// Refuses a request. In version 2 the status is sent and the rest of the stream read and thrown away within bounds:
/// closing with unread bytes would reset the connection and could destroy the status. Version 1 just closes.
fn refuse(shared: &Shared, connection: &mut Connection, framing: TcpFraming) {
    if framing == TcpFraming::V1 || !send_status(shared, connection, Status::REJECTED) {
        return;
    }
    if connection.wire.shutdown_write().is_err() {
        return;
    }
    let mut left = shared.config.reject_drain_bytes;
    let end = Instant::now() + shared.config.reject_drain_time;
    while left > 0 && !shared.is_stopping() {
        let time = end.saturating_duration_since(Instant::now());
        match connection.wire.discard(usize::try_from(left).unwrap_or(usize::MAX), time) {
            Ok(Step::Moved(bytes)) => {
                left = left.saturating_sub(bytes as u64);
                add(&shared.counters.wire_received, bytes as u64);
            }
            Ok(Step::Quiet) if !time.is_zero() => {}
            Ok(Step::Quiet | Step::Eof) | Err(_) => return,
        }
    }
}
