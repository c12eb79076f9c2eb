//! The side that asks.

use std::{sync::Arc, time::Instant};

use te_metadata::{BoxFuture, Directory, DirectoryError, DirectoryOperation, NameRule, Resolved, Source};
use te_rpc::{FrameKind, Retry, RpcClient, RpcError, frame::MAX_FRAME};
use te_segment::{
    DecodeOptions, DescriptorError, Endpoint, SegmentDescriptor, SegmentName, wire::RpcLocation,
};

use crate::own::OwnDescriptor;

/// Largest answer a te peer takes, in bytes: a whole frame without its kind byte.
const MAX_ANSWER: usize = MAX_FRAME - 1;

/// A directory whose names are addresses and whose answers come from the owners.
///
/// [`resolve`](Directory::resolve) asks the peer, each time; there is nothing in between that could be stale.
/// [`locate`](Directory::locate) reads the name and asks nobody. There is no watch.
pub struct P2pDirectory {
    client: RpcClient,
    request_body: Box<dyn Fn() -> String + Send + Sync>,
    own: Option<OwnDescriptor>,
}

impl std::fmt::Debug for P2pDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("P2pDirectory").field("client", &self.client).field("own", &self.own).finish()
    }
}

impl P2pDirectory {
    /// The scheme of this directory's URL.
    pub const SCHEME: &'static str = "p2p";

    /// A directory that sends what `own` returns with each request: the own descriptor, without buffers and with the
    /// extension member. Whoever calls this serves the own descriptor too; [`publish`](Directory::publish) then only
    /// checks it.
    pub fn new(client: RpcClient, own: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self { client, request_body: Box::new(own), own: None }
    }

    /// A directory that publishes into `own`, from which an [`exchange_handler`](crate::exchange_handler) answers.
    pub fn serving(client: RpcClient, own: OwnDescriptor) -> Self {
        let shared = own.clone();
        Self { client, request_body: Box::new(move || shared.request_body()), own: Some(own) }
    }

    async fn exchange(&self, name: &SegmentName, deadline: Instant) -> Result<Resolved, DirectoryError> {
        let address = NameRule::endpoint(name)?;
        let mut body = (self.request_body)();
        if !body.ends_with('\n') {
            body.push('\n');
        }
        let answer = self.client.call(&address, FrameKind::Metadata, body.as_bytes(), deadline).await;
        let answer = answer.map_err(|error| no_answer(name, &address, &error, deadline))?;
        let options = DecodeOptions { opened_as: Some(name.clone()), ..DecodeOptions::default() };
        let decoded = SegmentDescriptor::decode_with(&answer, &options).map_err(|error| match error {
            DescriptorError::Null => DirectoryError::NotAP2pPeer { address: address.clone() },
            error => invalid(name, address.to_string(), &error),
        })?;
        // The peer's own word on its data host, else the host it was asked at.
        let tcp = decoded.descriptor.tcp().and_then(|service| {
            let host = service.host.as_ref().unwrap_or_else(|| address.host());
            Endpoint::new(host.clone(), service.port.get()).ok()
        });
        let mut resolved = Resolved::new(decoded.descriptor, Source::Owner { address });
        resolved.rejected = decoded.rejected;
        resolved.tcp = tcp;
        Ok(resolved)
    }

    fn accept(&self, descriptor: Arc<SegmentDescriptor>) -> Result<(), DirectoryError> {
        self.name_rule().check(descriptor.name())?;
        let Some(own) = &self.own else { return Ok(()) };
        let size = own
            .encoded_len(&descriptor)
            .map_err(|error| invalid(descriptor.name(), "this engine".to_owned(), &error))?;
        if size > MAX_ANSWER {
            return Err(DirectoryError::TooLarge { size, limit: MAX_ANSWER, store: Self::SCHEME.to_owned() });
        }
        own.publish(descriptor);
        Ok(())
    }
}

fn invalid(name: &SegmentName, from: String, error: &DescriptorError) -> DirectoryError {
    DirectoryError::InvalidDescriptor {
        name: name.clone(),
        from,
        field: error.field().unwrap_or_default().to_owned(),
        reason: error.to_string(),
    }
}

fn no_answer(name: &SegmentName, address: &Endpoint, error: &RpcError, deadline: Instant) -> DirectoryError {
    if error.is_refused() {
        return DirectoryError::Refused { name: name.clone(), address: address.clone() };
    }
    let (operation, from) = (DirectoryOperation::Resolve, address.to_string());
    let name = name.as_str().to_owned();
    if error.is_silence() && Instant::now() >= deadline {
        return DirectoryError::DeadlineExceeded { operation, name, from };
    }
    let detail = error.to_string();
    match error.retry() {
        Retry::CanHelp => DirectoryError::Unavailable { operation, name, from, detail },
        Retry::Pointless => DirectoryError::InvalidAnswer { operation, name, from, detail },
    }
}

impl Directory for P2pDirectory {
    fn scheme(&self) -> &str {
        Self::SCHEME
    }

    fn max_value(&self) -> Option<usize> {
        Some(MAX_ANSWER)
    }

    fn name_rule(&self) -> NameRule {
        NameRule::HostPort
    }

    /// Local: peers are answered with the descriptor from now on. The location is the name and is not looked at.
    fn publish(
        &self,
        descriptor: Arc<SegmentDescriptor>,
        _location: RpcLocation,
        _deadline: Instant,
    ) -> BoxFuture<'_, Result<(), DirectoryError>> {
        Box::pin(async move { self.accept(descriptor) })
    }

    /// Local: peers are answered with `null` from now on.
    fn withdraw<'a>(
        &'a self,
        name: &'a SegmentName,
        _deadline: Instant,
    ) -> BoxFuture<'a, Result<(), DirectoryError>> {
        Box::pin(async move {
            if let Some(own) = &self.own {
                own.withdraw(name);
            }
            Ok(())
        })
    }

    fn resolve<'a>(
        &'a self,
        name: &'a SegmentName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Resolved, DirectoryError>> {
        Box::pin(async move {
            // Said here: a quick peer may answer before a deadline that is over is looked at.
            if Instant::now() >= deadline {
                let operation = DirectoryOperation::Resolve;
                let (name, from) = (name.as_str().to_owned(), name.as_str().to_owned());
                return Err(DirectoryError::DeadlineExceeded { operation, name, from });
            }
            self.exchange(name, deadline).await
        })
    }

    fn locate<'a>(
        &'a self,
        name: &'a SegmentName,
        _deadline: Instant,
    ) -> BoxFuture<'a, Result<Endpoint, DirectoryError>> {
        Box::pin(async move { NameRule::endpoint(name) })
    }
}
