//! What the tests of this crate share.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses its own part")]

use std::{
    collections::HashMap,
    num::NonZeroU16,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use te_metadata::{
    BoxFuture, Directory, DirectoryError, DirectoryOperation, Entry, Key, MemoryStore, MetadataStore,
    NameRule, PutRequest, Resolved, Source, StoreError, StoreErrorKind, StoreInfo, StoreOperation,
    WatchStream,
};
use te_segment::{
    Access, AddressRange, BufferDescriptor, DescriptorVersion, Endpoint, Generation, Identity, Incarnation,
    Location, SegmentDescriptor, SegmentName, TcpFraming, TcpService, TransportKind, Via, wire::RpcLocation,
};
use tokio::sync::Semaphore;

pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

pub fn name(text: &str) -> SegmentName {
    SegmentName::new(text).unwrap()
}

pub fn location() -> RpcLocation {
    "10.0.0.7:15893".parse::<Endpoint>().unwrap().into()
}

/// A descriptor of life `life` in version `version` with `buffers` buffers.
pub fn descriptor(of: &str, life: u128, version: u64, buffers: u64) -> SegmentDescriptor {
    let mut builder = SegmentDescriptor::builder(name(of))
        .identity(Identity::Te { incarnation: Incarnation::from_bits(life), control: None })
        .version(DescriptorVersion::new(version))
        .tcp(TcpService {
            host: Some("10.0.0.7".parse().unwrap()),
            port: NonZeroU16::new(16411).unwrap(),
            framing: TcpFraming::V2,
        });
    for n in 0..buffers {
        builder = builder.buffer(
            BufferDescriptor::new(
                AddressRange::new(0x10_0000 + n * 0x1000, 0x1000).unwrap(),
                Location::cpu(0),
                Access::REMOTE,
                Some(Generation::new(n + 1)),
                [(TransportKind::TCP, Via::Tcp)].into(),
            )
            .unwrap(),
        );
    }
    builder.build().unwrap()
}

/// What a fake directory says about a name.
#[derive(Clone)]
pub enum Says {
    Record(Arc<SegmentDescriptor>),
    Nothing,
    Outage,
    /// Never answers.
    Hangs,
}

/// A directory whose answers the test sets, and whose fetches it counts and can hold up.
pub struct FakeDirectory {
    says: Mutex<HashMap<SegmentName, Says>>,
    pub fetches: AtomicUsize,
    /// Each fetch takes a permit before it looks.
    pub before: Semaphore,
    /// Each fetch takes a permit after it has looked and before it answers.
    pub after: Semaphore,
}

impl FakeDirectory {
    pub fn open() -> Arc<Self> {
        let fake = Self::held();
        fake.before.add_permits(1_000_000);
        fake
    }

    /// No fetch begins to look before the test adds permits to `before`.
    pub fn held() -> Arc<Self> {
        Arc::new(Self {
            says: Mutex::default(),
            fetches: AtomicUsize::new(0),
            before: Semaphore::new(0),
            after: Semaphore::new(1_000_000),
        })
    }

    pub fn say(&self, about: &str, says: Says) {
        self.says.lock().insert(name(about), says);
    }

    pub fn record(&self, descriptor: SegmentDescriptor) {
        self.says.lock().insert(descriptor.name().clone(), Says::Record(Arc::new(descriptor)));
    }

    pub fn fetches(&self) -> usize {
        self.fetches.load(Ordering::SeqCst)
    }

    async fn look(&self, name: &SegmentName) -> Result<Resolved, DirectoryError> {
        self.fetches.fetch_add(1, Ordering::SeqCst);
        self.before.acquire().await.unwrap().forget();
        let says = self.says.lock().get(name).cloned();
        self.after.acquire().await.unwrap().forget();
        match says {
            Some(Says::Record(found)) => {
                let found = SegmentDescriptor::clone(&found);
                Ok(Resolved::new(found, Source::Store { scheme: "fake" }))
            }
            Some(Says::Outage) => Err(DirectoryError::Unavailable {
                operation: DirectoryOperation::Resolve,
                name: name.as_str().to_owned(),
                from: "fake".to_owned(),
                detail: "down".to_owned(),
            }),
            Some(Says::Hangs) => std::future::pending().await,
            Some(Says::Nothing) | None => Err(DirectoryError::NotFound { name: name.clone() }),
        }
    }
}

impl Directory for FakeDirectory {
    fn scheme(&self) -> &str {
        "fake"
    }
    fn max_value(&self) -> Option<usize> {
        None
    }
    fn name_rule(&self) -> NameRule {
        NameRule::Any
    }
    fn publish(
        &self,
        descriptor: Arc<SegmentDescriptor>,
        _: RpcLocation,
        _: Instant,
    ) -> BoxFuture<'_, Result<(), DirectoryError>> {
        self.says.lock().insert(descriptor.name().clone(), Says::Record(descriptor));
        Box::pin(async { Ok(()) })
    }
    fn withdraw<'a>(
        &'a self,
        name: &'a SegmentName,
        _: Instant,
    ) -> BoxFuture<'a, Result<(), DirectoryError>> {
        self.says.lock().remove(name);
        Box::pin(async { Ok(()) })
    }
    fn resolve<'a>(
        &'a self,
        name: &'a SegmentName,
        _: Instant,
    ) -> BoxFuture<'a, Result<Resolved, DirectoryError>> {
        Box::pin(self.look(name))
    }
    fn locate<'a>(
        &'a self,
        name: &'a SegmentName,
        _: Instant,
    ) -> BoxFuture<'a, Result<Endpoint, DirectoryError>> {
        Box::pin(async { Err(DirectoryError::NotFound { name: name.clone() }) })
    }
}

