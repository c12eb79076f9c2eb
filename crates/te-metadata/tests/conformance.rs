//! The contracts of stores and directories, as the in-memory store and the directory over it keep them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use te_metadata::{BoxFuture, ClusterId, Directory, Keys, MemoryStore, MetadataStore, StoreDirectory};
use te_segment::{Endpoint, SegmentName};
use te_testkit::{DirectoryRig, FaultStore, Outage, Publisher, StoreRig, Violation};

const LIMIT: usize = 200_000;

struct InMemory(MemoryStore);

impl StoreRig for InMemory {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn MetadataStore>, Violation>> {
        Box::pin(async { Ok(Arc::new(self.0.clone()) as Arc<dyn MetadataStore>) })
    }

    fn silent(&self) -> BoxFuture<'_, Result<Option<Arc<dyn MetadataStore>>, Violation>> {
        let silent = FaultStore::new(self.0.clone());
        silent.set(Outage::Silent);
        Box::pin(async move { Ok(Some(Arc::new(silent) as Arc<dyn MetadataStore>)) })
    }
}

mod memory_store {
    use super::*;
    te_testkit::store_conformance!(InMemory(MemoryStore::with_max_value(LIMIT)));
}

struct OverStore {
    store: MemoryStore,
    keys: Keys,
    ports: AtomicU16,
}

impl OverStore {
    fn new(keys: Keys) -> Self {
        Self { store: MemoryStore::with_max_value(LIMIT), keys, ports: AtomicU16::new(20_000) }
    }

    fn open(&self) -> Arc<dyn Directory> {
        Arc::new(StoreDirectory::new(self.store.clone(), self.keys.clone()))
    }
}

impl DirectoryRig for OverStore {
    fn publisher(&self, wish: &str) -> BoxFuture<'_, Result<Publisher, Violation>> {
        let name = SegmentName::new(wish);
        Box::pin(async move {
            let port = self.ports.fetch_add(1, Ordering::Relaxed);
            let location: Endpoint = format!("127.0.0.1:{port}").parse()?;
            Ok(Publisher {
                directory: self.open(),
                name: name?,
                location: location.into(),
                keep: Box::new(()),
            })
        })
    }

    fn reader(&self) -> BoxFuture<'_, Result<Arc<dyn Directory>, Violation>> {
        Box::pin(async { Ok(self.open()) })
    }
}

mod store_directory {
    use super::*;
    te_testkit::directory_conformance!(OverStore::new(Keys::default()));
}

mod store_directory_of_a_cluster {
    use super::*;
    te_testkit::directory_conformance!(OverStore::new(Keys::new(Some(ClusterId::new("blue").unwrap()))));
}
