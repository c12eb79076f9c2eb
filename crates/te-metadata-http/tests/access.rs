//! Who gets in, and what is shown of secrets: tokens, TLS, proxies.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure fails the test")]

mod support;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use support::{ask, builder, key, put, soon, value};
use te_metadata::{MetadataStore as _, StoreErrorKind};
use te_metadata_http::{
    HttpConfig, HttpConfigError, HttpStore,
    server::{MetadataServer, ServerError, ServerTls},
};
use tokio::net::TcpListener;

const TOKEN: &str = "correct-horse-battery";

async fn guarded() -> MetadataServer {
    builder().token(TOKEN).start().await.unwrap()
}

fn kind(outcome: Result<HttpStore, te_metadata::StoreError>) -> StoreErrorKind {
    outcome.map(drop).unwrap_err().kind
}

/// SEC-04: nothing outside this host reaches a server that was told nothing.
#[test]
fn default_address_is_the_loopback_one() {
    let text = format!("{:?}", MetadataServer::builder());
    assert!(text.contains("127.0.0.1:8080"), "{text}");
}

/// SEC-03
#[tokio::test]
async fn without_the_token_nothing_is_told_or_changed() {
    let server = guarded().await;
    let address = server.local_addr().to_string();
    for (method, target) in [
        ("GET", "/metadata?key=k"),
        ("PUT", "/metadata?key=k"),
        ("DELETE", "/metadata?key=k"),
        ("POST", "/metadata?key=k"),
        ("GET", "/metadata?prefix="),
        ("GET", "/metadata/watch"),
        ("GET", "/cluster"),
        ("GET", "/cluster/events"),
        ("GET", "/metrics"),
        ("GET", "/nowhere"),
    ] {
        for headers in
            ["", "Authorization: Bearer wrong\r\n", "Authorization: Bearer correct-horse-batter\r\n"]
        {
            let (status, _, body) = ask(&address, method, target, headers, "").await;
            assert_eq!((status, body.as_str()), (401, "a token is required"), "{method} {target}");
        }
    }
    assert_eq!(ask(&address, "GET", "/healthz", "", "").await.0, 200);
    assert_eq!(ask(&address, "GET", "/", "", "").await.0, 200, "the page holds no data");
}

#[tokio::test]
async fn token_opens_as_bearer_and_as_password() {
    let server = guarded().await;
    let host = server.local_addr();
    let bearer = HttpConfig::parse(&server.url()).unwrap().bearer_token(TOKEN);
    let basic = HttpConfig::parse(&format!("http://anybody:{TOKEN}@{host}/metadata")).unwrap();
    for config in [bearer, basic] {
        let store = HttpStore::connect(config, soon()).await.unwrap();
        store.put(put("k", "v"), soon()).await.unwrap();
        let mut watch = store.watch("", soon()).await.unwrap();
        store.put(put("k", "w"), soon()).await.unwrap();
        assert_eq!(support::event(&mut watch).await, "+k=w");
    }
}

/// SEC-03: a wrong secret is refused, and is in no text.
#[tokio::test]
async fn wrong_token_is_denied_without_being_shown() {
    let server = guarded().await;
    let config = HttpConfig::parse(&server.url()).unwrap().bearer_token("hunter2-wrong");
    let store = HttpStore::new(config).unwrap();
    let error = store.detect(soon()).await.unwrap_err();
    assert!(matches!(error.kind, StoreErrorKind::Denied { .. }), "{error}");
    let url = format!("http://ops:hunter2-wrong@127.0.0.1:{}/metadata", support::free_port());
    let away = HttpStore::new(HttpConfig::parse(&url).unwrap()).unwrap();
    let unreachable = away.get(&key("k"), soon()).await.unwrap_err();
    let shown = format!("{error} {error:?} {unreachable} {unreachable:?} {store:?} {away:?} {}", away.url());
    assert!(!shown.contains("hunter2"), "{shown}");
    let server = format!("{:?} {:?}", builder().token("hunter2"), server);
    assert!(!server.contains("hunter2") && !server.contains(TOKEN), "{server}");
}

