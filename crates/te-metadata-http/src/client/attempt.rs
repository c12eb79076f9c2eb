//! One question to one server.

use std::time::Duration;

use reqwest::{
    Method, RequestBuilder, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, IF_MATCH, IF_NONE_MATCH},
};
use te_metadata::{Entry, PutCondition, PutRequest, StoreErrorKind};

use super::{
    HttpStore, SCHEME,
    endpoint::{Endpoint, Kind, words},
};
use crate::protocol::{self, ListPage, encode_key};

/// Largest body of an answer that is no value, and the room a value's page takes besides.
const MAX_ANSWER: usize = 64 << 20;
/// How much of a server's words is passed on.
const MAX_WORDS: usize = 200;

/// A question.
pub(super) enum Ask<'a> {
    Get { key: &'a str },
    Put(&'a PutRequest),
    Delete { key: &'a str, revision: Option<u64> },
    Renew { key: &'a str, revision: u64, lease: Duration },
    List { prefix: &'a str, after: Option<&'a str> },
    Watch { prefix: &'a str, resume: Option<&'a Resume> },
}

impl Ask<'_> {
    fn key(&self) -> Option<&str> {
        match self {
            Self::Get { key } | Self::Delete { key, .. } | Self::Renew { key, .. } => Some(key),
            Self::Put(request) => Some(request.key.as_str()),
            Self::List { .. } | Self::Watch { .. } => None,
        }
    }
}

/// Where a watch goes on.
#[derive(Clone, Debug)]
pub(super) struct Resume {
    pub(super) life: String,
    pub(super) revision: u64,
}

/// An answer.
pub(super) enum Reply {
    Entry(Option<Entry>),
    Revision(u64),
    Done(bool),
    Page(ListPage),
    Stream(Response),
    /// The server has no watch.
    NoWatch,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// Any server would say the same, or one did.
    Final(StoreErrorKind),
    /// No answer in its share of the time.
    Silent,
    /// The connection broke after the question was sent.
    Broken { detail: String },
    /// The question was not sent, or the server is not fit to answer.
    Unreachable { detail: String },
}

impl Failure {
    fn invalid(detail: impl Into<String>) -> Self {
        Self::Final(StoreErrorKind::Invalid { detail: detail.into() })
    }

    fn from_client(error: reqwest::Error) -> Self {
        let (connect, builder) = (error.is_connect(), error.is_builder());
        let detail = words(error);
        match (builder, connect) {
            (true, _) => Self::invalid(detail),
            (_, true) => Self::Unreachable { detail },
            _ => Self::Broken { detail },
        }
    }
}

/// What one exchange brought.
pub(super) struct Exchange {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) kind: Kind,
    pub(super) body: Vec<u8>,
}

impl Exchange {
    fn number(&self, name: &str) -> Option<u64> {
        self.headers.get(name)?.to_str().ok()?.parse().ok()
    }

    /// The server's words, shortened and on one line.
    pub(super) fn words(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        let line: String =
            text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_WORDS).collect();
        format!("status {}: {}", self.status.as_u16(), line.trim())
    }

    fn revision(&self) -> Result<u64, Failure> {
        self.number(protocol::REVISION)
            .ok_or_else(|| Failure::invalid("an answer of our server has no revision"))
    }

    /// The reasons for failure that are the same for every question.
    pub(super) fn failure(&self, size: usize, limit: usize) -> Failure {
        let detail = self.words();
        match self.status.as_u16() {
            409 | 412 => {
                Failure::Final(StoreErrorKind::Conflict { current: self.number(protocol::REVISION) })
            }
            413 => Failure::Final(StoreErrorKind::TooLarge { size, limit, store: SCHEME }),
            401 | 403 | 407 | 507 => Failure::Final(StoreErrorKind::Denied { detail }),
            429 | 500..=599 => Failure::Unreachable { detail },
            _ => Failure::invalid(detail),
        }
    }
}

