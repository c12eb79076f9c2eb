//! Watches: what writers tell, what the server tells, and a look now and then.
//!
//! Our scripts tell each change on a channel that bears the key's name, with revision and value, so that a watch sees
//! every one. Expiry and foreign writes are not told there. For them the server's keyspace events name the key, which
//! is then read; where they are off, a scan every few seconds finds the difference.
//!
//! A keyspace event of our own write comes just before the writer's message, so a key that was named is read a moment
//! later, and not at all if the message has come by then.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, Value, aio::MultiplexedConnection};
use te_metadata::{
    BoxFuture, Entry, Key, StoreError, StoreErrorKind, StoreOperation, WatchEvent, WatchSource, WatchStream,
    backend::Backoff,
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    SCHEME,
    failure::Failure,
    link::{Link, SharedLink},
    list::{read_all, scan},
    scripts::{self, RESERVED},
    store::value_of,
};

/// Changes that wait for their reader.
const BACKLOG: usize = 256;
/// Messages that wait for the watch; beyond, it begins anew.
const MESSAGES: usize = 4096;
/// How long a key that the server named waits for a writer's message.
const SETTLE: Duration = Duration::from_millis(20);
/// How often the server is asked whether it is there.
const PING: Duration = Duration::from_secs(5);

type Item = Result<WatchEvent, StoreError>;

struct RedisWatch {
    receiver: mpsc::Receiver<Item>,
    task: JoinHandle<()>,
}

impl WatchSource for RedisWatch {
    fn next(&mut self) -> BoxFuture<'_, Option<Item>> {
        Box::pin(self.receiver.recv())
    }
}

impl Drop for RedisWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) async fn start(
    link: SharedLink,
    prefix: String,
    deadline: std::time::Instant,
) -> Result<WatchStream, StoreErrorKind> {
    // On a connection of its own, but as patiently as a call.
    let session = link.call(deadline, |_, _| Session::open(&link, &prefix)).await?;
    let (sender, receiver) = mpsc::channel(BACKLOG);
    let task = tokio::spawn(Follower { link, prefix, sender }.run(session));
    Ok(WatchStream::new(RedisWatch { receiver, task }))
}

/// One connection's worth of a watch.
struct Session {
    connection: MultiplexedConnection,
    messages: mpsc::Receiver<PushInfo>,
    /// Messages were dropped.
    lagged: Arc<AtomicBool>,
    /// The server tells of expiry and foreign writes.
    events: bool,
    /// The revision of each key with the prefix.
    known: HashMap<String, u64>,
    /// Keys that the server named, and when they are to be read.
    named: HashMap<String, Instant>,
    next_poll: Instant,
    next_ping: Instant,
}

/// What a message says.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Put(u64, String),
    /// A value that is too large for a message.
    Changed(u64),
    Deleted(u64),
}

fn told(payload: &[u8]) -> Option<Told> {
    let text = std::str::from_utf8(payload).ok()?;
    let (kind, rest) = text.split_at_checked(1)?;
    match kind {
        "P" => {
            let (revision, value) = rest.split_once(' ')?;
            Some(Told::Put(revision.parse().ok()?, value.to_owned()))
        }
        "N" => Some(Told::Changed(rest.parse().ok()?)),
        "D" => Some(Told::Deleted(rest.parse().ok()?)),
        _ => None,
    }
}

impl Session {
    async fn open(link: &Link, prefix: &str) -> Result<Self, Failure> {
        let (sender, messages) = mpsc::channel(MESSAGES);
        let lagged = Arc::new(AtomicBool::new(false));
        let full = Arc::clone(&lagged);
        let hand_on = move |push| {
            if let Err(mpsc::error::TrySendError::Full(_)) = sender.try_send(push) {
                full.store(true, Ordering::Release);
            }
            Ok::<(), ()>(())
        };
        let options = AsyncConnectionConfig::new().set_push_sender(hand_on);
        let mut told = true;
        let mut connection = match link.connect(options, ProtocolVersion::RESP3).await {
            Err(Failure::OldProtocol) => {
                told = false;
                link.connect(AsyncConnectionConfig::new(), ProtocolVersion::RESP2).await?
            }
            connection => connection?,
        };
        let database = link.config.database;
        let mut events = false;
        if told {
            told = subscribe(&mut connection, scripts::pattern(&scripts::channel(database, prefix))).await?;
            events = events_on(&mut connection, link.config.enable_events).await?
                && subscribe(&mut connection, scripts::pattern(&event_channel(database, prefix))).await?;
        }
        tracing::debug!(told, events, "redis watch begins");
        // Read after subscribing: what changes in between is told, and known to be old by its revision.
        let known = revisions(&mut connection, prefix).await?;
        let now = Instant::now();
        Ok(Self {
            connection,
            messages,
            lagged,
            events,
            known,
            named: HashMap::new(),
            next_poll: now + link.config.poll,
            next_ping: now + PING,
        })
    }
}

