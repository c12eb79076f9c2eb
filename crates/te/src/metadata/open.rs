//! From a URL and settings to a store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use te_engine::{Error, ErrorKind, Result, Retry};
use te_metadata::{MetadataStore, StoreError, StoreErrorKind};
use te_segment::Incarnation;

use super::{MetadataError, MetadataUrl};
use crate::settings::{Origin, Setting, Settings};

const OPERATION: &str = "open the metadata store";

/// Whether the store of this scheme can read the URL; why not, without secrets. What is not compiled in has no opinion.
pub(super) fn check(scheme: &str, url: &str) -> std::result::Result<(), String> {
    match scheme {
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => te_metadata_etcd::EtcdConfig::parse(url).map(drop).map_err(|e| e.to_string()),
        #[cfg(feature = "redis")]
        "redis" | "rediss" => te_metadata_redis::RedisConfig::parse(url).map(drop).map_err(|e| e.to_string()),
        #[cfg(feature = "http")]
        "http" | "https" => match te_metadata_http::HttpConfig::parse(url) {
            // The URL is shown by whoever asks.
            Err(te_metadata_http::HttpConfigError::Url { reason, .. }) => Err(reason.to_owned()),
            // Said by `MetadataUrl::check`.
            Ok(_) | Err(_) => Ok(()),
        },
        _ => {
            let _ = url;
            Ok(())
        }
    }
}

/// The store that the settings name, ready to use. `incarnation` is the engine that will write to it.
///
/// Needs a tokio runtime with I/O and time enabled.
pub(crate) async fn open(
    settings: Settings,
    incarnation: Option<Incarnation>,
    deadline: Instant,
) -> Result<Arc<dyn MetadataStore>> {
    let url = settings.metadata.get();
    url.check().map_err(|error| config(error.to_string()).with_source(error))?;
    let MetadataUrl::Store { scheme, url: text } = url else {
        return Err(config(format!("{url} is no store: engines ask each other")));
    };
    let access = Access::of(&settings, scheme, text)?;
    let _ = (&access, incarnation, deadline);
    match *scheme {
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => access.etcd(&settings, text),
        #[cfg(feature = "redis")]
        "redis" | "rediss" => access.redis(&settings, text),
        #[cfg(feature = "http")]
        "http" | "https" => access.http(&settings, text, incarnation, deadline).await,
        // The check above makes this unreachable.
        scheme => {
            Err(config(MetadataError::UnsupportedScheme { got: scheme.to_owned(), compiled_in: Vec::new() }))
        }
    }
}

fn config(cause: impl ToString) -> Error {
    Error::new(ErrorKind::Config, OPERATION, cause.to_string())
}

/// What a store said, as an error of the engine.
pub(super) fn refused(operation: &str, error: StoreError) -> Error {
    let kind = match error.kind {
        StoreErrorKind::Invalid { .. } => ErrorKind::Config,
        _ => ErrorKind::MetadataUnavailable,
    };
    let retry = if error.is_retryable() { Retry::Later } else { Retry::No };
    Error::new(kind, operation, error.to_string()).with_retry(retry).with_source(error)
}

/// What opens the doors of a store.
#[cfg_attr(not(any(feature = "etcd", feature = "redis", feature = "http")), allow(dead_code))]
struct Access {
    user: Option<String>,
    token: Option<String>,
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, String)>,
}

impl Access {
    fn of(settings: &Settings, scheme: &str, url: &str) -> Result<Self> {
        let redis = matches!(scheme, "redis" | "rediss");
        // What the URL states counts, and what the reference engine calls redis is meant for redis alone.
        let meant = |origin: &Origin| {
            let alias =
                matches!(origin, Origin::Environment { variable } if variable.starts_with("MC_REDIS_"));
            !url.contains('@') && (redis || !alias)
        };
        let user = &settings.metadata_user;
        let token = &settings.metadata_token;
        let chain = read("metadata.cert_file", &settings.metadata_cert_file)?;
        let key = read("metadata.key_file", &settings.metadata_key_file)?;
        let identity = match chain.zip(key) {
            Some((chain, key)) => {
                let key = String::from_utf8(key)
                    .map_err(|_| config("the file of metadata.key_file is no PEM text"))?;
                Some((chain, key))
            }
            None => None,
        };
        Ok(Self {
            user: user.get().clone().filter(|_| meant(user.origin())),
            token: token
                .get()
                .as_ref()
                .filter(|_| meant(token.origin()))
                .map(|token| token.reveal().to_owned()),
            ca: read("metadata.ca_file", &settings.metadata_ca_file)?,
            identity,
        })
    }

    #[cfg(feature = "etcd")]
    fn etcd(self, settings: &Settings, url: &str) -> Result<Arc<dyn MetadataStore>> {
        use te_metadata_etcd::{EtcdConfig, EtcdConfigError, EtcdStore};

        let failed = |error| match error {
            EtcdConfigError::TlsMissing => needs_tls("etcd"),
            error => config(&error).with_source(error),
        };
        let mut store = EtcdConfig::parse(url)
            .map_err(failed)?
            .max_request(usize::try_from(*settings.metadata_max_request.get()).unwrap_or(usize::MAX))
            .connect_timeout(*settings.control_connect.get());
        match (self.user, self.token) {
            (Some(user), Some(token)) => store = store.user(user, token),
            (None, None) => {}
            _ => return Err(config("etcd needs metadata.user and metadata.token, or neither of them")),
        }
        if let Some(ca) = self.ca {
            store = store.ca_pem(ca);
        }
        if let Some((chain, key)) = self.identity {
            store = store.identity_pem(chain, key);
        }
        Ok(Arc::new(EtcdStore::new(store).map_err(failed)?))
    }

