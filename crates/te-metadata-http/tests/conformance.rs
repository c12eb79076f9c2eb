//! The store suite, against our server: in memory, and with a journal.
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
