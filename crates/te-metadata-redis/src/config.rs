//! Where the server is and how to talk to it.

use std::{fmt, time::Duration};

use te_metadata::backend::{Secret, unescape};
use te_segment::{Endpoint, Host};

/// The port of a server whose URL names none.
pub const DEFAULT_PORT: u16 = 6379;
/// Largest text a server takes unless it is configured with another `proto-max-bulk-len`.
pub const DEFAULT_MAX_VALUE: usize = 512 << 20;
const ANSWER: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(5);
const CONNECT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_secs(2);

/// Why a configuration cannot be used. No variant shows a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedisConfigError {
    /// The scheme is none of this store's.
    #[error("{scheme:?} is no scheme of the redis store, which has redis and rediss")]
    Scheme {
        /// The scheme found.
        scheme: String,
    },
    /// The server is no `host[:port]`.
    #[error("redis server {server:?} is unusable: {reason}")]
    Server {
        /// The server as written, without user and password.
        server: String,
        /// What is wrong with it.
        reason: String,
    },
    /// What follows the server is no database number.
    #[error("redis database {database:?} is no number from 0 to 2147483647")]
    Database {
        /// The text found.
        database: String,
    },
    /// User and password cannot be told apart or are not UTF-8.
    #[error("user and password before the @ have to be user:password or :password, with %-escapes")]
    User,
    /// TLS needs the feature `tls`.
    #[error("the redis store is to use tls, which this build lacks: enable feature `tls`")]
    TlsMissing,
    /// Certificates were given for a URL that is not `rediss`.
    #[error("certificates were given for a redis store that does not use tls")]
    TlsUnused,
    /// A certificate or key is unusable.
    #[error("{what} of the redis store is unusable: {reason}")]
    Certificate {
        /// Which one.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// Which redis server to use and how. [`RedisStore`](crate::RedisStore) is made from it.
///
/// ```
/// use te_metadata_redis::RedisConfig;
///
/// let config = RedisConfig::parse("redis://engine:secret@10.0.0.1/3")?;
/// assert_eq!(config.to_string(), "redis://10.0.0.1:6379/3");
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<(), te_metadata_redis::RedisConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RedisConfig {
    pub(crate) server: Endpoint,
    pub(crate) tls: bool,
    pub(crate) database: u32,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) ca_pem: Option<Vec<u8>>,
    pub(crate) identity: Option<(Vec<u8>, Secret)>,
    pub(crate) max_value: usize,
    pub(crate) answer: Duration,
    pub(crate) patience: Duration,
    pub(crate) connect: Duration,
    pub(crate) poll: Duration,
    pub(crate) enable_events: bool,
}

impl RedisConfig {
    /// Reads `redis://[[user]:password@]host[:port][/database]`, `rediss://…` for TLS.
    ///
    /// Without a port, 6379 is meant, where the reference engine takes 12001. One server only: which of several holds
    /// the truth is not for a client to decide, so a name that leads to the current one belongs here.
    ///
    /// # Errors
    /// [`RedisConfigError`] says what is wrong with the text; it never shows user or password.
    pub fn parse(text: &str) -> Result<Self, RedisConfigError> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("redis", text));
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "redis" => false,
            "rediss" => true,
            // Without a scheme, a password may stand before the colon.
            _ => return Err(RedisConfigError::Scheme { scheme: scheme.chars().take(16).collect() }),
        };
        let (login, place) = match rest.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, rest),
        };
        let (user, password) = match login {
            Some(login) => parse_login(login)?,
            None => (None, None),
        };
        let (server, database) = place.split_once('/').unwrap_or((place, ""));
        let database = match database.strip_suffix('/').unwrap_or(database) {
            "" => 0,
            digits => digits
                .parse()
                .ok()
                .filter(|number| *number <= i32::MAX.cast_unsigned())
                .ok_or_else(|| RedisConfigError::Database { database: digits.to_owned() })?,
        };
        Ok(Self {
            server: parse_server(server)?,
            tls,
            database,
            user,
            password,
            ca_pem: None,
            identity: None,
            max_value: DEFAULT_MAX_VALUE,
            answer: ANSWER,
            patience: PATIENCE,
            connect: CONNECT,
            poll: POLL,
            enable_events: false,
        })
    }

    /// Logs in with this password, as the default user.
    pub fn password(self, password: impl Into<String>) -> Self {
        Self { password: Some(Secret::new(password)), ..self }
    }

    /// Logs in with this name and password.
    pub fn user(self, name: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: Some(name.into()), ..self }.password(password)
    }

    /// Uses this database of the server.
    pub fn database(self, number: u32) -> Self {
        Self { database: number.min(i32::MAX.cast_unsigned()), ..self }
    }

    /// Trusts servers with certificates of these authorities (PEM), and no others. Without it: what the system
    /// trusts.
    pub fn ca_pem(self, pem: impl Into<Vec<u8>>) -> Self {
        Self { ca_pem: Some(pem.into()), ..self }
    }

    /// Shows this certificate chain with its key (both PEM) to a server that asks for one.
    pub fn identity_pem(self, certificates: impl Into<Vec<u8>>, key: impl Into<String>) -> Self {
        Self { identity: Some((certificates.into(), Secret::new(key))), ..self }
    }

    /// Largest value in bytes: the server's `proto-max-bulk-len` (default 512 MiB).
    pub fn max_value(self, bytes: usize) -> Self {
        Self { max_value: bytes, ..self }
    }

    /// A connection on which nothing is answered for so long is given up (default 5 s).
    pub fn answer_timeout(self, time: Duration) -> Self {
        Self { answer: time, ..self }
    }

    /// How long a call goes on trying while the server refuses (default 5 s). The deadline may be nearer.
    pub fn patience(self, time: Duration) -> Self {
        Self { patience: time, ..self }
    }

    /// Time for one attempt to connect and log in (default 2 s).
    pub fn connect_timeout(self, time: Duration) -> Self {
        Self { connect: time, ..self }
    }

    /// How often a watch looks for expired keys, and for writes of others than te engines, while the server has no
    /// keyspace events (default 2 s).
    pub fn poll_interval(self, time: Duration) -> Self {
        Self { poll: time.max(Duration::from_millis(10)), ..self }
    }

    /// Switches the server's keyspace events on for watches, if it allows that: a setting of the whole server. Off by
    /// default; an operator sets `notify-keyspace-events KA` instead.
    pub fn enable_keyspace_events(self) -> Self {
        Self { enable_events: true, ..self }
    }

    pub(crate) fn check(&self) -> Result<(), RedisConfigError> {
        if self.tls && !cfg!(feature = "tls") {
            return Err(RedisConfigError::TlsMissing);
        }
        if !self.tls && (self.ca_pem.is_some() || self.identity.is_some()) {
            return Err(RedisConfigError::TlsUnused);
        }
        Ok(())
    }
}

