//! The suite that every store passes: with keyspace events, and with polling instead.

use std::{
    net::TcpListener,
    sync::{Arc, LazyLock},
    time::Duration,
};

use te_metadata::{BoxFuture, MetadataStore};
use te_metadata_redis::{RedisConfig, RedisStore};
use te_testkit::{StoreRig, Violation};

use crate::server::Server;

/// The smallest limit a server can be given; the default one would need gigabytes of memory here.
const MAX: usize = 1 << 20;
const LIMIT: [&str; 2] = ["--proto-max-bulk-len", "1mb"];

static PLAIN: LazyLock<Server> = LazyLock::new(|| Server::start_with(&LIMIT));
static EVENTS: LazyLock<Server> =
    LazyLock::new(|| Server::start_with(&[LIMIT[0], LIMIT[1], "--notify-keyspace-events", "KA"]));

/// Takes connections into its backlog and never answers.
static SILENT: LazyLock<TcpListener> = LazyLock::new(|| TcpListener::bind("127.0.0.1:0").unwrap());

struct Redis(&'static LazyLock<Server>);

impl StoreRig for Redis {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn MetadataStore>, Violation>> {
        Box::pin(async {
            let config = self.0.config().max_value(MAX).poll_interval(Duration::from_millis(200));
            Ok(Arc::new(RedisStore::new(config)?) as Arc<dyn MetadataStore>)
        })
    }

    fn silent(&self) -> BoxFuture<'_, Result<Option<Arc<dyn MetadataStore>>, Violation>> {
        Box::pin(async {
            let config = RedisConfig::parse(&SILENT.local_addr()?.to_string())?;
            Ok(Some(Arc::new(RedisStore::new(config)?) as Arc<dyn MetadataStore>))
        })
    }

    fn grace(&self) -> Duration {
        Duration::from_secs(4)
    }
}

mod polling {
    use super::{PLAIN, Redis};

    te_testkit::store_conformance!(Redis(&PLAIN));
}

mod events {
    use super::{EVENTS, Redis};

    te_testkit::store_conformance!(Redis(&EVENTS));
}
