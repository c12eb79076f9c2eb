//! What the engine asks for segments: the same questions whether a store or the peer itself answers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use te_segment::{Endpoint, RejectedBuffer, SegmentDescriptor, SegmentName, wire::RpcLocation};

use crate::{
    error::{DirectoryError, DirectoryOperation},
    key::{KeySubject, Keys},
    store::BoxFuture,
    watch::{WatchEvent, WatchStream},
};

/// Which names a directory takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameRule {
    /// Any [`SegmentName`].
    Any,
    /// Only `host:port`, an IPv6 host in brackets: the name is the address.
    HostPort,
}

impl NameRule {
    const HOST_PORT: &'static str = "the form host:port";

    /// Checks a name against the rule.
    ///
    /// # Errors
    /// [`DirectoryError::NameInvalid`].
    pub fn check(self, name: &SegmentName) -> Result<(), DirectoryError> {
        match self {
            Self::Any => Ok(()),
            Self::HostPort => Self::endpoint(name).map(drop),
        }
    }

    /// The endpoint that a `host:port` name is.
    ///
    /// # Errors
    /// [`DirectoryError::NameInvalid`] if the name is no `host:port`.
    pub fn endpoint(name: &SegmentName) -> Result<Endpoint, DirectoryError> {
        name.as_str().parse().map_err(|error: te_segment::EndpointError| DirectoryError::NameInvalid {
            name: name.as_str().to_owned(),
            rule: Self::HOST_PORT,
            reason: error.to_string(),
        })
    }
}

/// Who gave a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// A metadata store, which may lag behind the owner.
    Store {
        /// The store's scheme.
        scheme: &'static str,
    },
    /// The owner itself, at this address.
    Owner {
        /// Its RPC endpoint.
        address: Endpoint,
    },
}

/// A name, resolved.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Resolved {
    /// The descriptor.
    pub descriptor: SegmentDescriptor,
    /// Buffers of the record that no engine could use, with the reason.
    pub rejected: Vec<RejectedBuffer>,
    /// Where the TCP data port is reached, if the segment has one: the host in the descriptor alone, else the host
    /// of the RPC location of the opened name (reference engine, wire spec).
    pub tcp: Option<Endpoint>,
    /// Who gave it.
    pub source: Source,
}

impl Resolved {
    /// A descriptor without rejected buffers and TCP endpoint.
    pub fn new(descriptor: SegmentDescriptor, source: Source) -> Self {
        Self { descriptor, rejected: Vec::new(), tcp: None, source }
    }
}

/// A change of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DirectoryEvent {
    /// The descriptor of this segment was written.
    Changed(SegmentName),
    /// The descriptor of this segment was deleted, or its lease ended: the directory's own statement.
    Removed(SegmentName),
    /// Changes were lost: everything that is kept has to be read again.
    Resync,
}

/// The changes of a directory, in order. Dropping it ends the watch.
#[derive(Debug)]
pub struct DirectoryWatch {
    stream: WatchStream,
    keys: Keys,
    scheme: &'static str,
}

impl DirectoryWatch {
    /// Reads the changes of segments out of the changes of a store.
    pub fn new(stream: WatchStream, keys: Keys, scheme: &'static str) -> Self {
        Self { stream, keys, scheme }
    }

    /// Waits for the next change; `None` when the watch has ended. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The watch broke; that says nothing about any segment.
    pub async fn next(&mut self) -> Option<Result<DirectoryEvent, DirectoryError>> {
        loop {
            let event = match self.stream.next().await? {
                Ok(event) => event,
                Err(error) => {
                    let operation = DirectoryOperation::Watch;
                    return Some(Err(DirectoryError::from_store(operation, self.scheme, error)));
                }
            };
            let (key, removed) = match event {
                WatchEvent::Put { key, .. } => (key, false),
                WatchEvent::Delete { key, .. } => (key, true),
                WatchEvent::Resync => return Some(Ok(DirectoryEvent::Resync)),
            };
            match self.keys.subject(key.as_str()) {
                Some(KeySubject::Segment(name)) if removed => return Some(Ok(DirectoryEvent::Removed(name))),
                Some(KeySubject::Segment(name)) => return Some(Ok(DirectoryEvent::Changed(name))),
                Some(KeySubject::RpcMeta(_)) | None => {}
            }
        }
    }
}

/// What became of what is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kept {
    /// It is there, its lease renewed.
    Kept,
    /// It is gone, for example because the store came back empty: publish again.
    Missing,
}

