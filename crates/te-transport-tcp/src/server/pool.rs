//! The serving threads: one for each connection with work, kept for a while when it has none.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::Shared;
use super::serve::{Next, serve};
use super::table::{Connection, Table};

/// How long a thread without a connection stays.
const IDLE: Duration = Duration::from_secs(10);

/// Sees to it that as many threads are awake as connections are ready. Consumes the lock: threads are started
/// without it.
pub(super) fn staff(shared: &Arc<Shared>, mut table: MutexGuard<'_, Table>) {
    let missing = table.ready.len().saturating_sub(table.waiting + table.starting);
    table.threads += missing;
    table.starting += missing;
    let awake = table.ready.len().min(table.waiting);
    drop(table);
    for _ in 0..awake {
        shared.work.notify_one();
    }
    for started in 0..missing {
        let own = shared.clone();
        if let Err(error) = shared.threads.spawn("serve", move || run(&own)) {
            let mut table = shared.table.lock();
            table.threads -= missing - started;
            table.starting -= missing - started;
            tracing::warn!(target: "te::transport_tcp", %error, threads = table.threads, "cannot start a thread");
            if table.threads == 0 {
                // Nobody will come for them.
                let stranded: Vec<_> = table.ready.drain(..).collect();
                for connection in &stranded {
                    table.remove(connection.id);
                }
                drop(table);
                drop(stranded);
            }
            return;
        }
    }
}

fn run(shared: &Arc<Shared>) {
    shared.table.lock().starting -= 1;
    while let Some(connection) = next(shared) {
        shared.busy.fetch_add(1, Ordering::Relaxed);
        let after = connection_served(shared, connection);
        shared.busy.fetch_sub(1, Ordering::Relaxed);
        match after {
            Next::Park(connection) => park(shared, connection),
            Next::Close(connection) => close(shared, connection),
        }
    }
}

fn connection_served(shared: &Shared, mut connection: Connection) -> Next {
    // While it is served, every byte wakes the thread.
    if connection.wire.set_low_water(1).is_err() {
        return Next::Close(connection);
    }
    serve(shared, connection)
}

/// Waits for a connection. `None` ends the thread, which is off the books then.
fn next(shared: &Shared) -> Option<Connection> {
    let end = Instant::now() + IDLE;
    let mut table = shared.table.lock();
    loop {
        if let Some(connection) = table.ready.pop_front() {
            return Some(connection);
        }
        if shared.is_stopping() || Instant::now() >= end {
            table.threads -= 1;
            return None;
        }
        table.waiting += 1;
        shared.work.wait_until(&mut table, end);
        table.waiting -= 1;
    }
}

/// Gives a connection back to the watching thread, to be reported when the rest of a header is there.
fn park(shared: &Arc<Shared>, mut connection: Connection) {
    let missing = i32::try_from(connection.header_len() - connection.have).unwrap_or(1);
    if connection.wire.set_low_water(missing).is_err() {
        return close(shared, connection);
    }
    let id = connection.id;
    let mut table = shared.table.lock();
    if shared.is_stopping() {
        drop(table);
        return close(shared, connection);
    }
    // In the table before it is armed: the event may come at once.
    let parked = table.park(connection);
    let armed = arm(shared, parked);
    if armed.is_err() {
        let gone = table.take_parked(id);
        drop(table);
        drop(gone);
    }
    shared.returned.notify_all();
}

/// Asks for one event when the connection can be read.
fn arm(shared: &Shared, connection: &Connection) -> rustix::io::Result<()> {
    epoll::modify(&shared.epoll, &connection.wire, EventData::new_u64(connection.id), watched())
}

/// What an idle connection is watched for.
pub(super) fn watched() -> EventFlags {
    EventFlags::IN | EventFlags::ONESHOT
}

fn close(shared: &Shared, connection: Connection) {
    let id = connection.id;
    // Closed before it is forgotten: the count of connections is one of descriptors.
    drop(connection);
    shared.table.lock().remove(id);
    shared.returned.notify_all();
}
