//! The requests: those of the reference engine, and ours beside them.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
        header::{CONTENT_TYPE, ETAG, IF_MATCH, IF_NONE_MATCH, WWW_AUTHENTICATE},
        request::Parts,
    },
    middleware::Next,
    response::{IntoResponse, Response},
    routing::{any, get},
};
use te_metadata::backend::Secret;

use super::{
    auth,
    config::ServerLimits,
    contents::{Command, Condition, Record, Refusal},
    events, metrics, page,
    writer::{Shared, Writer},
};
use crate::protocol::{self, JSON, ListEntry, ListPage, parameter};

/// Content type of the reference servers' words.
const WORDS: &str = "application/json; charset=utf-8";
/// Bytes of values in one page of a list, about.
const PAGE: usize = 4 << 20;
/// Keys in one page of a list.
const PAGE_KEYS: usize = 4096;

/// What every request needs.
pub(super) struct App {
    pub(super) shared: Arc<Shared>,
    pub(super) writer: Writer,
    pub(super) limits: ServerLimits,
    pub(super) token: Option<Secret>,
    /// Which life of this server it is.
    pub(super) life: String,
    /// Becomes true when the server stops.
    pub(super) stopping: tokio::sync::watch::Receiver<bool>,
}

pub(super) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/metadata", any(metadata))
        .route("/metadata/watch", get(events::watch))
        .route("/cluster", get(events::cluster))
        .route("/cluster/events", get(events::cluster_events))
        .route("/healthz", get(healthz))
        .route("/metrics", get(openmetrics))
        .route("/", get(page::page))
        .fallback(async || words(StatusCode::NOT_FOUND, "no such page"))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), around))
        .with_state(app)
}

/// Checks the token, counts the request, and signs the answer.
async fn around(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let path = request.uri().path();
    let operation = operation(request.method(), path, request.uri().query().unwrap_or_default());
    let open = matches!(path, "/" | "/healthz");
    let mut response = if open || auth::is_allowed(app.token.as_ref(), request.headers()) {
        next.run(request).await
    } else {
        let mut response = words(StatusCode::UNAUTHORIZED, "a token is required");
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"te\""));
        response
    };
    let headers = response.headers_mut();
    headers.insert(protocol::STORE, HeaderValue::from_static(protocol::STORE_VERSION));
    headers.insert(protocol::MAX_VALUE, HeaderValue::from(app.limits.max_value));
    let counted = metrics::Request { operation, status: response.status().as_u16() };
    app.shared.metrics.requests.get_or_create(&counted).inc();
    app.shared.metrics.request_seconds.observe(begun.elapsed().as_secs_f64());
    response
}

fn operation(method: &Method, path: &str, query: &str) -> &'static str {
    match (path, method) {
        ("/metadata", &Method::GET) if query.starts_with("prefix=") => "list",
        ("/metadata", &Method::GET) => "get",
        ("/metadata", &Method::PUT) => "put",
        ("/metadata", &Method::DELETE) => "delete",
        ("/metadata", &Method::POST) => "renew",
        ("/metadata/watch", _) => "watch",
        ("/cluster" | "/cluster/events" | "/", _) => "page",
        ("/healthz" | "/metrics", _) => "monitoring",
        _ => "other",
    }
}

/// An answer in words, as the reference servers give them.
pub(super) fn words(status: StatusCode, text: &'static str) -> Response {
    (status, [(CONTENT_TYPE, WORDS)], text).into_response()
}

async fn metadata(State(app): State<Arc<App>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let outcome = match head.method {
        Method::GET | Method::HEAD => app.get_or_list(&head),
        Method::PUT => app.put(&head, body).await,
        Method::DELETE => app.delete(&head).await,
        Method::POST => app.renew(&head).await,
        _ => Err(refused(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed")),
    };
    outcome.unwrap_or_else(IntoResponse::into_response)
}

/// A request that is answered in words instead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    status: StatusCode,
    said: &'static str,
    /// The revision that stands in its way.
    current: Option<u64>,
}

/// Refuses with a status and words.
pub(super) fn refused(status: StatusCode, said: &'static str) -> Refused {
    Refused { status, said, current: None }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = words(self.status, self.said);
        if let Some(current) = self.current {
            revision(response.headers_mut(), current);
        }
        response
    }
}

type Outcome = Result<Response, Refused>;

