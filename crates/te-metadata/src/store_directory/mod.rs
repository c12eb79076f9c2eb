//! The directory over a metadata store.

mod claim;
mod hold;
mod publishing;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use te_segment::{
    CompatProtocol, DecodeOptions, DescriptorError, EncodeOptions, Endpoint, SegmentDescriptor, SegmentName,
    TcpService, wire::RpcLocation,
};

use crate::{
    directory::{Directory, DirectoryWatch, Kept, NameRule, Resolved, Source},
    error::{DirectoryError, DirectoryOperation},
    key::{Key, Keys},
    store::{BoxFuture, MetadataStore, StoreInfo},
    timestamp::format_timestamp,
};
use hold::Holding;

pub use claim::HolderAnswer;
pub use hold::HolderProbe;

/// How often records without a lease are looked after.
const LOOK_AFTER: Duration = Duration::from_secs(3);

/// Publishes to a [`MetadataStore`] and resolves from it, with the keys and values of the reference engine.
///
/// Two records per name: the descriptor, and the RPC location of its engine. The location is written first and
/// deleted first, so that a descriptor written by us is found together with its location, and a name that is being
/// withdrawn stops being contacted before it stops being found.
///
/// **A name has one live holder.** Before the first write under a name its holder, if the records name another one,
/// is asked: alive means [`DirectoryError::NameTaken`], refused or another life means that the name is taken over,
/// silence waits for the holder's lease where the store has leases. Afterwards each write compares; one that finds
/// another engine's record ends [`DirectoryError::NameLost`] for good, and nothing of the other is overwritten or
/// deleted.
///
/// **Leases.** With [`with_lease`](Self::with_lease) and a store that has them, records vanish that long after the last
/// [`keep`](Directory::keep). A store that came back empty is noticed by the same call.
#[derive(Clone)]
pub struct StoreDirectory<S> {
    store: S,
    info: StoreInfo,
    keys: Keys,
    compat: Option<CompatProtocol>,
    /// How long records are to outlive their engine.
    wish: Option<Duration>,
    /// The same, where the store sees to it.
    lease: Option<Duration>,
    probe: Option<Arc<dyn HolderProbe>>,
    holding: Holding,
}

impl<S> std::fmt::Debug for StoreDirectory<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreDirectory")
            .field("scheme", &self.info.scheme)
            .field("lease", &self.lease)
            .finish()
    }
}

impl<S: MetadataStore> StoreDirectory<S> {
    /// A directory over `store` for the deployment of `keys`.
    pub fn new(store: S, keys: Keys) -> Self {
        let (info, holding) = (store.info(), Holding::default());
        Self { info, store, keys, compat: None, wish: None, lease: None, probe: None, holding }
    }

    /// Publishes records for reference engines that use this transport. Without it: RDMA if the descriptor names a
    /// NIC, else TCP, which is what a reference engine on the same host would publish.
    pub fn with_compat(self, compat: CompatProtocol) -> Self {
        Self { compat: Some(compat), ..self }
    }

    /// Publishes under leases of this length. A store without leases is told as well: it may clean up when it is
    /// closed.
    pub fn with_lease(self, lease: Duration) -> Self {
        Self { wish: Some(lease), lease: Some(lease).filter(|_| self.info.leases), ..self }
    }

    /// Asks holders of names through this. Without it no other holder is found dead, and
    /// its name is left to it.
    pub fn with_probe(self, probe: Arc<dyn HolderProbe>) -> Self {
        Self { probe: Some(probe), ..self }
    }

