//! Where the store is and how to talk to it.

use std::{fmt, time::Duration};

use te_metadata::backend::{Secret, unescape};
use te_segment::Incarnation;

/// Connections to one server at the same time, watches not counted.
const MAX_CONNECTIONS: usize = 16;
/// How often a server without watches is asked for the keys of interest.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Time to connect.
const CONNECT: Duration = Duration::from_secs(2);
/// The path where reference servers keep their keys.
const DEFAULT_PATH: &str = "/metadata";

/// Why a configuration cannot be used. No variant shows a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpConfigError {
    /// The text is no `http://host:port/path`.
    #[error("store url {url} is unusable: {reason}")]
    Url {
        /// The URL without user and password.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// `https` needs the feature `tls`.
    #[error("store url {url} wants https, which this build lacks: enable feature `tls`")]
    TlsMissing {
        /// The URL without user and password.
        url: String,
    },
    /// A certificate or key is unusable.
    #[error("{what} is unusable: {reason}")]
    Certificate {
        /// Which one.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A token or password has characters that no header may hold.
    #[error("the token or password has characters that a header cannot hold")]
    SecretCharacters,
    /// The HTTP client could not be made.
    #[error("http client could not be made: {reason}")]
    Client {
        /// Its words.
        reason: String,
    },
}

/// How to prove who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Auth {
    Bearer(Secret),
    Basic { user: String, password: Option<Secret> },
}

/// Where an HTTP store is and how to talk to it. [`HttpStore`](crate::HttpStore) is made from it.
///
/// ```
/// use te_metadata_http::HttpConfig;
///
/// let config = HttpConfig::parse("http://ops:secret@10.0.0.1:8080,10.0.0.2:8080/metadata")?;
/// assert_eq!(config.to_string(), "http://10.0.0.1:8080,10.0.0.2:8080/metadata");
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<(), te_metadata_http::HttpConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct HttpConfig {
    pub(crate) scheme: &'static str,
    pub(crate) hosts: Vec<String>,
    pub(crate) path: String,
    pub(crate) auth: Option<Auth>,
    #[cfg(feature = "tls")]
    pub(crate) ca_pem: Option<Vec<u8>>,
    #[cfg(feature = "tls")]
    pub(crate) identity: Option<(Vec<u8>, Secret)>,
    pub(crate) proxy: Option<Secret>,
    pub(crate) max_connections: usize,
    pub(crate) poll_interval: Duration,
    pub(crate) connect: Duration,
    pub(crate) incarnation: Option<Incarnation>,
}

impl HttpConfig {
    /// Reads `http(s)://[user[:password]@]host[:port][,host[:port]…][/path]`.
    ///
    /// Several hosts have to serve the same data: the next one is used when one does not answer. Without a path,
    /// `/metadata` is meant. User and password are sent as basic authentication and shown nowhere.
    ///
    /// # Errors
    /// [`HttpConfigError::Url`] says what is wrong with the text.
    pub fn parse(url: &str) -> Result<Self, HttpConfigError> {
        let (scheme, rest) = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => ("http", rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => ("https", rest),
            // Nothing of it is shown: without a scheme nobody knows where a password would be.
            _ => {
                return Err(HttpConfigError::Url {
                    url: "…".into(),
                    reason: "it begins neither with http:// nor https://",
                });
            }
        };
        // Of two places where a password could end, what is shown begins after the last.
        let (user, place) = match rest.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, rest),
        };
        let (hosts, path) = match place.find(['/', '?', '#']) {
            Some(at) => place.split_at(at),
            None => (place, DEFAULT_PATH),
        };
        let shown = format!("{scheme}://{hosts}{path}");
        let refuse = |reason| Err(HttpConfigError::Url { url: shown.clone(), reason });
        if user.is_some_and(|user| user.contains(['/', '?', '#'])) {
            return refuse("a /, ? or # before its last @ has to be %-encoded");
        }
        if path.contains(['?', '#']) {
            return refuse("a query or fragment cannot be part of it");
        }
        if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return refuse("its path has characters that need %-encoding");
        }
        let hosts: Vec<String> = hosts.split(',').map(|host| host.trim().to_owned()).collect();
        for host in &hosts {
            if host.is_empty() {
                return refuse("a host is missing");
            }
            let parsed = reqwest::Url::parse(&format!("{scheme}://{host}/"));
            let plain =
                |url: &reqwest::Url| url.path() == "/" && url.query().is_none() && url.username().is_empty();
            if !parsed.is_ok_and(|url| plain(&url) && url.port_or_known_default() != Some(0)) {
                return refuse("one of its hosts is no host:port");
            }
        }
        if scheme == "https" && !cfg!(feature = "tls") {
            return Err(HttpConfigError::TlsMissing { url: shown });
        }
        let auth = match user {
            Some(user) => {
                let (user, password) = match user.split_once(':') {
                    Some((user, password)) => (user, Some(password)),
                    None => (user, None),
                };
                let (Some(user), Some(password)) = (unescape(user), unescape(password.unwrap_or_default()))
                else {
                    return refuse("its user or password is not UTF-8");
                };
                let password = (!password.is_empty()).then(|| Secret::new(password));
                Some(Auth::Basic { user, password })
            }
            None => None,
        };
        Ok(Self {
            scheme,
            hosts,
            path: path.to_owned(),
            auth,
            #[cfg(feature = "tls")]
            ca_pem: None,
            #[cfg(feature = "tls")]
            identity: None,
            proxy: None,
            max_connections: MAX_CONNECTIONS,
            poll_interval: POLL_INTERVAL,
            connect: CONNECT,
            incarnation: None,
        })
    }

    /// Sends this token with every request, instead of user and password.
    pub fn bearer_token(self, token: impl Into<String>) -> Self {
        Self { auth: Some(Auth::Bearer(Secret::new(token))), ..self }
    }

    /// Trusts servers with certificates of these authorities (PEM), and no others. Without it: what the system trusts.
    #[cfg(feature = "tls")]
    pub fn ca_pem(self, pem: impl Into<Vec<u8>>) -> Self {
        Self { ca_pem: Some(pem.into()), ..self }
    }

    /// Shows this certificate chain with its key (both PEM) to servers that ask for one.
    #[cfg(feature = "tls")]
    pub fn identity_pem(self, certificates: impl Into<Vec<u8>>, key: impl Into<String>) -> Self {
        Self { identity: Some((certificates.into(), Secret::new(key))), ..self }
    }

    /// Goes through this proxy. Without it none is used, whatever the environment says.
    pub fn proxy(self, url: impl Into<String>) -> Self {
        Self { proxy: Some(Secret::new(url)), ..self }
    }

    /// At most this many requests at the same time (default 16); more wait. Each watch has a connection besides.
    pub fn max_connections(self, max: usize) -> Self {
        Self { max_connections: max.max(1), ..self }
    }

    /// How often a server without watches is asked again (default 2 s).
    pub fn poll_interval(self, interval: Duration) -> Self {
        Self { poll_interval: interval, ..self }
    }

    /// Time for one attempt to connect (default 2 s); a deadline that is nearer counts.
    pub fn connect_timeout(self, connect: Duration) -> Self {
        Self { connect, ..self }
    }

    /// Names the writer: our server protects leased keys against writers of another incarnation.
    pub fn incarnation(self, incarnation: Incarnation) -> Self {
        Self { incarnation: Some(incarnation), ..self }
    }
}