impl App {
    fn key(&self, head: &Parts) -> Result<Arc<str>, Refused> {
        let query = head.uri.query().unwrap_or_default();
        match parameter(query, "key") {
            Ok(Some(key)) if key.len() > self.limits.max_key => {
                Err(refused(StatusCode::BAD_REQUEST, "metadata key is too long"))
            }
            Ok(Some(key)) if !key.is_empty() => Ok(key.into()),
            Ok(_) => Err(refused(StatusCode::BAD_REQUEST, "metadata key is required")),
            Err(_) => Err(refused(StatusCode::BAD_REQUEST, "metadata key is not UTF-8")),
        }
    }

    fn get_or_list(&self, head: &Parts) -> Outcome {
        let query = head.uri.query().unwrap_or_default();
        if let Ok(Some(prefix)) = parameter(query, "prefix") {
            let after = parameter(query, "after").ok().flatten();
            return self.list(&prefix, after.as_deref());
        }
        let (key, now) = (self.key(head)?, Instant::now());
        let contents = self.shared.contents.read();
        let Some(record) = contents.get(&key, now) else {
            return Err(refused(StatusCode::NOT_FOUND, "metadata not found"));
        };
        let mut response = ([(CONTENT_TYPE, JSON)], record.value.to_string()).into_response();
        revision(response.headers_mut(), record.revision);
        if let Some(left) = left_ms(record, now) {
            number(response.headers_mut(), protocol::LEASE_MS, left);
        }
        Ok(response)
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> Outcome {
        let mut page = ListPage::default();
        {
            let contents = self.shared.contents.read();
            let (mut size, now) = (0, Instant::now());
            for (key, record) in contents.range(prefix, after, now) {
                if size >= PAGE || page.entries.len() == PAGE_KEYS {
                    page.more = true;
                    break;
                }
                size += key.len() + record.value.len();
                let (key, value) = (key.to_string(), record.value.to_string());
                let lease_ms = left_ms(record, now);
                page.entries.push(ListEntry { key, value, revision: record.revision, lease_ms });
            }
        }
        let text = serde_json::to_string(&page)
            .map_err(|_| refused(StatusCode::INTERNAL_SERVER_ERROR, "list cannot be written"))?;
        Ok(([(CONTENT_TYPE, JSON)], text).into_response())
    }

    async fn put(&self, head: &Parts, body: Body) -> Outcome {
        let (key, condition) = (self.key(head)?, condition(&head.headers)?);
        let (lease, holder) = (self.lease(&head.headers)?, holder(&head.headers)?);
        let body = self.body(body).await?;
        let value = String::from_utf8(body)
            .map_err(|_| refused(StatusCode::BAD_REQUEST, "metadata value is not UTF-8"))?;
        let command = Command::Put { key, value: value.into(), condition, lease, holder };
        self.done(command, "metadata updated").await
    }

    async fn delete(&self, head: &Parts) -> Outcome {
        let (key, condition) = (self.key(head)?, condition(&head.headers)?);
        let holder = holder(&head.headers)?;
        self.done(Command::Delete { key, condition, holder }, "metadata deleted").await
    }

    async fn renew(&self, head: &Parts) -> Outcome {
        let (key, holder) = (self.key(head)?, holder(&head.headers)?);
        let (Condition::Revision(revision), Some(lease)) =
            (condition(&head.headers)?, self.lease(&head.headers)?)
        else {
            return Err(refused(StatusCode::BAD_REQUEST, "a renewal needs If-Match and te-lease-ms"));
        };
        self.done(Command::Renew { key, revision, lease, holder }, "lease renewed").await
    }

    async fn done(&self, command: Command, said: &'static str) -> Outcome {
        match self.writer.run(command).await {
            Ok(now) => {
                let mut response = words(StatusCode::OK, said);
                revision(response.headers_mut(), now);
                Ok(response)
            }
            Err(refusal) => Err(refuse(refusal)),
        }
    }

    fn lease(&self, headers: &HeaderMap) -> Result<Option<Duration>, Refused> {
        let Some(text) = headers.get(protocol::LEASE_MS) else { return Ok(None) };
        match text.to_str().ok().and_then(|text| text.parse().ok()) {
            Some(0) | None => Err(refused(StatusCode::BAD_REQUEST, "te-lease-ms is no positive number")),
            Some(ms) => Ok(Some(Duration::from_millis(ms).min(self.limits.max_lease))),
        }
    }

    /// The body, whole. One that is too large is read to its end within reason, so that the answer arrives.
    async fn body(&self, mut body: Body) -> Result<Vec<u8>, Refused> {
        let limit = self.limits.max_value;
        let read = async {
            let (mut bytes, mut size) = (Vec::new(), 0_usize);
            while let Some(frame) = next_frame(&mut body).await {
                let frame = frame.map_err(|_| refused(StatusCode::BAD_REQUEST, "the body broke off"))?;
                let Ok(data) = frame.into_data() else { continue };
                size += data.len();
                if size <= limit {
                    bytes.extend_from_slice(&data);
                } else if size > limit.saturating_mul(8) {
                    break;
                }
            }
            if size > limit {
                return Err(refused(StatusCode::PAYLOAD_TOO_LARGE, "metadata value is too large"));
            }
            Ok(bytes)
        };
        match tokio::time::timeout(self.limits.silence, read).await {
            Ok(outcome) => outcome,
            Err(_) => Err(refused(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
        }
    }
}

/// What is left of a record's lease, in milliseconds.
fn left_ms(record: &Record, now: Instant) -> Option<u64> {
    let left = record.lease?.ends()?.saturating_duration_since(now).as_millis();
    Some(u64::try_from(left).unwrap_or(u64::MAX))
}

async fn next_frame(body: &mut Body) -> Option<Result<hyper::body::Frame<axum::body::Bytes>, axum::Error>> {
    use axum::body::HttpBody as _;
    std::future::poll_fn(|context| std::pin::Pin::new(&mut *body).poll_frame(context)).await
}

fn condition(headers: &HeaderMap) -> Result<Condition, Refused> {
    let neither =
        || refused(StatusCode::BAD_REQUEST, "the condition is neither If-Match: \"N\" nor If-None-Match: *");
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    match (text(IF_MATCH), text(IF_NONE_MATCH)) {
        (None, None) => Ok(Condition::Always),
        (None, Some("*")) => Ok(Condition::Absent),
        (Some(tag), None) => protocol::parse_tag(tag).map(Condition::Revision).ok_or_else(neither),
        _ => Err(neither()),
    }
}

fn holder(headers: &HeaderMap) -> Result<Option<u128>, Refused> {
    let Some(text) = headers.get(protocol::INCARNATION) else { return Ok(None) };
    let incarnation = text.to_str().ok().and_then(|text| text.parse::<te_segment::Incarnation>().ok());
    match incarnation {
        Some(incarnation) => Ok(Some(incarnation.bits())),
        None => Err(refused(StatusCode::BAD_REQUEST, "te-incarnation is no incarnation")),
    }
}

fn refuse(refusal: Refusal) -> Refused {
    let (status, said, current) = match refusal {
        Refusal::Missing => (StatusCode::NOT_FOUND, "metadata not found", None),
        Refusal::Conflict(current) => {
            (StatusCode::PRECONDITION_FAILED, "the condition does not hold", current)
        }
        Refusal::Held(current) => (StatusCode::CONFLICT, "another engine holds this key", Some(current)),
        Refusal::TooManyKeys => (StatusCode::INSUFFICIENT_STORAGE, "too many keys", None),
        Refusal::Full => (StatusCode::INSUFFICIENT_STORAGE, "too many bytes", None),
        Refusal::Broken => (StatusCode::SERVICE_UNAVAILABLE, "the journal cannot be written", None),
        Refusal::Busy => (StatusCode::SERVICE_UNAVAILABLE, "too many writes are waiting", None),
    };
    Refused { status, said, current }
}

fn revision(headers: &mut HeaderMap, revision: u64) {
    number(headers, protocol::REVISION, revision);
    if let Ok(tag) = HeaderValue::from_str(&protocol::tag(revision)) {
        headers.insert(ETAG, tag);
    }
}

fn number(headers: &mut HeaderMap, name: &'static str, value: u64) {
    headers.insert(HeaderName::from_static(name), HeaderValue::from(value));
}

async fn healthz(State(app): State<Arc<App>>) -> Response {
    if app.shared.broken.load(Ordering::Relaxed) {
        return words(StatusCode::SERVICE_UNAVAILABLE, "the journal cannot be written");
    }
    words(StatusCode::OK, "ok")
}

async fn openmetrics(State(app): State<Arc<App>>) -> Response {
    let metrics = &app.shared.metrics;
    {
        let contents = app.shared.contents.read();
        let gauge = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        metrics.keys.set(gauge(contents.len()));
        metrics.leased_keys.set(gauge(contents.leased()));
        metrics.value_bytes.set(gauge(contents.bytes()));
    }
    const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, OPENMETRICS)], metrics.text()).into_response()
}
