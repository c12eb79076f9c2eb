//! Streams of server-sent events: changes of keys for engines, changes of segments for the page.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{Request, State},
    http::{
        HeaderValue, StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
};
use hyper::body::Frame;
use serde::Serialize;
use tokio::sync::mpsc;

use super::{
    cluster,
    history::{Event, Missed},
    routes::{App, Refused, refused, words},
    writer::Shared,
};
use crate::protocol::{Change, Hello, JSON, event, parameter};

/// A stream without events says this often that it is still there.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How often the page hears of renewed leases.
const LEASES: Duration = Duration::from_secs(2);
/// Events sent between two looks at the history.
const BATCH: usize = 256;
/// Pieces that wait for a slow reader; then the reader has to catch up from the history.
const BACKLOG: usize = 4;

/// A body that is sent piece by piece.
struct Pieces(mpsc::Receiver<Bytes>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// Counts a watch for as long as it lives.
struct Counted(Arc<Shared>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.metrics.watches.dec();
    }
}

/// One stream: where it is in the history, and whom it sends to.
struct Stream {
    app: Arc<App>,
    prefix: String,
    reached: u64,
    out: mpsc::Sender<Bytes>,
    _counted: Counted,
}

/// The reader is gone, or the server stops.
struct Ended;

impl Stream {
    /// Opens a stream if there may be one more.
    fn open(app: &Arc<App>, prefix: String, reached: u64) -> Result<(Self, Response), Refused> {
        let watches = &app.shared.metrics.watches;
        let counted = Counted(Arc::clone(&app.shared));
        if watches.inc() >= i64::try_from(app.limits.max_watches).unwrap_or(i64::MAX) {
            return Err(refused(StatusCode::SERVICE_UNAVAILABLE, "too many watches"));
        }
        let (out, pieces) = mpsc::channel(BACKLOG);
        let stream = Self { app: Arc::clone(app), prefix, reached, out, _counted: counted };
        let mut response = Body::new(Pieces(pieces)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        // Proxies that collect answers would keep the events.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        Ok((stream, response))
    }

    async fn send(&self, text: String) -> Result<(), Ended> {
        let mut stopping = self.app.stopping.clone();
        tokio::select! {
            sent = self.out.send(Bytes::from(text)) => sent.map_err(|_| Ended),
            () = super::stopped(&mut stopping) => Err(Ended),
        }
    }

    /// The changes since the last call; waits for some, at most until `until`. `None`: more than is remembered.
    async fn changes(&mut self, until: tokio::time::Instant) -> Result<Option<Vec<Event>>, Ended> {
        let mut changed = self.app.shared.changed.subscribe();
        let mut stopping = self.app.stopping.clone();
        loop {
            changed.borrow_and_update();
            let missed = self.app.shared.contents.read().history.after(self.reached, &self.prefix, BATCH);
            match missed {
                Missed::Events(events, reached) => {
                    self.reached = reached;
                    if !events.is_empty() {
                        return Ok(Some(events));
                    }
                }
                Missed::TooMuch(reached) => {
                    self.reached = reached;
                    return Ok(None);
                }
            }
            tokio::select! {
                outcome = changed.changed() => outcome.map_err(|_| Ended)?,
                () = tokio::time::sleep_until(until) => return Ok(Some(Vec::new())),
                () = self.out.closed() => return Err(Ended),
                () = super::stopped(&mut stopping) => return Err(Ended),
            }
        }
    }
}

fn message(name: &str, id: Option<u64>, data: &impl Serialize) -> String {
    let data = serde_json::to_string(data).unwrap_or_default();
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("event: {name}\n{id}data: {data}\n\n")
}

/// `GET /metadata/watch?prefix=P[&life=L&after=N]`: changes from now on, or from where a watch broke.
pub(super) async fn watch(State(app): State<Arc<App>>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let Ok(prefix) = parameter(query, "prefix") else {
        return words(StatusCode::BAD_REQUEST, "prefix is not UTF-8");
    };
    let text = |name| parameter(query, name).ok().flatten();
    let now = app.shared.contents.read().revision;
    let life = text("life");
    // A place in another life of the server is no place in this one.
    let (reached, lost) = match (&life, text("after").and_then(|after| after.parse().ok())) {
        (Some(life), Some(after)) if *life == app.life => (after, false),
        (None, None) => (now, false),
        _ => (now, true),
    };
    let (stream, response) = match Stream::open(&app, prefix.unwrap_or_default(), reached) {
        Ok(opened) => opened,
        Err(refused) => return refused.into_response(),
    };
    tokio::spawn(async move {
        // Whoever reads is gone: nothing is left to do.
        let _ = follow(stream, lost).await;
    });
    response
}

async fn follow(mut stream: Stream, lost: bool) -> Result<(), Ended> {
    let hello = Hello { life: stream.app.life.clone(), revision: stream.reached };
    stream.send(message(event::HELLO, None, &hello)).await?;
    if lost {
        stream.send(message(event::RESYNC, None, &())).await?;
    }
    loop {
        let text = match stream.changes(tokio::time::Instant::now() + HEARTBEAT).await? {
            Some(events) if events.is_empty() => ":\n\n".to_owned(),
            Some(events) => events.iter().map(change).collect(),
            None => {
                let hello = Hello { life: stream.app.life.clone(), revision: stream.reached };
                message(event::HELLO, None, &hello) + &message(event::RESYNC, None, &())
            }
        };
        stream.send(text).await?;
    }
}

fn change(event: &Event) -> String {
    let name = if event.value.is_some() { event::PUT } else { event::DELETE };
    let change = Change {
        key: event.key.to_string(),
        revision: event.revision,
        value: event.value.as_ref().map(ToString::to_string),
    };
    message(name, Some(event.revision), &change)
}

/// `GET /cluster`: all segments, in words the page needs.
pub(super) async fn cluster(State(app): State<Arc<App>>) -> Response {
    let view = cluster::view(&app.shared.contents.read(), Instant::now());
    match serde_json::to_string(&view) {
        Ok(text) => ([(CONTENT_TYPE, JSON)], text).into_response(),
        Err(_) => words(StatusCode::INTERNAL_SERVER_ERROR, "the cluster cannot be written"),
    }
}

/// `GET /cluster/events`: the same, then what changes.
pub(super) async fn cluster_events(State(app): State<Arc<App>>) -> Response {
    let now = app.shared.contents.read().revision;
    let (stream, response) = match Stream::open(&app, String::new(), now) {
        Ok(opened) => opened,
        Err(refused) => return refused.into_response(),
    };
    tokio::spawn(async move {
        // Whoever reads is gone: nothing is left to do.
        let _ = show(stream).await;
    });
    response
}

async fn show(mut stream: Stream) -> Result<(), Ended> {
    stream.send(whole(&stream)).await?;
    let (mut looked, mut tick) = (Instant::now(), tokio::time::Instant::now() + LEASES);
    loop {
        let changes = stream.changes(tick).await?;
        let mut text = match changes {
            None => whole(&stream),
            Some(events) => {
                let contents = stream.app.shared.contents.read();
                cluster::touched(&contents, events.iter().map(|event| &*event.key), Instant::now())
                    .iter()
                    .map(|(name, data)| message(name, None, data))
                    .collect()
            }
        };
        if tokio::time::Instant::now() >= tick {
            let now = Instant::now();
            text +=
                &message("leases", None, &cluster::renewed(&stream.app.shared.contents.read(), looked, now));
            (looked, tick) = (now, tokio::time::Instant::now() + LEASES);
        }
        if !text.is_empty() {
            stream.send(text).await?;
        }
    }
}

fn whole(stream: &Stream) -> String {
    let view = cluster::view(&stream.app.shared.contents.read(), Instant::now());
    message("all", None, &view)
}
