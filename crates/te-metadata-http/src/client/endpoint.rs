//! One server of the store, and the HTTP client that reaches it.

use std::{
    error::Error as _,
    sync::atomic::{AtomicU8, AtomicUsize, Ordering},
    time::Duration,
};

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};

use super::config::{Auth, HttpConfig, HttpConfigError};
use crate::protocol::{self, DEFAULT_MAX_VALUE};

/// A key that nobody writes: asking for it tells what a server is.
pub(super) const NO_KEY: &str = "te/none";
/// How long a connection without requests is kept.
const KEEP_IDLE: Duration = Duration::from_secs(20);

/// What a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nobody has asked yet.
    Unknown,
    /// Ours: leases, watches, lists, compare-and-set.
    Te,
    /// Any other: put, get and delete.
    Foreign,
}

/// One server.
#[derive(Debug)]
pub(super) struct Endpoint {
    /// Its URL, without user and password.
    pub(super) base: String,
    kind: AtomicU8,
    max_value: AtomicUsize,
}

impl Endpoint {
    pub(super) fn new(base: String) -> Self {
        Self { base, kind: AtomicU8::new(0), max_value: AtomicUsize::new(DEFAULT_MAX_VALUE) }
    }

    pub(super) fn kind(&self) -> Kind {
        match self.kind.load(Ordering::Relaxed) {
            1 => Kind::Te,
            2 => Kind::Foreign,
            _ => Kind::Unknown,
        }
    }

    pub(super) fn max_value(&self) -> usize {
        self.max_value.load(Ordering::Relaxed)
    }

    /// Nobody answers here at present: whoever does next may be another kind of server.
    pub(super) fn forget(&self) {
        self.kind.store(0, Ordering::Relaxed);
    }

    /// Reads off an answer what the server is.
    pub(super) fn learn(&self, headers: &HeaderMap) -> Kind {
        let number = |name| headers.get(name)?.to_str().ok()?.parse().ok();
        let kind = if headers.contains_key(protocol::STORE) { Kind::Te } else { Kind::Foreign };
        if kind == Kind::Te {
            self.max_value.store(number(protocol::MAX_VALUE).unwrap_or(DEFAULT_MAX_VALUE), Ordering::Relaxed);
        }
        self.kind.store(if kind == Kind::Te { 1 } else { 2 }, Ordering::Relaxed);
        kind
    }
}

/// A client that follows no redirects, reads no environment, and sends the secrets with every request.
pub(super) fn client(config: &HttpConfig) -> Result<reqwest::Client, HttpConfigError> {
    let mut headers = HeaderMap::new();
    if let Some(auth) = &config.auth {
        let text = match auth {
            Auth::Bearer(token) => format!("Bearer {}", token.reveal()),
            Auth::Basic { user, password } => {
                let password = password.as_ref().map_or("", |password| password.reveal());
                format!("Basic {}", base64(format!("{user}:{password}").as_bytes()))
            }
        };
        let mut value = HeaderValue::from_str(&text).map_err(|_| HttpConfigError::SecretCharacters)?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    let mut builder = reqwest::Client::builder()
        .default_headers(headers)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .referer(false)
        .connect_timeout(config.connect)
        .pool_idle_timeout(KEEP_IDLE)
        .pool_max_idle_per_host(config.max_connections)
        .tcp_nodelay(true);
    if let Some(proxy) = &config.proxy {
        // The error would quote the URL, and with it a password.
        let proxy = reqwest::Proxy::all(proxy.reveal())
            .map_err(|_| HttpConfigError::Client { reason: "the proxy's url is unusable".into() })?;
        builder = builder.proxy(proxy);
    }
    #[cfg(feature = "tls")]
    {
        builder = builder.tls_backend_preconfigured(super::tls::client(config)?);
    }
    builder.build().map_err(|error| HttpConfigError::Client { reason: words(error) })
}

/// What went wrong, without the URL: the whole chain of causes in one line.
pub(super) fn words(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().enumerate().fold(0, |word, (at, byte)| word | u32::from(*byte) << (16 - 8 * at));
        for digit in 0..4 {
            let index = usize::try_from(word >> (18 - 6 * digit) & 63).unwrap_or_default();
            text.push(if digit > chunk.len() { '=' } else { char::from(DIGITS[index]) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_the_standard_one() {
        for (plain, encoded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
        assert_eq!(base64(&[0xff, 0xef, 0xfe]), "/+/+");
    }

    #[test]
    fn secrets_that_no_header_can_hold_are_refused_without_quoting_them() {
        let config = HttpConfig::parse("http://a").unwrap().bearer_token("hunter2\n");
        let error = client(&config).unwrap_err();
        assert_eq!(error, HttpConfigError::SecretCharacters);
        assert!(!error.to_string().contains("hunter2"));
    }
}
