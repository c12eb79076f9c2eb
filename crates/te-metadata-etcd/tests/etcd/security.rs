//! Users, passwords and TLS.

use std::time::Duration;

use te_metadata::{MetadataStore, StoreErrorKind};
use te_metadata_etcd::EtcdStore;

use crate::{key, put, read, server::Server, soon};

const PASSWORD: &str = "hunter2%40";

/// A server with a user who may use `mooncake/` and nothing else.
fn guarded() -> Server {
    let server = Server::start();
    for args in [
        &["user", "add", &format!("engine:{PASSWORD}")][..],
        &["user", "add", "root:rootpw"],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "writer"],
        &["role", "grant-permission", "writer", "readwrite", "mooncake/", "--prefix"],
        &["user", "grant-role", "engine", "writer"],
        &["auth", "enable"],
    ] {
        server.ctl(args);
    }
    server
}

#[tokio::test]
async fn a_user_with_a_password_gets_what_the_user_may() {
    let server = guarded();
    let store = EtcdStore::new(server.config().user("engine", PASSWORD)).unwrap();
    let revision =
        store.put(put("mooncake/ram/a", "1").leased(Duration::from_secs(60)), soon()).await.unwrap();
    assert_eq!(read(&store, "mooncake/ram/a").await.as_deref(), Some("1"));
    assert!(store.renew(&key("mooncake/ram/a"), revision, Duration::from_secs(60), soon()).await.unwrap());
    let mut watch = store.watch("mooncake/", soon()).await.unwrap();
    store.put(put("mooncake/ram/a", "2"), soon()).await.unwrap();
    watch.next().await.unwrap().unwrap();
    let error = store.put(put("elsewhere", "1"), soon()).await.unwrap_err();
    assert!(matches!(error.kind, StoreErrorKind::Denied { .. }) && !error.is_retryable(), "{error}");
    let error = store.watch("elsewhere", soon()).await.unwrap_err();
    assert!(matches!(error.kind, StoreErrorKind::Denied { .. }), "{error}");
}

#[tokio::test]
async fn a_wrong_or_missing_password_is_denied_and_never_shown() {
    let server = guarded();
    let wrong = EtcdStore::new(server.config().user("engine", "letmein")).unwrap();
    for store in [wrong, server.store()] {
        let error = store.get(&key("mooncake/ram/a"), soon()).await.unwrap_err();
        assert!(matches!(error.kind, StoreErrorKind::Denied { .. }), "{error}");
        assert!(!error.is_retryable());
        let shown = format!("{error} {error:?} {store:?}");
        assert!(!shown.contains("letmein"), "{shown}");
    }
}

/// The server forgets its tokens when it restarts.
#[tokio::test]
async fn a_lost_token_is_asked_for_again() {
    let mut server = guarded();
    let store = EtcdStore::new(server.config().user("engine", PASSWORD)).unwrap();
    let mut watch = store.watch("mooncake/", soon()).await.unwrap();
    store.put(put("mooncake/ram/a", "1"), soon()).await.unwrap();
    watch.next().await.unwrap().unwrap();
    server.stop();
    server.run();
    store.put(put("mooncake/ram/a", "2"), soon()).await.unwrap();
    let event = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
    assert!(matches!(event, Ok(Some(Ok(te_metadata::WatchEvent::Put { .. })))), "{event:?}");
}

mod tls {
    use std::fs;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
    use te_metadata_etcd::{EtcdConfig, EtcdConfigError};

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
        let mut extra =
            vec![format!("--cert-file={}", path("server.pem")), format!("--key-file={}", path("server.key"))];
        if mutual {
            extra.push("--client-cert-auth".to_owned());
            extra.push(format!("--trusted-ca-file={}", path("ca.pem")));
        }
        let server = Server::start_with(&extra.iter().map(String::as_str).collect::<Vec<_>>());
        (server, dir)
    }

    fn config(server: &Server) -> EtcdConfig {
        let config = EtcdConfig::parse(&format!("etcds://{}", server.address())).unwrap();
        config.patience(Duration::from_millis(300))
    }

    #[tokio::test]
    async fn a_store_over_tls_works() {
        let authority = Authority::new();
        let (server, _dir) = server(&authority, false);
        let store = EtcdStore::new(config(&server).ca_pem(authority.pem())).unwrap();
        store.put(put("a", "1"), soon()).await.unwrap();
        assert_eq!(read(&store, "a").await.as_deref(), Some("1"));
    }

    #[tokio::test]
    async fn a_server_of_another_authority_is_refused() {
        let (server, _dir) = server(&Authority::new(), false);
        for config in [config(&server).ca_pem(Authority::new().pem()), config(&server)] {
            let store = EtcdStore::new(config).unwrap();
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
        let store = EtcdStore::new(with).unwrap();
        store.put(put("a", "1"), soon()).await.unwrap();
        let without = EtcdStore::new(config(&server).ca_pem(authority.pem())).unwrap();
        without.get(&key("a"), soon()).await.unwrap_err();
    }

    #[test]
    fn a_text_that_is_no_certificate_is_an_error_at_once() {
        let config = EtcdConfig::parse("etcds://127.0.0.1:1").unwrap();
        let authority = config.clone().ca_pem("no certificate");
        assert!(matches!(EtcdStore::new(authority), Err(EtcdConfigError::Certificate { .. })));
        let (certificate, key) = Authority::new().issue("engine");
        let keyless = config.clone().identity_pem(certificate.clone(), "hunter2");
        let error = EtcdStore::new(keyless).unwrap_err();
        assert!(matches!(error, EtcdConfigError::Certificate { .. }));
        assert!(!format!("{error} {error:?}").contains("hunter2"));
        assert!(EtcdStore::new(config.identity_pem(certificate, key)).is_ok());
    }
}
