//! The suite that every store passes.

use std::{
    net::TcpListener,
    sync::{Arc, LazyLock},
    time::Duration,
};

use te_metadata::{BoxFuture, MetadataStore};
use te_metadata_etcd::{EtcdConfig, EtcdStore};
use te_testkit::{StoreRig, Violation};

use crate::server::Server;

/// One server for all cases that run in this process.
static SERVER: LazyLock<Server> = LazyLock::new(Server::start);

/// Takes connections into its backlog and never answers.
static SILENT: LazyLock<TcpListener> = LazyLock::new(|| TcpListener::bind("127.0.0.1:0").unwrap());

struct Etcd;

impl StoreRig for Etcd {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn MetadataStore>, Violation>> {
        Box::pin(async { Ok(Arc::new(SERVER.store()) as Arc<dyn MetadataStore>) })
    }

    fn silent(&self) -> BoxFuture<'_, Result<Option<Arc<dyn MetadataStore>>, Violation>> {
        Box::pin(async {
            let config = EtcdConfig::parse(&SILENT.local_addr()?.to_string())?;
            Ok(Some(Arc::new(EtcdStore::new(config)?) as Arc<dyn MetadataStore>))
        })
    }

    /// Servers grant no less than 1.5 election timeouts, in whole seconds.
    fn lease(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn grace(&self) -> Duration {
        Duration::from_secs(5)
    }
}

te_testkit::store_conformance!(Etcd);