fn event_channel(database: u32, key: &str) -> String {
    format!("__keyspace@{database}__:{key}")
}

async fn revisions(
    connection: &mut MultiplexedConnection,
    prefix: &str,
) -> Result<HashMap<String, u64>, Failure> {
    let keys = scan(connection, prefix).await?;
    let found = read_all(connection, &keys, false).await?;
    Ok(found.into_iter().map(|(key, revision, _)| (key, revision)).collect())
}

/// Whether the server lets us subscribe.
async fn subscribe(connection: &mut MultiplexedConnection, pattern: String) -> Result<bool, Failure> {
    match connection.psubscribe(pattern).await.map_err(Failure::from) {
        Ok(()) => Ok(true),
        Err(Failure::Final(kind)) => {
            tracing::debug!(%kind, "redis watch polls instead of being told");
            Ok(false)
        }
        Err(failure) => Err(failure),
    }
}

/// Whether the server tells of every kind of change of every key.
async fn events_on(connection: &mut MultiplexedConnection, enable: bool) -> Result<bool, Failure> {
    const SETTING: &str = "notify-keyspace-events";
    let mut ask = redis::cmd("CONFIG");
    ask.arg("GET").arg(SETTING);
    // Many managed servers refuse the question.
    let flags = match ask.query_async::<HashMap<String, String>>(connection).await.map_err(Failure::from) {
        Ok(answer) => answer.get(SETTING).cloned().unwrap_or_default(),
        Err(Failure::Final(_)) => return Ok(false),
        Err(failure) => return Err(failure),
    };
    let every = |flags: &str| flags.contains('A') || "g$xe".chars().all(|flag| flags.contains(flag));
    if flags.contains('K') && every(&flags) {
        return Ok(true);
    }
    if !enable {
        return Ok(false);
    }
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg(SETTING).arg(format!("{flags}KA"));
    match set.query_async::<()>(connection).await.map_err(Failure::from) {
        Ok(()) => Ok(true),
        Err(Failure::Final(_)) => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Why a session ends.
enum End {
    /// The reader is gone.
    Closed,
    /// The connection is, or messages were lost.
    Lost,
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        tracing::debug!(?failure, "redis watch begins anew");
        Self::Lost
    }
}

struct Follower {
    link: SharedLink,
    prefix: String,
    sender: mpsc::Sender<Item>,
}

impl Follower {
    async fn run(self, mut session: Session) {
        loop {
            match self.follow(&mut session).await {
                End::Closed => return,
                End::Lost => drop(session),
            }
            session = match self.reopen().await {
                Some(session) => session,
                None => return,
            };
            if self.send(Ok(WatchEvent::Resync)).await.is_err() {
                return;
            }
        }
    }

    /// A new session; `None` if the reader is gone or the store refuses one.
    async fn reopen(&self) -> Option<Session> {
        let mut backoff = Backoff::new();
        loop {
            let opening = timeout(self.link.config.answer, Session::open(&self.link, &self.prefix));
            let opened = tokio::select! {
                () = self.sender.closed() => return None,
                opened = opening => opened,
            };
            match opened {
                Ok(Ok(session)) => return Some(session),
                Ok(Err(Failure::Final(kind))) => {
                    let error = StoreError::new(SCHEME, StoreOperation::Watch, self.prefix.as_str(), kind);
                    let _ = self.send(Err(error)).await;
                    return None;
                }
                Ok(Err(failure)) => tracing::debug!(?failure, "redis watch is not back yet"),
                Err(_) => tracing::debug!("redis watch is not back yet: no answer in time"),
            }
            tokio::select! {
                () = self.sender.closed() => return None,
                () = sleep(backoff.pause()) => {}
            }
        }
    }

    async fn send(&self, item: Item) -> Result<(), End> {
        self.sender.send(item).await.map_err(|_| End::Closed)
    }

    async fn follow(&self, session: &mut Session) -> End {
        loop {
            if let Err(end) = self.step(session).await {
                return end;
            }
        }
    }

    async fn step(&self, session: &mut Session) -> Result<(), End> {
        let due = session.named.values().min().copied();
        let poll = (!session.events).then_some(session.next_poll);
        let wake = [due, poll, Some(session.next_ping)].into_iter().flatten().min();
        let wake = wake.unwrap_or(session.next_ping);
        tokio::select! {
            biased;
            () = self.sender.closed() => return Err(End::Closed),
            message = session.messages.recv(), if !session.messages.is_closed() => match message {
                Some(push) if push.kind == PushKind::Disconnection => return Err(End::Lost),
                Some(push) => self.message(session, &push).await?,
                None => {}
            },
            () = sleep_until(wake) => {}
        }
        if session.lagged.load(Ordering::Acquire) {
            return Err(End::Lost);
        }
        let now = Instant::now();
        let ripe: Vec<_> =
            session.named.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for key in ripe {
            session.named.remove(&key);
            self.look(session, &key).await?;
        }
        if !session.events && session.next_poll <= now {
            self.poll(session).await?;
            session.next_poll = Instant::now() + self.link.config.poll;
        }
        if session.next_ping <= now {
            let ping = redis::cmd("PING");
            let answer = self.in_time(ping.query_async::<Value>(&mut session.connection)).await?;
            answer.map_err(Failure::from)?;
            session.next_ping = Instant::now() + PING;
        }
        Ok(())
    }

    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, End> {
        timeout(self.link.config.answer, work).await.map_err(|_| End::Lost)
    }

    async fn message(&self, session: &mut Session, push: &PushInfo) -> Result<(), End> {
        let (PushKind::PMessage, [_, Value::BulkString(channel), Value::BulkString(payload)]) =
            (&push.kind, push.data.as_slice())
        else {
            return Ok(());
        };
        let Ok(channel) = std::str::from_utf8(channel) else { return Ok(()) };
        let database = self.link.config.database;
        if let Some(key) = channel.strip_prefix(&event_channel(database, "")) {
            if !key.starts_with(RESERVED) {
                session.named.entry(key.to_owned()).or_insert_with(|| Instant::now() + SETTLE);
            }
            return Ok(());
        }
        let Some(key) = channel.strip_prefix(&scripts::channel(database, "")) else { return Ok(()) };
        session.named.remove(key);
        match told(payload) {
            Some(Told::Put(revision, value)) => self.put(session, key, Entry { value, revision }).await,
            Some(Told::Changed(_)) | None => self.look(session, key).await,
            Some(Told::Deleted(revision)) => {
                let known = session.known.get(key).copied().unwrap_or_default();
                if known > revision {
                    return Ok(());
                }
                session.known.remove(key);
                self.send(Ok(WatchEvent::Delete { key: Key::new(key), revision })).await
            }
        }
    }

    async fn put(&self, session: &mut Session, key: &str, entry: Entry) -> Result<(), End> {
        // Revision 0 is given where notes cannot be written, and proves nothing.
        if entry.revision != 0 && session.known.get(key).is_some_and(|known| *known >= entry.revision) {
            return Ok(());
        }
        session.known.insert(key.to_owned(), entry.revision);
        self.send(Ok(WatchEvent::Put { key: Key::new(key), entry })).await
    }

    /// Reads a key and tells what is new about it.
    async fn look(&self, session: &mut Session, key: &str) -> Result<(), End> {
        match self.in_time(value_of(&mut session.connection, key)).await? {
            Ok(Some(entry)) => self.put(session, key, entry).await,
            Ok(None) => self.gone(session, key).await,
            // No text: whoever reads it gets the error.
            Err(Failure::Final(_)) => self.send(Ok(WatchEvent::Resync)).await,
            Err(failure) => Err(failure.into()),
        }
    }

    async fn gone(&self, session: &mut Session, key: &str) -> Result<(), End> {
        match session.known.remove(key) {
            // Nobody counted this deletion; the next revision of the key will be later still.
            Some(known) => {
                let revision = known.saturating_add(1);
                self.send(Ok(WatchEvent::Delete { key: Key::new(key), revision })).await
            }
            None => Ok(()),
        }
    }

    /// Finds what nobody told.
    async fn poll(&self, session: &mut Session) -> Result<(), End> {
        let found = self.in_time(revisions(&mut session.connection, &self.prefix)).await??;
        let missing: Vec<_> = session.known.keys().filter(|key| !found.contains_key(*key)).cloned().collect();
        let changed =
            |(key, revision): &(String, u64)| session.known.get(key).is_none_or(|known| known < revision);
        let changed: Vec<_> = found.into_iter().filter(changed).map(|(key, _)| key).collect();
        // Not at once: what writers told about these keys may be on its way.
        let due = Instant::now() + SETTLE;
        for key in missing.into_iter().chain(changed) {
            session.named.entry(key).or_insert(due);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_and_nonsense_is_not() {
        assert_eq!(told(b"P17 {\"a\": 1}\n"), Some(Told::Put(17, "{\"a\": 1}\n".to_owned())));
        assert_eq!(told(b"P17 "), Some(Told::Put(17, String::new())));
        assert_eq!(told(b"N17"), Some(Told::Changed(17)));
        assert_eq!(told(b"D17"), Some(Told::Deleted(17)));
        for nonsense in [&b""[..], b"P", b"P17", b"Px y", b"D", b"D-1", b"X17", b"\xff17", "é".as_bytes()] {
            assert_eq!(told(nonsense), None, "{nonsense:?}");
        }
    }
}