/// A memory store that can fail, refuses to overwrite RPC locations if told so, and logs its writes.
pub struct FaultyStore {
    pub inner: MemoryStore,
    pub down: Mutex<bool>,
    pub guards_rpc_meta: bool,
    pub newline: bool,
    pub log: Mutex<Vec<String>>,
}

impl FaultyStore {
    pub fn new() -> Self {
        Self {
            inner: MemoryStore::new(),
            down: Mutex::new(false),
            guards_rpc_meta: false,
            newline: false,
            log: Mutex::default(),
        }
    }

    fn check(&self, operation: StoreOperation, key: &str) -> Result<(), StoreError> {
        if *self.down.lock() {
            let kind = StoreErrorKind::Unavailable { detail: "connection refused".to_owned() };
            return Err(StoreError::new("faulty", operation, key, kind));
        }
        if matches!(operation, StoreOperation::Put | StoreOperation::Delete) {
            self.log.lock().push(format!("{operation} {key}"));
        }
        Ok(())
    }
}

impl MetadataStore for FaultyStore {
    fn info(&self) -> StoreInfo {
        let mut info = self.inner.info();
        info.scheme = "faulty";
        info.trailing_newline = self.newline;
        // The servers that guard locations know no revisions and no leases.
        info.conditional = !self.guards_rpc_meta;
        info.leases = !self.guards_rpc_meta;
        info
    }
    fn get<'a>(
        &'a self,
        key: &'a Key,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move {
            self.check(StoreOperation::Get, key.as_str())?;
            self.inner.get(key, deadline).await
        })
    }
    fn put(&self, request: PutRequest, deadline: Instant) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let key = request.key.clone();
            self.check(StoreOperation::Put, key.as_str())?;
            if self.guards_rpc_meta
                && key.as_str().contains("rpc_meta")
                && self.inner.get(&key, deadline).await?.is_some()
            {
                let kind = StoreErrorKind::Conflict { current: None };
                return Err(StoreError::new("faulty", StoreOperation::Put, key.as_str(), kind));
            }
            self.inner.put(request, deadline).await
        })
    }
    fn delete<'a>(
        &'a self,
        key: &'a Key,
        revision: Option<u64>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            self.check(StoreOperation::Delete, key.as_str())?;
            self.inner.delete(key, revision, deadline).await
        })
    }
    fn renew<'a>(
        &'a self,
        key: &'a Key,
        revision: u64,
        lease: Duration,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.inner.renew(key, revision, lease, deadline)
    }
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<(Key, Entry)>, StoreError>> {
        self.inner.list(prefix, deadline)
    }
    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<WatchStream, StoreError>> {
        self.inner.watch(prefix, deadline)
    }
}
