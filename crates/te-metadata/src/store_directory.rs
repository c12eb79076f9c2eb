//! The directory over a metadata store.

use std::{
    sync::Arc,
    time::{Instant, SystemTime},
};

use te_segment::{
    CompatProtocol, DecodeOptions, DescriptorError, EncodeOptions, Endpoint, SegmentDescriptor, SegmentName,
    TcpService, wire::RpcLocation,
};

use crate::{
    directory::{Directory, DirectoryWatch, NameRule, Resolved, Source},
    error::{DirectoryError, DirectoryOperation, StoreErrorKind},
    key::{Key, Keys},
    store::{BoxFuture, MetadataStore, PutRequest, StoreInfo},
    timestamp::format_timestamp,
};

/// Publishes to a [`MetadataStore`] and resolves from it, with the keys and values of the reference engine.
///
/// Two records per name: the descriptor, and the RPC location of its engine. The location is written first and
/// deleted first, so that a descriptor written by us is found together with its location, and a name that is being
/// withdrawn stops being contacted before it stops being found. Neither carries a lease here.
///
/// Writes are unconditional: who holds a name is decided before, by whoever calls. Only where the store itself
/// refuses to overwrite, [`publish`](Directory::publish) ends [`DirectoryError::NameTaken`], unless the record there
/// already says the same (META-03).
#[derive(Clone, Debug)]
pub struct StoreDirectory<S> {
    store: S,
    info: StoreInfo,
    keys: Keys,
    compat: Option<CompatProtocol>,
}

impl<S: MetadataStore> StoreDirectory<S> {
    /// A directory over `store` for the deployment of `keys`.
    pub fn new(store: S, keys: Keys) -> Self {
        Self { info: store.info(), store, keys, compat: None }
    }

    /// Publishes records for reference engines that use this transport. Without it: RDMA if the descriptor names a
    /// NIC, else TCP, which is what a reference engine on the same host would publish.
    pub fn with_compat(self, compat: CompatProtocol) -> Self {
        Self { compat: Some(compat), ..self }
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

    async fn write(&self, name: &SegmentName, request: PutRequest, deadline: Instant) -> Written {
        match self.store.put(request, deadline).await {
            Ok(_) => Written::Done,
            Err(error) if matches!(error.kind, StoreErrorKind::Conflict { .. }) => Written::Refused,
            Err(error) => {
                Written::Failed(DirectoryError::from_store(DirectoryOperation::Publish, name.as_str(), error))
            }
        }
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

    async fn publish_both(
        &self,
        descriptor: &SegmentDescriptor,
        location: RpcLocation,
        deadline: Instant,
    ) -> Result<(), DirectoryError> {
        let name = descriptor.name();
        // Both are checked before either is sent.
        let record = self.descriptor_text(descriptor)?;
        let place = self.text(location.encode())?;

        match self.write(name, PutRequest::new(self.keys.rpc_meta(name), place), deadline).await {
            Written::Done => {}
            Written::Failed(error) => return Err(error),
            // Some servers refuse to overwrite this key, even with what it holds already.
            Written::Refused => {
                let holder = self.location(DirectoryOperation::Publish, name, deadline).await?;
                if holder.as_ref() != Some(&location.endpoint()) {
                    return Err(DirectoryError::NameTaken { name: name.clone(), holder });
                }
            }
        }
        match self.write(name, PutRequest::new(self.keys.segment(name), record), deadline).await {
            Written::Done => Ok(()),
            Written::Failed(error) => Err(error),
            Written::Refused => Err(DirectoryError::NameTaken { name: name.clone(), holder: None }),
        }
    }
}

enum Written {
    Done,
    Refused,
    Failed(DirectoryError),
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
        Box::pin(async move { self.publish_both(&descriptor, location, deadline).await })
    }

    fn withdraw<'a>(
        &'a self,
        name: &'a SegmentName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<(), DirectoryError>> {
        Box::pin(async move {
            let failed =
                |error| DirectoryError::from_store(DirectoryOperation::Withdraw, name.as_str(), error);
            let location = self.store.delete(&self.keys.rpc_meta(name), None, deadline).await;
            // Tried even if the first failed: each record left behind misleads somebody.
            let record = self.store.delete(&self.keys.segment(name), None, deadline).await;
            location.and(record).map(drop).map_err(failed)
        })
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
