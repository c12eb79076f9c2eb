//! Watches that survive their connection, their server, and the loss of the server's data.
//!
//! The client's stream ends with its connection. A task follows it and makes it anew from the revision after the
//! last one seen. Whether that revision still means the same cannot be told from numbers: a server that was wiped
//! counts from one again and may have passed it. So the last value seen is read back at its own revision; if it is
//! not there any more, the watch begins now and says [`WatchEvent::Resync`].

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::{Duration, Instant},
};

use etcd_client::{Client, GetOptions, KeyValue, WatchOptions};
use te_metadata::{
    BoxFuture, Entry, Key, StoreError, StoreErrorKind, StoreOperation, WatchEvent, WatchSource, WatchStream,
    backend::Backoff,
};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    SCHEME,
    failure::Failure,
    servers::Servers,
    store::{first_key, range_end, revision_of},
};

/// Changes that wait for their reader here; more wait in the server.
const BACKLOG: usize = 256;
/// Time for one attempt to make a watch anew.
const REOPEN: Duration = Duration::from_secs(5);

type Item = Result<WatchEvent, StoreError>;

/// The end the reader holds. Dropping it ends the task.
struct EtcdWatch {
    receiver: mpsc::Receiver<Item>,
    task: JoinHandle<()>,
}

impl WatchSource for EtcdWatch {
    fn next(&mut self) -> BoxFuture<'_, Option<Item>> {
        Box::pin(self.receiver.recv())
    }
}

impl Drop for EtcdWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A stream the server has confirmed.
struct Opened {
    stream: etcd_client::WatchStream,
    /// The store's revision when it began.
    revision: i64,
}

/// A value that was seen: what proves that a store still has the history we know.
#[derive(Clone)]
struct Marker {
    key: Vec<u8>,
    revision: i64,
    lease: i64,
    hash: u64,
}

impl Marker {
    fn of(pair: &KeyValue) -> Self {
        let mut hasher = DefaultHasher::new();
        pair.value().hash(&mut hasher);
        Self {
            key: pair.key().to_vec(),
            revision: pair.mod_revision(),
            lease: pair.lease(),
            hash: hasher.finish(),
        }
    }

    async fn is_history(&self, client: &Client, limit: usize) -> Result<bool, Failure> {
        let options = GetOptions::new().with_revision(self.revision);
        let mut kv = client.kv_client().max_decoding_message_size(limit);
        let found = match kv.get(self.key.clone(), Some(options)).await.map_err(Failure::from) {
            Ok(mut found) => found.take_kvs(),
            Err(Failure::Compacted) => return Ok(false),
            Err(failure) => return Err(failure),
        };
        let same =
            |found: Self| (found.revision, found.lease, found.hash) == (self.revision, self.lease, self.hash);
        Ok(found.first().map(Self::of).is_some_and(same))
    }
}

pub(crate) async fn start(
    servers: Arc<Servers>,
    prefix: String,
    limit: usize,
    deadline: Instant,
) -> Result<WatchStream, StoreErrorKind> {
    let opened = servers.call(deadline, |client, _| open(client, &prefix, 0, limit)).await?;
    let (sender, receiver) = mpsc::channel(BACKLOG);
    let follower = Follower { servers, prefix, limit, sender, next: opened.revision + 1, marker: None };
    let task = tokio::spawn(follower.run(opened));
    Ok(WatchStream::new(EtcdWatch { receiver, task }))
}

/// Begins a watch at a revision, 0 for now, and waits until the server confirms it.
async fn open(client: Client, prefix: &str, from: i64, limit: usize) -> Result<Opened, Failure> {
    let options = WatchOptions::new()
        .with_range(range_end(prefix))
        .with_start_revision(from)
        // Moves an idle watch on, so that compaction does not overtake it.
        .with_progress_notify();
    let mut watcher = client.watch_client().max_decoding_message_size(limit);
    let mut stream = watcher.watch(first_key(prefix), Some(options)).await?;
    let Some(first) = stream.message().await? else {
        return Err(Failure::Outage("the watch ended before it began".to_owned()));
    };
    if first.canceled() {
        return Err(canceled(first.compact_revision(), first.cancel_reason()));
    }
    let revision = first.header().map_or(0, etcd_client::ResponseHeader::revision);
    Ok(Opened { stream, revision })
}

fn canceled(compacted: i64, reason: &str) -> Failure {
    if compacted != 0 {
        return Failure::Compacted;
    }
    if reason.contains("PermissionDenied") || reason.contains("permission denied") {
        return Failure::Final(StoreErrorKind::Denied { detail: reason.to_owned() });
    }
    Failure::Outage(format!("the watch was cancelled: {reason}"))
}

