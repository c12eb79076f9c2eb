//! The store suite, against our server, in memory and with a journal, and against the reference's own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure fails the test")]

mod support;

use std::{
    net::TcpListener,
    sync::{Arc, LazyLock},
    time::Duration,
};

use te_metadata::{BoxFuture, MetadataStore};
use te_metadata_http::{HttpConfig, HttpStore, server::MetadataServer};
use te_testkit::{StoreRig, Violation};
use tokio::runtime::Runtime;

/// A server on a runtime of its own: cases come and go with theirs.
struct Served {
    url: String,
    /// Accepts in the kernel, and nobody ever reads.
    silent: TcpListener,
    _server: MetadataServer,
    _runtime: Runtime,
    _folder: Option<tempfile::TempDir>,
}

impl Served {
    fn start(persistent: bool) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let folder = persistent.then(|| tempfile::tempdir().unwrap());
        let mut builder = support::builder();
        if let Some(folder) = &folder {
            builder = builder.persist(folder.path().join("journal"));
        }
        let server = runtime.block_on(builder.start()).unwrap();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        Self { url: server.url(), silent, _server: server, _runtime: runtime, _folder: folder }
    }
}

struct Rig(&'static Served);

impl StoreRig for Rig {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn MetadataStore>, Violation>> {
        Box::pin(async {
            let store: Arc<dyn MetadataStore> = Arc::new(support::connect(&self.0.url).await);
            Ok(store)
        })
    }

    fn silent(&self) -> BoxFuture<'_, Result<Option<Arc<dyn MetadataStore>>, Violation>> {
        Box::pin(async {
            let url = format!("http://{}/metadata", self.0.silent.local_addr().unwrap());
            let store: Arc<dyn MetadataStore> =
                Arc::new(HttpStore::new(HttpConfig::parse(&url).unwrap()).unwrap());
            Ok(Some(store))
        })
    }

    fn grace(&self) -> Duration {
        Duration::from_secs(3)
    }
}

/// The reference's Python server from its wheel.
struct Python(String);

impl StoreRig for Python {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn MetadataStore>, Violation>> {
        Box::pin(async {
            let store: Arc<dyn MetadataStore> = Arc::new(support::connect(&self.0).await);
            Ok(store)
        })
    }
}

/// What the reference's server does not have: conditions, lists, leases, and watches, which are made up for by asking
/// again for the keys that were read. Everything else of the suite holds for it.
#[test]
fn python_server_passes_all_of_the_suite_that_needs_no_more_than_it_has() {
    let Some(server) = support::Python::start() else { return };
    let rig: Arc<dyn StoreRig> = Arc::new(Python(server.url.clone()));
    let report = te_testkit::store_report(&rig);
    for name in report.not_applicable() {
        eprintln!("SKIPPED {name}: the server does not claim what it needs");
    }
    assert!(report.failed().is_empty(), "{report}");
    let expected = [
        "absent_puts_do_not_overwrite",
        "stale_puts_do_not_overwrite",
        "stale_deletes_do_nothing",
        "one_of_many_claims_a_key",
        "no_update_is_lost",
        "lists_are_exact_and_in_order",
        "changes_are_seen_in_order",
        "watches_see_their_prefix_only",
        "dropped_waits_lose_nothing",
        "every_watcher_sees_everything",
        "leased_keys_expire",
        "renewed_leases_last",
        "renewal_needs_the_revision",
        "unleased_put_ends_the_lease",
        "expiry_is_watched",
        "lists_say_what_is_left_of_leases",
        "silent_servers_cost_the_deadline",
    ];
    let skipped = report.not_applicable();
    assert!(
        skipped.iter().all(|name| expected.contains(name)) && skipped.len() == expected.len(),
        "{report}"
    );
}

mod in_memory {
    use super::{LazyLock, Rig, Served};

    static SERVED: LazyLock<Served> = LazyLock::new(|| Served::start(false));
    te_testkit::store_conformance!(Rig(&SERVED));
}

mod with_a_journal {
    use super::{LazyLock, Rig, Served};

    static SERVED: LazyLock<Served> = LazyLock::new(|| Served::start(true));
    te_testkit::store_conformance!(Rig(&SERVED));
}
