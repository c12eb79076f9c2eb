//! Serving te peers: the hello, and what is checked of a request beyond its range.

use std::sync::Arc;

use te_memory::{Hold, Refusal, RemoteOp};
use te_segment::TcpFraming;
use te_transport::{Abort, Admitted, Op};

use super::Shared;
use super::serve::{Receiving, discard, part, receive, receive_all, send, send_all, send_payloads, settle};
use super::table::{Connection, Stage};
use crate::counters::add;
use crate::digest;
use crate::native::{Answer, DIGEST_LEN, Hello, Request, VERSIONS, Verdict, Why};

/// Answers a hello; whether requests may come.
pub(super) fn greet(shared: &Shared, connection: &mut Connection, hello: &Hello) -> bool {
    let (oldest, newest) = VERSIONS;
    let now = shared.incarnation;
    let answer = if hello.to != now {
        Answer::StaleIncarnation { now }
    } else if shared.is_stopping() {
        Answer::ShuttingDown
    } else if connection.surplus {
        Answer::Busy
    } else if hello.version < oldest {
        Answer::Version { oldest, newest }
    } else {
        Answer::Welcome { version: hello.version.min(newest), now }
    };
    let welcome = matches!(answer, Answer::Welcome { .. });
    if welcome {
        connection.stage = Stage::Native(hello.from, hello.version.min(newest));
        // Nobody has set it: there is one hello on a connection.
        let _ = connection.current.life.set(hello.from);
    } else {
        let (id, from, to) = (connection.id, hello.from, hello.to);
        tracing::debug!(target: "te::transport_tcp", connection = id, %from, %to, ?answer, "hello refused");
    }
    send_all(shared, connection, &answer.encode()) && welcome
}

/// Serves one request; whether the connection can serve another.
///
/// The order matters. The request is marked before the look-up, as for every framing. The region is held before the
/// attempt is admitted, and both last until nothing of the request touches memory any more.
pub(super) fn serve_request(shared: &Shared, connection: &mut Connection, request: &Request) -> bool {
    let Stage::Native(peer, _) = connection.stage else { return false };
    let op = match request.op {
        Op::Read => RemoteOp::Read,
        Op::Write => RemoteOp::Write,
    };
    let Some(generation) = request.generation else {
        return refuse(shared, connection, request, Verdict::Rejected(Why::Unnamed));
    };
    connection.current.set([request.addr]);
    let hold = match shared.regions.remote_of(request.addr, request.len, op, generation) {
        Ok(hold) => hold,
        Err(refusal) => return refuse(shared, connection, request, Verdict::Rejected(why(refusal))),
    };
    let executor: Arc<dyn Abort> = connection.wire.interrupter().clone();
    let attempts = [request.attempt];
    let Some(admitted) = Admitted::ask(&*shared.admission, peer, &attempts, &executor) else {
        drop(hold);
        return refuse(shared, connection, request, Verdict::Fenced);
    };
    // Bytes that were here before an interruption can still be read: nothing new is begun with them.
    if connection.wire.interrupter().is_interrupted() {
        return false;
    }
    let served = match request.op {
        Op::Write if request.digest => receive_checked(shared, connection, &hold),
        Op::Read if request.digest => {
            let holds = std::slice::from_ref(&hold);
            digest::of_hold(&hold)
                .is_some_and(|digest| send_payloads(shared, connection, holds, true, Some(digest)))
        }
        Op::Write => receive(shared, connection, &hold, TcpFraming::V2),
        Op::Read => send(shared, connection, &hold, TcpFraming::V2),
    };
    drop(admitted);
    if served {
        add(&shared.counters.served, 1);
    }
    served
}

/// Takes the payload of a WRITE and looks whether it fits the digest behind it; whether the connection can serve another.
fn receive_checked(shared: &Shared, connection: &mut Connection, hold: &Hold) -> bool {
    let receiving = Receiving { digest: true, answered: false, ahead: true };
    if !receive_all(shared, connection, std::slice::from_ref(hold), receiving) {
        return false;
    }
    if digest::of_hold(hold) == Some(u64::from_le_bytes(connection.trailer)) {
        connection.owed += 1;
        return settle(shared, connection);
    }
    let (id, range) = (connection.id, hold.range());
    tracing::warn!(target: "te::transport_tcp", connection = id, %range, "a payload does not fit its digest");
    settle(shared, connection) && send_all(shared, connection, &Verdict::Damaged.encode())
}

pub(super) fn why(refusal: Refusal) -> Why {
    match refusal {
        Refusal::PermissionDenied => Why::Access,
        Refusal::Gone => Why::Gone,
        Refusal::Withdrawn => Why::Withdrawn,
        Refusal::TooManyHolds => Why::Overload,
        _ => Why::OutOfRange,
    }
}

fn refuse(shared: &Shared, connection: &mut Connection, request: &Request, verdict: Verdict) -> bool {
    let Request { op, addr, len, attempt, generation, .. } = *request;
    let id = connection.id;
    tracing::debug!(
        target: "te::transport_tcp", connection = id, %op, addr, len, %attempt, ?generation, ?verdict, "refused"
    );
    let trailer = if request.digest && op == Op::Write { DIGEST_LEN as u64 } else { 0 };
    turn_away(shared, connection, (op, len.saturating_add(trailer)), verdict)
}

/// Refuses a request or a list behind which `len` bytes come, if it is a WRITE; whether the connection can serve another.
///
/// The initiator receives answers of READs straight into memory, and so it cannot go on behind one without a payload:
/// the connection ends, as in version 2. The payload of a WRITE is thrown away, and its end is where the next request
/// begins. If it is more than that, the verdict says that it is the last.
pub(super) fn turn_away(
    shared: &Shared,
    connection: &mut Connection,
    (op, len): (Op, u64),
    verdict: Verdict,
) -> bool {
    connection.current.clear();
    add(&shared.counters.refused, 1);
    let last = op == Op::Read || len > shared.config.reject_drain_bytes;
    let bytes = if last { verdict.encode_last() } else { verdict.encode() };
    if !settle(shared, connection) || !send_all(shared, connection, &bytes) {
        return false;
    }
    if last {
        part(shared, connection);
    }
    !last && discard(shared, connection, len)
}