/// The URL without user and password.
impl fmt::Display for HttpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.hosts.join(","), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(url: &str) -> &'static str {
        match HttpConfig::parse(url) {
            Err(HttpConfigError::Url { reason, .. }) => reason,
            other => panic!("{url}: {other:?}"),
        }
    }

    #[test]
    fn several_hosts_share_scheme_and_path() {
        let config = HttpConfig::parse("HTTP://a:8080, b:81,[2001:db8::1]:82/m/x").unwrap();
        assert_eq!((config.hosts.len(), config.path.as_str()), (3, "/m/x"));
        assert_eq!(config.to_string(), "http://a:8080,b:81,[2001:db8::1]:82/m/x");
    }

    #[test]
    fn path_is_that_of_reference_servers_by_default() {
        assert_eq!(HttpConfig::parse("http://a").unwrap().path, "/metadata");
        assert_eq!(HttpConfig::parse("http://a/").unwrap().path, "/");
    }

    #[test]
    fn unusable_urls_say_why() {
        assert!(reason("a:8080/metadata").contains("http://"));
        assert!(reason("redis://a").contains("http://"));
        assert!(reason("http:///metadata").contains("missing"));
        assert!(reason("http://a,,b").contains("missing"));
        assert!(reason("http://a:99999/").contains("host:port"));
        assert!(reason("http://a b/").contains("host:port"));
        assert!(reason("http://a/metadata?x=1").contains("query"));
        assert!(reason("http://a/m\u{e9}").contains("encoding"));
    }

    /// SEC-03: secrets are shown nowhere.
    #[test]
    fn secrets_are_in_no_text() {
        let config = HttpConfig::parse("http://ops:hunter2@a:1/metadata").unwrap();
        let password = Some(Secret::new("hunter2"));
        assert_eq!(config.auth, Some(Auth::Basic { user: "ops".into(), password }));
        let config = config.proxy("http://x:hunter2@p");
        #[cfg(feature = "tls")]
        let config = config.identity_pem("cert", "hunter2");
        assert!(!format!("{config:?} {config:#?} {config}").contains("hunter2"));
        let config = config.bearer_token("hunter2");
        assert!(!format!("{config:?}").contains("hunter2"));
        for url in
            ["http://ops:hunter2@a:99999/", "ops:hunter2@a", "http://ops:hunter2@/x", "http://o:hunter2@a/?x"]
        {
            let error = HttpConfig::parse(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}");
        }
    }

    /// SEC-04: a password that should have been encoded is no part of the host or the path, and no piece of it is shown.
    #[test]
    fn passwords_with_separators_are_refused_without_a_piece_of_them() {
        for password in
            ["hun/ter2", "80/ter2", "hun?ter2", "hun#ter2", "hun@t/er2", "/hunter2", "hunter2/", "h/u@ter2"]
        {
            for tail in ["a:1/metadata", "a", "a:99999", "", "a/m?x"] {
                let url = format!("http://ops:{password}@{tail}");
                let error = HttpConfig::parse(&url).unwrap_err();
                let shown = format!("{error} {error:#?}");
                assert!(
                    !shown.contains("hun") && !shown.contains("er2") && !shown.contains("ops"),
                    "{url}: {shown}"
                );
            }
        }
        let config = HttpConfig::parse("http://ops:hun%2Fter2@a:1/m").unwrap();
        assert_eq!(config.to_string(), "http://a:1/m");
    }

    #[test]
    fn encoded_passwords_are_decoded() {
        let config = HttpConfig::parse("http://u%40x:p%3a+%26&@a").unwrap();
        let password = Some(Secret::new("p:+&&"));
        assert_eq!(config.auth, Some(Auth::Basic { user: "u@x".into(), password }));
    }
}