/// The reader is gone.
struct Closed;

struct Follower {
    servers: Arc<Servers>,
    prefix: String,
    limit: usize,
    sender: mpsc::Sender<Item>,
    /// The first revision not seen yet.
    next: i64,
    marker: Option<Marker>,
}

impl Follower {
    async fn run(mut self, mut opened: Opened) {
        loop {
            let Ok(compacted) = self.drain(&mut opened).await else { return };
            if compacted {
                self.marker = None;
            }
            match self.reopen().await {
                Ok(Some(again)) => opened = again,
                Ok(None) | Err(Closed) => return,
            }
        }
    }

    /// Hands on what comes until the stream ends. Tells whether it ended because its history is gone.
    async fn drain(&mut self, opened: &mut Opened) -> Result<bool, Closed> {
        loop {
            let response = tokio::select! {
                () = self.sender.closed() => return Err(Closed),
                response = opened.stream.message() => response,
            };
            let Ok(Some(response)) = response else { return Ok(false) };
            if response.canceled() {
                tracing::debug!(reason = response.cancel_reason(), "etcd cancelled a watch");
                return Ok(response.compact_revision() != 0);
            }
            for event in response.events() {
                let Some(pair) = event.kv() else { continue };
                self.hand_on(pair).await?;
                self.next = self.next.max(pair.mod_revision() + 1);
            }
            if response.events().is_empty() {
                let seen = response.header().map_or(0, etcd_client::ResponseHeader::revision);
                self.next = self.next.max(seen + 1);
            }
        }
    }

    async fn hand_on(&mut self, pair: &KeyValue) -> Result<(), Closed> {
        // The kind of the event is not asked for, the client panics on one it does not know. Only what is gone has
        // no version.
        let deleted = pair.version() == 0;
        if !deleted {
            self.marker = Some(Marker::of(pair));
        }
        let Ok(key) = std::str::from_utf8(pair.key()) else { return Ok(()) };
        let (key, revision) = (Key::new(key), revision_of(pair));
        let event = match std::str::from_utf8(pair.value()) {
            _ if deleted => WatchEvent::Delete { key, revision },
            Ok(value) => WatchEvent::Put { key, entry: Entry { value: value.to_owned(), revision } },
            // Whoever reads it gets the error.
            Err(_) => WatchEvent::Resync,
        };
        self.send(Ok(event)).await
    }

    async fn send(&self, item: Item) -> Result<(), Closed> {
        self.sender.send(item).await.map_err(|_| Closed)
    }

    /// A new stream; `None` if the store refuses one.
    async fn reopen(&mut self) -> Result<Option<Opened>, Closed> {
        let mut backoff = Backoff::new();
        loop {
            let attempt = self.reopen_once();
            let outcome = tokio::select! {
                () = self.sender.closed() => return Err(Closed),
                outcome = attempt => outcome,
            };
            match outcome {
                Ok((opened, true)) => return Ok(Some(opened)),
                Ok((opened, false)) => {
                    (self.next, self.marker) = (opened.revision + 1, None);
                    self.send(Ok(WatchEvent::Resync)).await?;
                    return Ok(Some(opened));
                }
                Err(kind @ (StoreErrorKind::Unavailable { .. } | StoreErrorKind::DeadlineExceeded)) => {
                    tracing::debug!(%kind, "etcd watch is not back yet");
                }
                Err(kind) => {
                    let error = StoreError::new(SCHEME, StoreOperation::Watch, self.prefix.as_str(), kind);
                    self.send(Err(error)).await?;
                    return Ok(None);
                }
            }
            let pause = backoff.pause();
            tokio::select! {
                () = self.sender.closed() => return Err(Closed),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// A new stream and whether it goes on where the last one ended.
    async fn reopen_once(&self) -> Result<(Opened, bool), StoreErrorKind> {
        let deadline = Instant::now() + REOPEN;
        let attempt = |client: Client, _| async move {
            let goes_on = match &self.marker {
                Some(marker) => marker.is_history(&client, self.limit).await?,
                None => false,
            };
            if goes_on {
                match open(client.clone(), &self.prefix, self.next, self.limit).await {
                    Err(Failure::Compacted) => {}
                    opened => return Ok((opened?, true)),
                }
            }
            Ok((open(client, &self.prefix, 0, self.limit).await?, false))
        };
        self.servers.call(deadline, attempt).await
    }
}
