//! Users, passwords and TLS.

use std::time::Duration;

use te_metadata::{MetadataStore, StoreErrorKind, WatchEvent};
use te_metadata_redis::{RedisConfig, RedisStore};

use crate::{key, put, read, server::Server, soon};

const PASSWORD: &str = "hunter2%40";

async fn next(store: &RedisStore, at: &str) -> WatchEvent {
    let mut watch = store.watch(at, soon()).await.unwrap();
    store.put(put(at, "told"), soon()).await.unwrap();
    let event = tokio::time::timeout(Duration::from_secs(10), watch.next()).await;
    event.expect("no event came").expect("the watch ended").unwrap()
}

#[tokio::test]
async fn the_servers_password_opens_it() {
    let server = Server::start_with(&["--requirepass", PASSWORD]);
    let store = RedisStore::new(server.config().password(PASSWORD)).unwrap();
    store.put(put("a", "1"), soon()).await.unwrap();
    assert_eq!(read(&store, "a").await.as_deref(), Some("1"));
    let url = format!("redis://:hunter2%2540@{}", server.address());
    let store = RedisStore::new(RedisConfig::parse(&url).unwrap()).unwrap();
    assert_eq!(read(&store, "a").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn a_wrong_or_missing_password_is_denied_and_never_shown() {
    let server = Server::start_with(&["--requirepass", PASSWORD]);
    let wrong = RedisStore::new(server.config().password("letmein")).unwrap();
    for store in [wrong, server.store()] {
        let errors = [
            store.get(&key("a"), soon()).await.unwrap_err(),
            store.put(put("a", "1"), soon()).await.unwrap_err(),
            store.watch("a", soon()).await.unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error.kind, StoreErrorKind::Denied { .. }), "{error}");
            assert!(!error.is_retryable());
            let shown = format!("{error} {error:?} {store:?}");
            assert!(!shown.contains("letmein"), "{shown}");
        }
    }
}

/// A user who may use what the store needs and nothing else.
#[tokio::test]
async fn a_user_of_few_rights_is_enough() {
    let server = Server::start();
    let commands =
        "+@connection +get +set +del +pttl +pexpire +time +publish +psubscribe +scan +evalsha +script|load";
    let mut rule = vec!["ACL", "SETUSER", "engine", "on", ">engine-pw", "~mooncake/*", "~te:revision*"];
    rule.extend(["&te:changes:*"]);
    rule.extend(commands.split(' '));
    server.command(&rule).await;
    let config = server.config().user("engine", "engine-pw").poll_interval(Duration::from_millis(100));
    let store = RedisStore::new(config).unwrap();
    let lease = Duration::from_secs(60);
    let revision = store.put(put("mooncake/ram/a", "1").leased(lease), soon()).await.unwrap();
    assert!(store.renew(&key("mooncake/ram/a"), revision, lease, soon()).await.unwrap());
    assert_eq!(store.list("mooncake/", soon()).await.unwrap().len(), 1);
    // Without the right to ask for the server's settings, the watch is told by writers and polls.
    let event = next(&store, "mooncake/ram/a").await;
    assert!(matches!(&event, WatchEvent::Put { entry, .. } if entry.value == "told"), "{event:?}");
    assert!(store.delete(&key("mooncake/ram/a"), None, soon()).await.unwrap());
    let error = store.put(put("elsewhere", "1"), soon()).await.unwrap_err();
    assert!(matches!(error.kind, StoreErrorKind::Denied { .. }), "{error}");
}

/// A user without any channel: changes are found by polling.
#[tokio::test]
async fn a_user_without_channels_polls() {
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "mute", "on", ">mute-pw", "~*", "+@all", "resetchannels"]).await;
    let config = server.config().user("mute", "mute-pw").poll_interval(Duration::from_millis(100));
    let event = next(&RedisStore::new(config).unwrap(), "a").await;
    assert!(matches!(&event, WatchEvent::Put { entry, .. } if entry.value == "told"), "{event:?}");
}