/// Publishes the descriptor of this engine and finds those of others.
///
/// Every call ends by its `deadline`. [`DirectoryError::NotFound`] is only ever the directory's own statement; an
/// outage is [`Unavailable`](DirectoryError::Unavailable) or [`DeadlineExceeded`](DirectoryError::DeadlineExceeded).
pub trait Directory: Send + Sync {
    /// The scheme of the URL it is configured with, such as `etcd` or `p2p`.
    fn scheme(&self) -> &str;

    /// Largest record it takes, in bytes; `None` if it states no limit.
    fn max_value(&self) -> Option<usize>;

    /// Which names it takes.
    fn name_rule(&self) -> NameRule;

    /// Makes the descriptor findable under its name, replacing the one before, and the RPC location with it.
    /// Whatever the descriptor and the location name must be listening already.
    fn publish(
        &self,
        descriptor: Arc<SegmentDescriptor>,
        location: RpcLocation,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<(), DirectoryError>>;

    /// Takes a name out: its RPC location first, then its descriptor. A name that is not there is no error.
    fn withdraw<'a>(
        &'a self,
        name: &'a SegmentName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<(), DirectoryError>>;

    /// Takes out whatever else was published through this directory and would outlive the engine. To be called once,
    /// after [`withdraw`](Self::withdraw).
    fn close(&self, deadline: Instant) -> BoxFuture<'_, Result<(), DirectoryError>> {
        let _ = deadline;
        Box::pin(std::future::ready(Ok(())))
    }

    /// The descriptor published under a name.
    fn resolve<'a>(
        &'a self,
        name: &'a SegmentName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Resolved, DirectoryError>>;

    /// The RPC endpoint of the engine with this name.
    fn locate<'a>(
        &'a self,
        name: &'a SegmentName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Endpoint, DirectoryError>>;

    /// Keeps what is published alive: renews its lease, or looks whether it is still there. To be called every
    /// [`keep_interval`](Self::keep_interval).
    ///
    /// # Errors
    /// [`DirectoryError::NameLost`] for good; an outage says nothing about what is published.
    fn keep(&self, deadline: Instant) -> BoxFuture<'_, Result<Kept, DirectoryError>> {
        let _ = deadline;
        Box::pin(std::future::ready(Ok(Kept::Kept)))
    }

    /// How often [`keep`](Self::keep) is to be called, often enough to survive two failures in a row; `None` if never.
    fn keep_interval(&self) -> Option<Duration> {
        None
    }

    /// How long a [`publish`](Self::publish) may have to wait for a silent holder of the name.
    fn claim_patience(&self) -> Duration {
        Duration::ZERO
    }

    /// The changes from now on, or `None` if this directory has no way to tell.
    fn watch(&self, deadline: Instant) -> BoxFuture<'_, Result<Option<DirectoryWatch>, DirectoryError>> {
        let _ = deadline;
        Box::pin(std::future::ready(Ok(None)))
    }
}

impl<D: Directory + ?Sized> Directory for Arc<D> {
    fn scheme(&self) -> &str {
        (**self).scheme()
    }

    fn max_value(&self) -> Option<usize> {
        (**self).max_value()
    }

    fn name_rule(&self) -> NameRule {
        (**self).name_rule()
    }

    fn publish(
        &self,
        descriptor: Arc<SegmentDescriptor>,
        location: RpcLocation,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<(), DirectoryError>> {
        (**self).publish(descriptor, location, deadline)
    }

    fn withdraw<'a>(
        &'a self,
        name: &'a SegmentName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<(), DirectoryError>> {
        (**self).withdraw(name, deadline)
    }

    fn resolve<'a>(
        &'a self,
        name: &'a SegmentName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Resolved, DirectoryError>> {
        (**self).resolve(name, deadline)
    }

    fn locate<'a>(
        &'a self,
        name: &'a SegmentName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Endpoint, DirectoryError>> {
        (**self).locate(name, deadline)
    }

    fn close(&self, deadline: Instant) -> BoxFuture<'_, Result<(), DirectoryError>> {
        (**self).close(deadline)
    }

    fn keep(&self, deadline: Instant) -> BoxFuture<'_, Result<Kept, DirectoryError>> {
        (**self).keep(deadline)
    }

    fn keep_interval(&self) -> Option<Duration> {
        (**self).keep_interval()
    }

    fn claim_patience(&self) -> Duration {
        (**self).claim_patience()
    }

    fn watch(&self, deadline: Instant) -> BoxFuture<'_, Result<Option<DirectoryWatch>, DirectoryError>> {
        (**self).watch(deadline)
    }
}