    /// How long records outlive the last [`keep`](Directory::keep); `None` if for ever.
    pub fn lease(&self) -> Option<Duration> {
        self.lease
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    fn text(&self, mut value: String) -> Result<String, DirectoryError> {
        if self.info.trailing_newline {
            value.push('\n');
        }
        match self.info.max_value {
            Some(limit) if value.len() > limit => {
                Err(DirectoryError::TooLarge { size: value.len(), limit, store: self.info.scheme.to_owned() })
            }
            _ => Ok(value),
        }
    }

    fn descriptor_text(&self, descriptor: &SegmentDescriptor) -> Result<String, DirectoryError> {
        let natural =
            if descriptor.devices().is_empty() { CompatProtocol::Tcp } else { CompatProtocol::Rdma };
        let options = EncodeOptions {
            compat: self.compat.unwrap_or(natural),
            extension: true,
            timestamp: format_timestamp(SystemTime::now()),
        };
        let text = descriptor.encode(&options).map_err(|error| self.invalid(descriptor.name(), &error))?;
        self.text(text)
    }

    fn invalid(&self, name: &SegmentName, error: &DescriptorError) -> DirectoryError {
        DirectoryError::InvalidDescriptor {
            name: name.clone(),
            from: self.info.scheme.to_owned(),
            field: error.field().unwrap_or_default().to_owned(),
            reason: error.to_string(),
        }
    }

    async fn read(
        &self,
        operation: DirectoryOperation,
        name: &SegmentName,
        key: &Key,
        deadline: Instant,
    ) -> Result<Option<String>, DirectoryError> {
        let found = self.store.get(key, deadline).await;
        let found = found.map_err(|error| DirectoryError::from_store(operation, name.as_str(), error))?;
        Ok(found.map(|entry| entry.value))
    }

    async fn location(
        &self,
        operation: DirectoryOperation,
        name: &SegmentName,
        deadline: Instant,
    ) -> Result<Option<Endpoint>, DirectoryError> {
        let key = self.keys.rpc_meta(name);
        let Some(text) = self.read(operation, name, &key, deadline).await? else { return Ok(None) };
        let location = RpcLocation::decode(text.as_bytes()).map_err(|error| {
            DirectoryError::InvalidLocation { name: name.clone(), reason: error.to_string() }
        })?;
        Ok(Some(location.endpoint()))
    }

    /// Where the data port is: the host of the record alone decides if there is one, never a second try.
    async fn tcp_endpoint(
        &self,
        name: &SegmentName,
        service: Option<&TcpService>,
        deadline: Instant,
    ) -> Result<Option<Endpoint>, DirectoryError> {
        let Some(service) = service else { return Ok(None) };
        let host = match &service.host {
            Some(host) => host.clone(),
            None => {
                let found = self.location(DirectoryOperation::Resolve, name, deadline).await?;
                let missing = || DirectoryError::NoLocation {
                    name: name.clone(),
                    needed_by: "its descriptor has a tcp data port without a host",
                };
                found.ok_or_else(missing)?.host().clone()
            }
        };
        // A service's port is never zero, so this is always an endpoint.
        Ok(Endpoint::new(host, service.port.get()).ok())
    }
}

impl<S: MetadataStore> Directory for StoreDirectory<S> {
    fn scheme(&self) -> &str {
        self.info.scheme
    }

    fn max_value(&self) -> Option<usize> {
        self.info.max_value
    }

    fn name_rule(&self) -> NameRule {
        NameRule::Any
    }

    fn publish(
        &self,
        descriptor: Arc<SegmentDescriptor>,
        location: RpcLocation,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<(), DirectoryError>> {
        Box::pin(async move { self.publish_both(&descriptor, &location, deadline).await })
    }

    fn withdraw<'a>(
        &'a self,
        name: &'a SegmentName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<(), DirectoryError>> {
        Box::pin(self.withdraw_both(name, deadline))
    }

    fn close(&self, deadline: Instant) -> BoxFuture<'_, Result<(), DirectoryError>> {
        Box::pin(async move {
            let scheme = self.info.scheme;
            let failed = |error| DirectoryError::from_store(DirectoryOperation::Withdraw, scheme, error);
            self.store.close(deadline).await.map_err(failed)
        })
    }

    fn keep(&self, deadline: Instant) -> BoxFuture<'_, Result<Kept, DirectoryError>> {
        Box::pin(self.keep_both(deadline))
    }

    fn keep_interval(&self) -> Option<Duration> {
        Some(self.lease.map_or(LOOK_AFTER, |lease| lease / 3))
    }

    fn claim_patience(&self) -> Duration {
        // Somebody else's lease may be longer than ours, but not by default.
        self.lease.unwrap_or_default()
    }

    fn resolve<'a>(
        &'a self,
        name: &'a SegmentName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Resolved, DirectoryError>> {
        Box::pin(async move {
            let key = self.keys.segment(name);
            let found = self.read(DirectoryOperation::Resolve, name, &key, deadline).await?;
            let text = found.ok_or_else(|| DirectoryError::NotFound { name: name.clone() })?;
            // A record that states no name has the one it was opened by, as for the reference engine.
            let options = DecodeOptions { opened_as: Some(name.clone()), ..DecodeOptions::default() };
            let decoded = SegmentDescriptor::decode_with(text.as_bytes(), &options)
                .map_err(|error| self.invalid(name, &error))?;
            let tcp = self.tcp_endpoint(name, decoded.descriptor.tcp(), deadline).await?;
            let source = Source::Store { scheme: self.info.scheme };
            Ok(Resolved { descriptor: decoded.descriptor, rejected: decoded.rejected, tcp, source })
        })
    }

    fn locate<'a>(
        &'a self,
        name: &'a SegmentName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Endpoint, DirectoryError>> {
        Box::pin(async move {
            let found = self.location(DirectoryOperation::Locate, name, deadline).await?;
            found.ok_or_else(|| DirectoryError::NoLocation {
                name: name.clone(),
                needed_by: "it was asked for",
            })
        })
    }

    fn watch(&self, deadline: Instant) -> BoxFuture<'_, Result<Option<DirectoryWatch>, DirectoryError>> {
        Box::pin(async move {
            if !self.info.watch {
                return Ok(None);
            }
            let scheme = self.info.scheme;
            let failed = |error| DirectoryError::from_store(DirectoryOperation::Watch, scheme, error);
            let stream = self.store.watch(&self.keys.prefix(), deadline).await.map_err(failed)?;
            Ok(Some(DirectoryWatch::new(stream, self.keys.clone(), scheme)))
        })
    }
}