    #[cfg(feature = "redis")]
    fn redis(self, settings: &Settings, url: &str) -> Result<Arc<dyn MetadataStore>> {
        use te_metadata_redis::{RedisConfig, RedisConfigError, RedisStore};

        let failed = |error| match error {
            RedisConfigError::TlsMissing => needs_tls("rediss"),
            error => config(&error).with_source(error),
        };
        let mut store =
            RedisConfig::parse(url).map_err(failed)?.connect_timeout(*settings.control_connect.get());
        match (self.user, self.token) {
            (Some(user), Some(token)) => store = store.user(user, token),
            (None, Some(token)) => store = store.password(token),
            (None, None) => {}
            (Some(_), None) => return Err(config("metadata.user needs metadata.token beside it")),
        }
        let place = url.rsplit_once('@').map_or(url, |(_, place)| place);
        let place = place.split_once("://").map_or(place, |(_, place)| place);
        if place.split_once('/').is_none_or(|(_, database)| database.is_empty()) {
            // The range of the setting is that of the store.
            store = store.database(u32::try_from(settings.metadata_database.get().0).unwrap_or(u32::MAX));
        }
        if let Some(ca) = self.ca {
            store = store.ca_pem(ca);
        }
        if let Some((chain, key)) = self.identity {
            store = store.identity_pem(chain, key);
        }
        Ok(Arc::new(RedisStore::new(store).map_err(failed)?))
    }

    #[cfg(feature = "http")]
    async fn http(
        self,
        settings: &Settings,
        url: &str,
        incarnation: Option<Incarnation>,
        deadline: Instant,
    ) -> Result<Arc<dyn MetadataStore>> {
        use te_metadata_http::{HttpConfig, HttpStore};

        if self.user.is_some() {
            let cause = "http stores take a token in metadata.token, or user and password in the URL; not metadata.user";
            return Err(config(cause));
        }
        let mut store = HttpConfig::parse(url)
            .map_err(|error| config(&error).with_source(error))?
            .connect_timeout(*settings.control_connect.get());
        if let Some(token) = self.token {
            store = store.bearer_token(token);
        }
        if let Some(proxy) = settings.metadata_proxy.get() {
            store = store.proxy(proxy.reveal());
        }
        #[cfg(feature = "tls")]
        {
            if let Some(ca) = self.ca {
                store = store.ca_pem(ca);
            }
            if let Some((chain, key)) = self.identity {
                store = store.identity_pem(chain, key);
            }
        }
        #[cfg(not(feature = "tls"))]
        if self.ca.is_some() || self.identity.is_some() {
            return Err(needs_tls("https"));
        }
        if let Some(incarnation) = incarnation {
            store = store.incarnation(incarnation);
        }
        // Asked now: with our server there are leases and watches, which a directory wants to know when it is made.
        let store = HttpStore::connect(store, deadline).await.map_err(|error| refused(OPERATION, error))?;
        Ok(Arc::new(store))
    }
}

/// A store was asked for TLS, which its crate was built without.
#[cfg(any(feature = "etcd", feature = "redis", all(feature = "http", not(feature = "tls"))))]
fn needs_tls(scheme: &'static str) -> Error {
    let error = MetadataError::NeedsFeature {
        scheme,
        feature: crate::features::TLS,
        in_this_release: true,
        compiled_in: super::compiled_in(),
    };
    config(&error).with_source(error)
}

fn read(key: &str, setting: &Setting<Option<PathBuf>>) -> Result<Option<Vec<u8>>> {
    let Some(path) = setting.get() else { return Ok(None) };
    let read = std::fs::read(path);
    read.map(Some).map_err(|error| {
        config(format!("{key} = {} from {} cannot be read: {error}", path.display(), setting.origin()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(variables: &[(&str, &str)], scheme: &str, url: &str) -> Access {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        Access::of(&Settings::from_variables(variables).unwrap().settings, scheme, url).unwrap()
    }

    /// A variable that the reference engine reads for redis is no password of another store.
    #[test]
    fn redis_variables_of_the_reference_are_for_redis_alone() {
        let variables = [("MC_REDIS_USERNAME", "engine"), ("MC_REDIS_PASSWORD", "hunter2")];
        let redis = access(&variables, "redis", "redis://a");
        assert_eq!((redis.user.as_deref(), redis.token.as_deref()), (Some("engine"), Some("hunter2")));
        let etcd = access(&variables, "etcd", "etcd://a:2379");
        assert_eq!((etcd.user, etcd.token), (None, None));
        let own = access(&[("TE_METADATA_TOKEN", "hunter2")], "http", "http://a");
        assert_eq!(own.token.as_deref(), Some("hunter2"));
    }

    #[test]
    fn a_login_in_the_url_counts_more_than_settings() {
        let access = access(&[("TE_METADATA_TOKEN", "hunter2")], "redis", "redis://:other@a");
        assert_eq!(access.token, None);
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_file_that_cannot_be_read_is_named_with_its_setting() {
        let mut settings = Settings::default();
        settings.set("metadata.ca_file", "/nonexistent", Origin::CommandLine).unwrap();
        let error = Access::of(&settings, "https", "https://a").err().unwrap();
        let expected = "metadata.ca_file = /nonexistent from command line cannot be read: ";
        assert!(error.cause().starts_with(expected), "{error}");
    }
}