/// Everything the client and the server log at the most talkative level.
#[tokio::test]
async fn secrets_are_in_no_log() {
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = guarded().await;
    let store = HttpStore::connect(HttpConfig::parse(&server.url()).unwrap().bearer_token(TOKEN), soon())
        .await
        .unwrap();
    store.put(put("k", "v"), soon()).await.unwrap();
    drop(store.watch("", soon()).await.unwrap());
    server.shutdown(soon()).await.unwrap();
    store.get(&key("k"), soon()).await.unwrap_err();
    let text = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(text.contains("hyper"), "the log is on: {text}");
    assert!(!text.contains(TOKEN), "{text}");
}

/// The environment's proxies are not asked: an engine's store is not on the web.
#[tokio::test]
async fn proxy_is_used_only_if_it_is_named() {
    let server = support::server().await;
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = HttpConfig::parse(&server.url()).unwrap();
    let through = config.clone().proxy(format!("http://u:hunter2@{}", proxy.local_addr().unwrap()));
    let asked = tokio::spawn(async move {
        use tokio::io::AsyncReadExt as _;
        let (mut stream, _) = proxy.accept().await.unwrap();
        let mut head = vec![0; 4096];
        let length = stream.read(&mut head).await.unwrap();
        String::from_utf8_lossy(&head[..length]).into_owned()
    });
    let error = HttpStore::connect(through, soon()).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"));
    let head = asked.await.unwrap();
    assert!(head.starts_with(&format!("GET {}?key=", server.url())), "{head}");
    HttpStore::connect(config, soon()).await.unwrap();
}

struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Certificate and key for a host.
    fn issue(&self, host: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

async fn encrypted(ca: &Authority) -> MetadataServer {
    let (certificate, key) = ca.issue("127.0.0.1");
    builder().tls(ServerTls::new(certificate, key)).start().await.unwrap()
}

#[tokio::test]
async fn https_works_with_an_authority_of_ones_own() {
    let ca = Authority::new();
    let server = encrypted(&ca).await;
    assert!(server.url().starts_with("https://"));
    let config = HttpConfig::parse(&server.url()).unwrap().ca_pem(ca.pem());
    let store = HttpStore::connect(config, soon()).await.unwrap();
    let mut watch = store.watch("", soon()).await.unwrap();
    store.put(put("k", "v"), soon()).await.unwrap();
    assert_eq!(support::event(&mut watch).await, "+k=v");
    assert_eq!(value(&store, "k").await.as_deref(), Some("v"));
}

#[tokio::test]
async fn server_of_an_unknown_authority_is_refused() {
    let server = encrypted(&Authority::new()).await;
    for config in [
        HttpConfig::parse(&server.url()).unwrap(),
        HttpConfig::parse(&server.url()).unwrap().ca_pem(Authority::new().pem()),
    ] {
        let outcome = kind(HttpStore::connect(config, soon()).await);
        assert!(
            matches!(&outcome, StoreErrorKind::Unavailable { detail } if detail.contains("certificate")),
            "{outcome}"
        );
    }
}

#[tokio::test]
async fn server_with_another_name_is_refused() {
    let ca = Authority::new();
    let (certificate, key) = ca.issue("elsewhere.example");
    let server = builder().tls(ServerTls::new(certificate, key)).start().await.unwrap();
    let config = HttpConfig::parse(&server.url()).unwrap().ca_pem(ca.pem());
    assert!(matches!(kind(HttpStore::connect(config, soon()).await), StoreErrorKind::Unavailable { .. }));
}

/// SEC-03: plaintext is refused where TLS is on.
#[tokio::test]
async fn plain_http_is_refused_by_an_https_server() {
    let server = encrypted(&Authority::new()).await;
    let plain = server.url().replace("https", "http");
    let outcome = kind(HttpStore::connect(HttpConfig::parse(&plain).unwrap(), soon()).await);
    assert!(matches!(outcome, StoreErrorKind::Unavailable { .. }), "{outcome}");
}

/// SEC-03: mutual authentication.
#[tokio::test]
async fn server_that_asks_for_certificates_serves_only_who_has_one() {
    let (ca, clients) = (Authority::new(), Authority::new());
    let (certificate, key) = ca.issue("127.0.0.1");
    let tls = ServerTls::new(certificate, key).require_clients_of(clients.pem());
    let server = builder().tls(tls).start().await.unwrap();
    let config = HttpConfig::parse(&server.url()).unwrap().ca_pem(ca.pem());
    let (certificate, secret) = clients.issue("engine-7");
    let known = config.clone().identity_pem(certificate, secret);
    HttpStore::connect(known, soon()).await.unwrap();
    let (certificate, secret) = ca.issue("engine-7");
    for config in [config.clone(), config.identity_pem(certificate, secret)] {
        let outcome = kind(HttpStore::connect(config, soon()).await);
        assert!(matches!(outcome, StoreErrorKind::Unavailable { .. }), "{outcome}");
    }
}

#[tokio::test]
async fn unusable_certificates_are_named() {
    let ca = Authority::new();
    let (certificate, key) = ca.issue("127.0.0.1");
    let (_, other_key) = ca.issue("127.0.0.1");
    let config = || HttpConfig::parse("https://127.0.0.1/metadata").unwrap();
    let named = |config: HttpConfig| match HttpStore::new(config).map(drop) {
        Err(HttpConfigError::Certificate { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(named(config().ca_pem("nothing")), "ca certificate");
    assert_eq!(named(config().identity_pem("nothing", key.clone())), "client certificate");
    assert_eq!(named(config().identity_pem(certificate.clone(), "nothing")), "client key");
    for (tls, expected) in [
        (ServerTls::new("nothing", key.clone()), "server certificate"),
        (ServerTls::new(certificate.clone(), "nothing"), "server key"),
        (ServerTls::new(certificate.clone(), other_key), "server certificate"),
        (ServerTls::new(certificate, key).require_clients_of("nothing"), "client ca certificate"),
    ] {
        match builder().tls(tls).start().await {
            Err(ServerError::Certificate { what, .. }) => assert_eq!(what, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
}

/// OBS-02, SEC-04: counters are on by default, on the same address, behind the same token.
#[tokio::test]
async fn metrics_count_what_happens() {
    let server = guarded().await;
    let config = HttpConfig::parse(&server.url()).unwrap().bearer_token(TOKEN);
    let store = HttpStore::connect(config, soon()).await.unwrap();
    store.put(put("k", "12345").leased(std::time::Duration::from_secs(60)), soon()).await.unwrap();
    store.put(put("l", ""), soon()).await.unwrap();
    let _watch = store.watch("", soon()).await.unwrap();
    let address = server.local_addr().to_string();
    let (status, head, text) =
        ask(&address, "GET", "/metrics", &format!("Authorization: Bearer {TOKEN}\r\n"), "").await;
    assert!(status == 200 && head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(text.ends_with("# EOF\n"));
    let lines: BTreeMap<&str, &str> =
        text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' ')).collect();
    for (name, expected) in [
        ("te_metad_keys", "2"),
        ("te_metad_leased_keys", "1"),
        ("te_metad_values_bytes", "5"),
        ("te_metad_watches", "1"),
        ("te_metad_requests_total{operation=\"put\",status=\"200\"}", "2"),
        ("te_metad_requests_total{operation=\"get\",status=\"404\"}", "1"),
    ] {
        assert_eq!(lines.get(name), Some(&expected), "{name}\n{text}");
    }
}

#[tokio::test]
async fn address_that_is_taken_is_named() {
    let first = support::server().await;
    let error = builder().bind(first.local_addr()).start().await.unwrap_err();
    assert!(error.to_string().contains(&first.local_addr().to_string()), "{error}");
}
