//! Ways in which a directory can break the contract.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use te_metadata::{
    BoxFuture, Directory, DirectoryError, DirectoryEvent, DirectoryOperation, DirectoryWatch, Key, Keys,
    NameRule, Resolved, StoreError, WatchEvent, WatchSource, WatchStream,
};
use te_segment::wire::RpcLocation;
use te_segment::{Endpoint, SegmentDescriptor, SegmentName};

use crate::transport::redescribe_buffers;

macro_rules! flaws {
    ($($(#[$doc:meta])* $flaw:ident,)*) => {
        /// One way to break the contract of directories, see [`FlawedDirectory`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum DirectoryFlaw {
            $($(#[$doc])* $flaw,)*
        }

        impl DirectoryFlaw {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$flaw,)*];
        }
    };
}

flaws! {
    /// Gives the descriptor that it found first for ever.
    CachesForEver,
    /// Does not resolve the TCP data port.
    OmitsTcp,
    /// Loses a buffer of large descriptors.
    LosesBuffers,
    /// Locates engines one port beside.
    MislocatesEngines,
    /// Takes a missing name for an outage.
    AbsenceIsOutage,
    /// Publishes the first descriptor only.
    PublishesOnce,
    /// Withdraws nothing.
    KeepsWithdrawn,
    /// Fails the second withdrawal.
    WithdrawsOnce,
    /// Takes upper and lower case for the same.
    FoldsCase,
    /// Says that names are addresses and asks for any.
    TakesAnyName,
    /// Withdraws the name when its record is too large.
    DropsOversized,
    /// Does not look at deadlines.
    IgnoresDeadline,
    /// Gives the record that was published last, whoever's it is.
    MixesEngines,
    /// Does not tell of withdrawals.
    HidesRemovals,
}

/// A directory that breaks one promise of the contract, around one that keeps them. It shows that the conformance suite
/// notices.
pub struct FlawedDirectory {
    inner: Arc<dyn Directory>,
    flaw: DirectoryFlaw,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    found: HashMap<SegmentName, SegmentDescriptor>,
    published: Vec<SegmentName>,
    withdrawn: Vec<SegmentName>,
    last: Option<Arc<SegmentDescriptor>>,
}

impl FlawedDirectory {
    /// `inner`, with a flaw.
    pub fn new(inner: impl Directory + 'static, flaw: DirectoryFlaw) -> Self {
        Self { inner: Arc::new(inner), flaw, memory: Mutex::default() }
    }

    fn has(&self, flaw: DirectoryFlaw) -> bool {
        self.flaw == flaw
    }

    fn misread(&self, name: &SegmentName) -> SegmentName {
        let folded = SegmentName::new(&name.as_str().to_lowercase()).ok();
        folded.filter(|_| self.has(DirectoryFlaw::FoldsCase)).unwrap_or_else(|| name.clone())
    }

    fn deadline(&self, deadline: Instant) -> Instant {
        let late = Instant::now() + Duration::from_secs(60);
        if self.has(DirectoryFlaw::IgnoresDeadline) { late } else { deadline }
    }

    fn spoil(&self, mut resolved: Resolved) -> Resolved {
        let mut memory = self.memory.lock();
        let original = resolved.descriptor.clone();
        match self.flaw {
            DirectoryFlaw::OmitsTcp => resolved.tcp = None,
            DirectoryFlaw::CachesForEver => {
                resolved.descriptor = memory.found.entry(original.name().clone()).or_insert(original).clone();
            }
            DirectoryFlaw::LosesBuffers if original.buffers().len() > 50 => {
                let fewer = original.buffers().iter().skip(1).cloned().collect();
                resolved.descriptor =
                    redescribe_buffers(&original, fewer, |builder| builder).unwrap_or(original);
            }
            DirectoryFlaw::MixesEngines => {
                if let Some(last) = &memory.last {
                    resolved.descriptor = (**last).clone();
                }
            }
            _ => {}
        }
        resolved
    }
}

/// The same descriptor of another segment.
fn rename(descriptor: &SegmentDescriptor, name: SegmentName) -> Option<SegmentDescriptor> {
    let builder = SegmentDescriptor::builder(name)
        .identity(descriptor.identity().clone())
        .buffers(descriptor.buffers().iter().cloned());
    let tcp = descriptor.tcp().cloned();
    tcp.into_iter().fold(builder, |builder, tcp| builder.tcp(tcp)).build().ok()
}

impl Directory for FlawedDirectory {
    fn scheme(&self) -> &str {
        self.inner.scheme()
    }

    fn max_value(&self) -> Option<usize> {
        self.inner.max_value()
    }

    fn name_rule(&self) -> NameRule {
        if self.has(DirectoryFlaw::TakesAnyName) { NameRule::HostPort } else { self.inner.name_rule() }
    }

    fn publish(
        &self,
        descriptor: Arc<SegmentDescriptor>,
        location: RpcLocation,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<(), DirectoryError>> {
        Box::pin(async move {
            let name = self.misread(descriptor.name());
            let again = {
                let mut memory = self.memory.lock();
                memory.last = Some(descriptor.clone());
                let again = memory.published.contains(&name);
                memory.published.push(name.clone());
                again
            };
            if again && self.has(DirectoryFlaw::PublishesOnce) {
                return Ok(());
            }
            let descriptor = if name == *descriptor.name() {
                descriptor
            } else {
                rename(&descriptor, name.clone()).map_or(descriptor, Arc::new)
            };
            let outcome = self.inner.publish(descriptor, location, deadline).await;
            if outcome.is_err() && self.has(DirectoryFlaw::DropsOversized) {
                self.inner.withdraw(&name, deadline).await?;
            }
            outcome
        })
    }

    fn withdraw<'a>(
        &'a self,
        name: &'a SegmentName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<(), DirectoryError>> {
        Box::pin(async move {
            let again = {
                let mut memory = self.memory.lock();
                let again = memory.withdrawn.contains(name);
                memory.withdrawn.push(name.clone());
                again
            };
            if self.has(DirectoryFlaw::KeepsWithdrawn) {
                return Ok(());
            }
            if again && self.has(DirectoryFlaw::WithdrawsOnce) {
                return Err(DirectoryError::NotFound { name: name.clone() });
            }
            self.inner.withdraw(&self.misread(name), deadline).await
        })
    }

    fn resolve<'a>(
        &'a self,
        name: &'a SegmentName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Resolved, DirectoryError>> {
        Box::pin(async move {
            if !self.has(DirectoryFlaw::TakesAnyName) {
                self.name_rule().check(name)?;
            }
            match self.inner.resolve(&self.misread(name), self.deadline(deadline)).await {
                Err(DirectoryError::NotFound { .. }) if self.has(DirectoryFlaw::AbsenceIsOutage) => {
                    Err(DirectoryError::Unavailable {
                        operation: DirectoryOperation::Resolve,
                        name: name.to_string(),
                        from: self.scheme().to_owned(),
                        detail: "404".to_owned(),
                    })
                }
                resolved => resolved.map(|resolved| self.spoil(resolved)),
            }
        })
    }

    fn locate<'a>(
        &'a self,
        name: &'a SegmentName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Endpoint, DirectoryError>> {
        Box::pin(async move {
            if !self.has(DirectoryFlaw::TakesAnyName) {
                self.name_rule().check(name)?;
            }
            let found = self.inner.locate(&self.misread(name), self.deadline(deadline)).await?;
            let beside = Endpoint::new(found.host().clone(), found.port() ^ 1).ok();
            Ok(beside.filter(|_| self.has(DirectoryFlaw::MislocatesEngines)).unwrap_or(found))
        })
    }

    fn watch(&self, deadline: Instant) -> BoxFuture<'_, Result<Option<DirectoryWatch>, DirectoryError>> {
        Box::pin(async move {
            let inner = self.inner.watch(deadline).await?;
            if !self.has(DirectoryFlaw::HidesRemovals) {
                return Ok(inner);
            }
            let keys = Keys::default();
            let quiet = |inner| WatchStream::new(Quiet { inner, keys: keys.clone() });
            Ok(inner.map(|inner| DirectoryWatch::new(quiet(inner), Keys::default(), "flawed")))
        })
    }
}

/// Turns the events of a directory back into those of a store, without the removals.
struct Quiet {
    inner: DirectoryWatch,
    keys: Keys,
}

impl WatchSource for Quiet {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<WatchEvent, StoreError>>> {
        Box::pin(async move {
            loop {
                if let Ok(DirectoryEvent::Changed(name)) = self.inner.next().await? {
                    let key: Key = self.keys.segment(&name);
                    let entry = te_metadata::Entry { value: String::new(), revision: 0 };
                    return Some(Ok(WatchEvent::Put { key, entry }));
                }
            }
        })
    }
}