mod tls {
    use std::fs;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
    use te_metadata_redis::RedisConfigError;

    use super::*;

    struct Authority(CertifiedIssuer<'static, KeyPair>);

    impl Authority {
        fn new() -> Self {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.distinguished_name.push(DnType::CommonName, "test authority");
            Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
        }

        /// A certificate and its key, both PEM.
        fn issue(&self, name: &str) -> (String, String) {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            params.extended_key_usages =
                vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
            (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
        }

        fn pem(&self) -> String {
            self.0.pem()
        }
    }

    /// A server with a certificate for 127.0.0.1, which may ask for one of the client.
    fn server(authority: &Authority, mutual: bool) -> (Server, tempfile::TempDir) {
        let dir = crate::server::scratch();
        let (certificate, key) = authority.issue("127.0.0.1");
        let path = |name: &str| dir.path().join(name).display().to_string();
        fs::write(path("server.pem"), certificate).unwrap();
        fs::write(path("server.key"), key).unwrap();
        fs::write(path("ca.pem"), authority.pem()).unwrap();
        let (certificate, key, ca) = (path("server.pem"), path("server.key"), path("ca.pem"));
        let clients = if mutual { "yes" } else { "no" };
        let server = Server::start_with(&[
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &ca,
            "--tls-auth-clients",
            clients,
        ]);
        (server, dir)
    }

    fn config(server: &Server) -> RedisConfig {
        let config = RedisConfig::parse(&format!("rediss://{}", server.address())).unwrap();
        config.patience(Duration::from_millis(300))
    }

    #[tokio::test]
    async fn a_store_over_tls_works_and_watches() {
        let authority = Authority::new();
        let (server, _dir) = server(&authority, false);
        let store = RedisStore::new(config(&server).ca_pem(authority.pem())).unwrap();
        let event = next(&store, "a").await;
        assert!(matches!(&event, WatchEvent::Put { entry, .. } if entry.value == "told"), "{event:?}");
        assert_eq!(read(&store, "a").await.as_deref(), Some("told"));
    }

    #[tokio::test]
    async fn a_server_of_another_authority_is_refused() {
        let (server, _dir) = server(&Authority::new(), false);
        for config in [config(&server).ca_pem(Authority::new().pem()), config(&server)] {
            let store = RedisStore::new(config).unwrap();
            let error = store.get(&key("a"), soon()).await.unwrap_err();
            assert!(error.to_string().to_lowercase().contains("certificate"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_server_that_wants_a_certificate_gets_ours() {
        let authority = Authority::new();
        let (server, _dir) = server(&authority, true);
        let (certificate, private) = authority.issue("engine");
        let with = config(&server).ca_pem(authority.pem()).identity_pem(certificate, private);
        let store = RedisStore::new(with).unwrap();
        store.put(put("a", "1"), soon()).await.unwrap();
        let without = RedisStore::new(config(&server).ca_pem(authority.pem())).unwrap();
        without.get(&key("a"), soon()).await.unwrap_err();
    }

    #[test]
    fn a_text_that_is_no_certificate_is_an_error_at_once() {
        let config = RedisConfig::parse("rediss://127.0.0.1:1").unwrap();
        let authority = config.clone().ca_pem("no certificate");
        assert!(matches!(RedisStore::new(authority), Err(RedisConfigError::Certificate { .. })));
        let (certificate, key) = Authority::new().issue("engine");
        let keyless = config.clone().identity_pem(certificate.clone(), "hunter2");
        let error = RedisStore::new(keyless).unwrap_err();
        assert!(matches!(error, RedisConfigError::Certificate { .. }));
        assert!(!format!("{error} {error:?}").contains("hunter2"));
        assert!(RedisStore::new(config.identity_pem(certificate, key)).is_ok());
    }
}