impl HttpStore {
    /// Asks one server, and takes at most `share`.
    pub(super) async fn attempt(
        &self,
        endpoint: &Endpoint,
        ask: &Ask<'_>,
        share: Duration,
    ) -> Result<Reply, Failure> {
        let outcome = match tokio::time::timeout(share, self.answer(endpoint, ask)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::Silent),
        };
        if let Err(Failure::Silent | Failure::Unreachable { .. }) = outcome {
            endpoint.forget();
        }
        outcome
    }

    async fn answer(&self, endpoint: &Endpoint, ask: &Ask<'_>) -> Result<Reply, Failure> {
        if endpoint.kind() == Kind::Unknown && !matches!(ask, Ask::Get { .. }) {
            // A condition or a lease in a header is nothing to a server that does not know it.
            let request = self.request(endpoint, Method::GET, &key_query(super::endpoint::NO_KEY));
            let probe = self.exchange(endpoint, request, MAX_ANSWER).await?;
            if !matches!(probe.status.as_u16(), 200 | 404) {
                return Err(probe.failure(0, endpoint.max_value()));
            }
        }
        if endpoint.kind() == Kind::Foreign {
            ask.key().map_or(Ok(()), whole)?;
        }
        match (endpoint.kind(), ask) {
            (Kind::Foreign, Ask::Put(request)) => self.put_foreign(endpoint, request).await,
            (Kind::Foreign, Ask::Delete { revision: Some(_), .. }) => Err(unsupported("compare-and-set")),
            (Kind::Foreign, Ask::Renew { .. }) => Err(unsupported("leases")),
            (Kind::Foreign, Ask::List { .. }) => Err(unsupported("list")),
            (Kind::Foreign, Ask::Watch { .. }) => Ok(Reply::NoWatch),
            (_, Ask::Get { key }) => self.get_value(endpoint, key).await,
            (_, Ask::Put(request)) => self.put_value(endpoint, request).await,
            (_, Ask::Delete { key, revision }) => self.delete_key(endpoint, key, *revision).await,
            (_, Ask::Renew { key, revision, lease }) => {
                self.renew_lease(endpoint, key, *revision, *lease).await
            }
            (_, Ask::List { prefix, after }) => self.list_page(endpoint, prefix, *after).await,
            (_, Ask::Watch { prefix, resume }) => self.open_watch(endpoint, prefix, *resume).await,
        }
    }

    /// A request with what every request carries.
    pub(super) fn request(&self, endpoint: &Endpoint, method: Method, query: &str) -> RequestBuilder {
        let mut request = self.shared.client.request(method, format!("{}?{query}", endpoint.base));
        if let Some(incarnation) = self.incarnation {
            request = request.header(protocol::INCARNATION, incarnation.to_string());
        }
        request
    }

    /// Sends a request and reads the answer, at most `limit` bytes of it.
    pub(super) async fn exchange(
        &self,
        endpoint: &Endpoint,
        request: RequestBuilder,
        limit: usize,
    ) -> Result<Exchange, Failure> {
        let mut response = request.send().await.map_err(Failure::from_client)?;
        let was = endpoint.kind();
        let kind = if response.headers().contains_key(protocol::STORE) || was != Kind::Te {
            endpoint.learn(response.headers())
        } else {
            // Something between us and our server: what it says about a key is not the store's own statement.
            endpoint.forget();
            let detail = format!("status {} comes from another server", response.status().as_u16());
            return Err(Failure::Unreachable { detail });
        };
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(Failure::from_client)? {
            if body.len() + chunk.len() > limit {
                return Err(Failure::invalid(format!("an answer is larger than {limit} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Exchange { status: response.status(), headers: response.headers().clone(), kind, body })
    }

    pub(super) async fn get_value(&self, endpoint: &Endpoint, key: &str) -> Result<Reply, Failure> {
        let request = self.request(endpoint, Method::GET, &key_query(key));
        let answer = self.exchange(endpoint, request, MAX_ANSWER).await?;
        if answer.kind == Kind::Foreign {
            whole(key)?;
        }
        match answer.status.as_u16() {
            200 => {
                let revision = if answer.kind == Kind::Te { answer.revision()? } else { 0 };
                let value =
                    String::from_utf8(answer.body).map_err(|_| Failure::invalid("a value is not UTF-8"))?;
                if answer.kind == Kind::Foreign {
                    self.shared.foreign.seen(key, Some(&value));
                }
                Ok(Reply::Entry(Some(Entry { value, revision })))
            }
            404 => {
                if answer.kind == Kind::Foreign {
                    self.shared.foreign.seen(key, None);
                }
                Ok(Reply::Entry(None))
            }
            _ => Err(answer.failure(0, endpoint.max_value())),
        }
    }

    async fn put_value(&self, endpoint: &Endpoint, put: &PutRequest) -> Result<Reply, Failure> {
        let mut request = self.put_request(endpoint, put);
        request = match put.condition {
            PutCondition::Always => request,
            PutCondition::Absent => request.header(IF_NONE_MATCH, "*"),
            PutCondition::Revision(revision) => request.header(IF_MATCH, protocol::tag(revision)),
        };
        if let Some(lease) = put.lease {
            request = request.header(protocol::LEASE_MS, millis(lease));
        }
        let answer = self.exchange(endpoint, request, MAX_ANSWER).await?;
        match answer.status.as_u16() {
            200 => answer.revision().map(Reply::Revision),
            _ => Err(answer.failure(put.value.len(), endpoint.max_value())),
        }
    }

    pub(super) fn put_request(&self, endpoint: &Endpoint, put: &PutRequest) -> RequestBuilder {
        self.request(endpoint, Method::PUT, &key_query(put.key.as_str()))
            .header(CONTENT_TYPE, protocol::JSON)
            .body(put.value.clone())
    }

    async fn delete_key(
        &self,
        endpoint: &Endpoint,
        key: &str,
        revision: Option<u64>,
    ) -> Result<Reply, Failure> {
        let mut request = self.request(endpoint, Method::DELETE, &key_query(key));
        if let Some(revision) = revision {
            request = request.header(IF_MATCH, protocol::tag(revision));
        }
        let answer = self.exchange(endpoint, request, MAX_ANSWER).await?;
        let status = answer.status.as_u16();
        if matches!(status, 200 | 404) {
            self.shared.foreign.paid(key);
        }
        match status {
            200 => Ok(Reply::Done(true)),
            404 => Ok(Reply::Done(false)),
            _ => Err(answer.failure(0, endpoint.max_value())),
        }
    }

    async fn renew_lease(
        &self,
        endpoint: &Endpoint,
        key: &str,
        revision: u64,
        lease: Duration,
    ) -> Result<Reply, Failure> {
        let request = self
            .request(endpoint, Method::POST, &key_query(key))
            .header(IF_MATCH, protocol::tag(revision))
            .header(protocol::LEASE_MS, millis(lease));
        let answer = self.exchange(endpoint, request, MAX_ANSWER).await?;
        match answer.status.as_u16() {
            200 => Ok(Reply::Done(true)),
            404 | 409 | 412 => Ok(Reply::Done(false)),
            _ => Err(answer.failure(0, endpoint.max_value())),
        }
    }

    async fn list_page(
        &self,
        endpoint: &Endpoint,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<Reply, Failure> {
        let mut query = format!("prefix={}", encode_key(prefix));
        if let Some(after) = after {
            query.push_str("&after=");
            query.push_str(&encode_key(after));
        }
        let answer = self.exchange(endpoint, self.request(endpoint, Method::GET, &query), MAX_ANSWER).await?;
        match answer.status.as_u16() {
            200 => serde_json::from_slice(&answer.body)
                .map(Reply::Page)
                .map_err(|error| Failure::invalid(format!("a page of a list: {error}"))),
            _ => Err(answer.failure(0, endpoint.max_value())),
        }
    }

    async fn open_watch(
        &self,
        endpoint: &Endpoint,
        prefix: &str,
        resume: Option<&Resume>,
    ) -> Result<Reply, Failure> {
        let mut url = format!("{}{}?prefix={}", endpoint.base, protocol::WATCH_SUFFIX, encode_key(prefix));
        if let Some(Resume { life, revision }) = resume {
            url.push_str(&format!("&life={}&after={revision}", encode_key(life)));
        }
        let request = self.shared.client.get(url).header(ACCEPT, "text/event-stream");
        let response = request.send().await.map_err(Failure::from_client)?;
        if !response.headers().contains_key(protocol::STORE) {
            endpoint.forget();
            let detail = format!("status {} comes from another server", response.status().as_u16());
            return Err(Failure::Unreachable { detail });
        }
        match response.status().as_u16() {
            200 => Ok(Reply::Stream(response)),
            status @ (401 | 403) => {
                Err(Failure::Final(StoreErrorKind::Denied { detail: format!("status {status}") }))
            }
            status => Err(Failure::Unreachable { detail: format!("status {status}") }),
        }
    }
}

/// Refuses keys that the reference's Python server would take for shorter ones.
fn whole(key: &str) -> Result<(), Failure> {
    if key.trim().len() == key.len() {
        return Ok(());
    }
    Err(Failure::invalid("this server may cut off the white space at the ends of a key"))
}

pub(super) fn key_query(key: &str) -> String {
    format!("key={}", encode_key(key))
}

pub(super) fn unsupported(ability: &'static str) -> Failure {
    Failure::Final(StoreErrorKind::Unsupported { ability })
}

/// At least one: a lease of nothing is no lease.
fn millis(lease: Duration) -> u64 {
    u64::try_from(lease.as_millis()).unwrap_or(u64::MAX).max(1)
}