impl fmt::Display for RedisConfig {
    /// The URL, without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", if self.tls { "rediss" } else { "redis" }, self.server, self.database)
    }
}

fn parse_server(text: &str) -> Result<Endpoint, RedisConfigError> {
    let refuse = |reason: String| RedisConfigError::Server { server: text.to_owned(), reason };
    if text.contains([',', ';']) {
        return Err(refuse("the redis store uses one server, not a list".to_owned()));
    }
    if text.contains(['?', '#', ' ']) {
        return Err(refuse("a query, a fragment or a blank cannot be part of it".to_owned()));
    }
    let endpoint = match text.parse::<Host>() {
        Ok(host) => Endpoint::new(host, DEFAULT_PORT),
        Err(_) => text.parse(),
    };
    endpoint.map_err(|error| refuse(error.to_string()))
}

type Login = (Option<String>, Option<Secret>);

fn parse_login(text: &str) -> Result<Login, RedisConfigError> {
    let (name, password) = text.split_once(':').ok_or(RedisConfigError::User)?;
    match (unescape(name), unescape(password)) {
        (Some(name), Some(password)) if !password.is_empty() => {
            Ok(((!name.is_empty()).then_some(name), Some(Secret::new(password))))
        }
        _ => Err(RedisConfigError::User),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        RedisConfig::parse(text).unwrap().to_string()
    }

    #[test]
    fn urls_of_today_are_read() {
        assert_eq!(shown("redis://a"), "redis://a:6379/0");
        assert_eq!(shown("redis://10.0.0.1:12001"), "redis://10.0.0.1:12001/0");
        assert_eq!(shown("redis://[::1]:1/7"), "redis://[::1]:1/7");
        assert_eq!(shown("rediss://u:p@a/"), "rediss://a:6379/0");
        assert_eq!(shown("127.0.0.1:6379"), "redis://127.0.0.1:6379/0");
    }

    #[test]
    fn what_is_no_server_is_refused_by_name() {
        for text in
            ["redis://", "redis://a:0", "redis://a:x", "redis://a,b", "redis://a?db=1", "redis://a:70000"]
        {
            let error = RedisConfig::parse(text).unwrap_err();
            assert!(matches!(error, RedisConfigError::Server { .. }), "{text}: {error:?}");
        }
        for text in ["redis://a/x", "redis://a/-1", "redis://a/4294967295", "redis://a/1/2"] {
            let error = RedisConfig::parse(text).unwrap_err();
            assert!(matches!(error, RedisConfigError::Database { .. }), "{text}: {error:?}");
        }
        assert!(matches!(RedisConfig::parse("etcd://a"), Err(RedisConfigError::Scheme { .. })));
    }

    #[test]
    fn user_and_password_are_unescaped_and_never_shown() {
        let config = RedisConfig::parse("redis://eng%40ine:p%2Fw@a:1").unwrap();
        assert_eq!(config.user.as_deref(), Some("eng@ine"));
        assert_eq!(config.password.as_ref().map(Secret::reveal), Some("p/w"));
        assert!(!format!("{config:?} {config}").contains("p/w"));
        let config = RedisConfig::parse("redis://:p@w@a").unwrap();
        assert_eq!((config.user, config.password.as_ref().map(Secret::reveal)), (None, Some("p@w")));
        for text in
            ["redis://hunter2@a", "redis://u:hunter2@a:0", "redis://u:hunter2@a/x", "redis://%ff:hunter2@a"]
        {
            let error = RedisConfig::parse(text).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{text}: {error:?}");
        }
    }

    #[test]
    fn certificates_without_tls_are_refused() {
        let config = RedisConfig::parse("redis://a").unwrap().ca_pem("x");
        assert_eq!(config.check(), Err(RedisConfigError::TlsUnused));
    }
}
