//! A watch of our server: events as they happen, taken up again where a connection broke.

use std::{collections::VecDeque, time::Duration};

use reqwest::Response;
use te_metadata::{
    BoxFuture, Entry, Key, StoreError, StoreErrorKind, StoreOperation, WatchEvent, WatchSource,
};
use tokio::time::Instant;

use super::{
    HttpStore, SCHEME, TARGET,
    attempt::{Ask, Reply, Resume},
    sse::{Event, Parser},
};
use crate::protocol::{Change, Hello, event};

/// Longest event: a value whose every character is escaped, with room for its key.
const MAX_EVENT: usize = 64 << 20;
/// The server says something every five seconds. Silence of this length is an outage.
const SILENCE: Duration = Duration::from_secs(12);
/// Time for one attempt to take up the watch again.
const REOPEN: Duration = Duration::from_secs(4);
/// Attempts in a row before the watch counts as broken.
const ATTEMPTS: u32 = 5;

pub(super) struct ServerWatch {
    store: HttpStore,
    prefix: String,
    stream: Option<Response>,
    parser: Parser,
    ready: VecDeque<Result<WatchEvent, StoreError>>,
    resume: Option<Resume>,
    failures: u32,
    not_before: Instant,
    ended: bool,
}

impl ServerWatch {
    pub(super) fn new(store: HttpStore, prefix: &str, stream: Response) -> Self {
        Self {
            store,
            prefix: prefix.to_owned(),
            stream: Some(stream),
            parser: Parser::new(MAX_EVENT),
            ready: VecDeque::new(),
            resume: None,
            failures: 0,
            not_before: Instant::now(),
            ended: false,
        }
    }

    fn error(&self, kind: StoreErrorKind) -> StoreError {
        StoreError::new(SCHEME, StoreOperation::Watch, self.prefix.as_str(), kind)
    }

    /// Ends the watch with its reason.
    fn end(&mut self, kind: StoreErrorKind) {
        self.ended = true;
        self.stream = None;
        let error = self.error(kind);
        self.ready.push_back(Err(error));
    }

    /// Loses the connection, not the place.
    fn lose(&mut self, why: &str) {
        tracing::debug!(target: TARGET, prefix = %self.prefix, why, "watch lost its connection");
        self.stream = None;
        self.parser = Parser::new(MAX_EVENT);
    }

    /// Reads the next bytes. May be dropped at any await: what was read is in `self`.
    async fn read(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        let chunk = match tokio::time::timeout(SILENCE, stream.chunk()).await {
            Ok(Ok(Some(chunk))) => chunk,
            Ok(Ok(None)) => return self.lose("the server closed it"),
            Ok(Err(_)) => return self.lose("it broke"),
            Err(_) => return self.lose("the server is silent"),
        };
        let mut events = Vec::new();
        let outcome = self.parser.push(&chunk, &mut events);
        for event in events {
            if let Err(detail) = self.take(&event) {
                return self.end(StoreErrorKind::Invalid { detail });
            }
        }
        if outcome.is_err() {
            self.end(StoreErrorKind::Invalid {
                detail: format!("an event is larger than {MAX_EVENT} bytes"),
            });
        }
    }

    fn take(&mut self, message: &Event) -> Result<(), String> {
        self.failures = 0;
        let broken = |error: serde_json::Error| format!("event {:?}: {error}", message.name);
        match message.name.as_str() {
            event::HELLO => {
                let Hello { life, revision } = serde_json::from_str(&message.data).map_err(broken)?;
                self.resume = Some(Resume { life, revision });
            }
            event::PUT | event::DELETE => {
                let Change { key, revision, value } = serde_json::from_str(&message.data).map_err(broken)?;
                let key = Key::new(key);
                let change = match value {
                    Some(value) => WatchEvent::Put { key, entry: Entry { value, revision } },
                    None => WatchEvent::Delete { key, revision },
                };
                if let Some(resume) = &mut self.resume {
                    resume.revision = revision;
                }
                self.ready.push_back(Ok(change));
            }
            event::RESYNC => self.ready.push_back(Ok(WatchEvent::Resync)),
            // What a later server tells besides.
            _ => {}
        }
        Ok(())
    }

    /// Takes the watch up again, on any server. May be dropped at any await.
    async fn reopen(&mut self) {
        tokio::time::sleep_until(self.not_before).await;
        let ask = Ask::Watch { prefix: &self.prefix, resume: self.resume.as_ref() };
        let deadline = (Instant::now() + REOPEN).into_std();
        match self.store.call(StoreOperation::Watch, &self.prefix, ask, deadline).await {
            Ok(Reply::Stream(stream)) => {
                // Without a place to go on from, nobody knows what was missed.
                if self.resume.is_none() {
                    self.ready.push_back(Ok(WatchEvent::Resync));
                }
                self.stream = Some(stream);
                self.delay();
            }
            Ok(_) => self.end(StoreErrorKind::Unsupported { ability: "watch any more" }),
            Err(error) if error.is_retryable() && self.failures < ATTEMPTS => self.delay(),
            Err(error) => self.end(error.kind),
        }
    }

    /// Waits longer before each attempt that follows without an event between.
    fn delay(&mut self) {
        self.failures += 1;
        self.not_before = Instant::now() + Duration::from_millis(50) * 2_u32.pow(self.failures.min(6));
    }
}

impl WatchSource for ServerWatch {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<WatchEvent, StoreError>>> {
        Box::pin(async move {
            loop {
                if let Some(event) = self.ready.pop_front() {
                    return Some(event);
                }
                if self.ended {
                    return None;
                }
                match self.stream {
                    Some(_) => self.read().await,
                    None => self.reopen().await,
                }
            }
        })
    }
}
