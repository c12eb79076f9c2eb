//! Errors of stores and directories.

use std::fmt;

use te_segment::{Endpoint, SegmentName};

/// Which call of a store failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreOperation {
    /// Reading a key.
    Get,
    /// Writing a key.
    Put,
    /// Deleting a key.
    Delete,
    /// Renewing a lease.
    Renew,
    /// Listing a prefix.
    List,
    /// Starting or continuing a watch.
    Watch,
}

impl fmt::Display for StoreOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Delete => "delete",
            Self::Renew => "renew",
            Self::List => "list",
            Self::Watch => "watch",
        })
    }
}

/// Why a call of a store failed. A missing key is not among the reasons.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// Nobody answered, or the connection broke.
    #[error("store is unavailable: {detail}")]
    Unavailable {
        /// What happened, with the address tried.
        detail: String,
    },
    /// The deadline passed first. A write may still take effect.
    #[error("deadline exceeded")]
    DeadlineExceeded,
    /// The condition of a put or delete does not hold; nothing was changed.
    #[error("condition does not hold, the key is {}", match current { Some(r) => format!("at revision {r}"), None => "absent or of unknown revision".to_owned() })]
    Conflict {
        /// The revision found, if the store says it.
        current: Option<u64>,
    },
    /// The value is larger than the store takes.
    #[error("value of {size} bytes is over the limit of {limit} bytes of store {store}")]
    TooLarge {
        /// Size of the value in bytes.
        size: usize,
        /// The store's limit in bytes.
        limit: usize,
        /// The store's scheme.
        store: &'static str,
    },
    /// The store refuses us the key.
    #[error("store denies access: {detail}")]
    Denied {
        /// The store's words.
        detail: String,
    },
    /// The store answered something that is no answer.
    #[error("store answered nonsense: {detail}")]
    Invalid {
        /// What is wrong with it.
        detail: String,
    },
    /// The store has no such ability; [`StoreInfo`](crate::StoreInfo) says so beforehand.
    #[error("store has no {ability}")]
    Unsupported {
        /// What was asked for.
        ability: &'static str,
    },
}

/// A failed call of a store: which call, on which key, why, and whether it can be repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation} of {key:?} in {scheme} failed: {kind}")]
#[non_exhaustive]
pub struct StoreError {
    /// The store's scheme.
    pub scheme: &'static str,
    /// The call.
    pub operation: StoreOperation,
    /// The key or prefix.
    pub key: String,
    /// The reason.
    pub kind: StoreErrorKind,
}

impl StoreError {
    /// An error of `operation` on `key`.
    pub fn new(
        scheme: &'static str,
        operation: StoreOperation,
        key: impl Into<String>,
        kind: StoreErrorKind,
    ) -> Self {
        Self { scheme, operation, key: key.into(), kind }
    }

    /// Whether the same call can succeed later without anybody changing it.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Unavailable { .. } | StoreErrorKind::DeadlineExceeded)
    }
}

/// Which call of a directory failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DirectoryOperation {
    /// Publishing a descriptor.
    Publish,
    /// Withdrawing a descriptor.
    Withdraw,
    /// Resolving a name to a descriptor.
    Resolve,
    /// Resolving a name to an RPC endpoint.
    Locate,
    /// Watching for changes.
    Watch,
}

impl fmt::Display for DirectoryOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Publish => "publish",
            Self::Withdraw => "withdraw",
            Self::Resolve => "resolve",
            Self::Locate => "locate",
            Self::Watch => "watch",
        })
    }
}

/// Why a call of a directory failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// The directory itself said that the name is not published. Never the result of an outage.
    #[error("segment {name} is not published")]
    NotFound {
        /// The name.
        name: SegmentName,
    },
    /// The RPC location of a name is not published though something needs it.
    #[error("segment {name} has no rpc location published, and {needed_by}")]
    NoLocation {
        /// The name.
        name: SegmentName,
        /// What needs it.
        needed_by: &'static str,
    },
    /// Nobody answered. Says nothing about the segment.
    #[error("{operation} of {name} got no answer from {from}: {detail}")]
    Unavailable {
        /// The call.
        operation: DirectoryOperation,
        /// The name.
        name: String,
        /// Who was asked: the store's scheme, or the peer's address.
        from: String,
        /// What happened.
        detail: String,
    },
    /// Nobody listens at the address that the owner of the segment has.
    #[error("{name} cannot be reached: {address} refuses connections")]
    Refused {
        /// The name.
        name: SegmentName,
        /// The owner's address.
        address: Endpoint,
    },
    /// The deadline passed first. Says nothing about the segment.
    #[error("{operation} of {name} ran into its deadline waiting for {from}")]
    DeadlineExceeded {
        /// The call.
        operation: DirectoryOperation,
        /// The name.
        name: String,
        /// Who was asked: the store's scheme, or the peer's address.
        from: String,
    },
    /// What is published under the name is not a usable descriptor.
    #[error("descriptor of {name} from {from} is invalid: {field}: {reason}")]
    InvalidDescriptor {
        /// The name.
        name: SegmentName,
        /// Who gave it: the store's scheme, or the peer's address.
        from: String,
        /// The member at fault, empty if it is the document.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// What is published as RPC location of the name is none.
    #[error("rpc location of {name} is invalid: {reason}")]
    InvalidLocation {
        /// The name.
        name: SegmentName,
        /// What is wrong with it.
        reason: String,
    },
    /// The record is larger than the directory takes; nothing was sent.
    #[error("record of {size} bytes is over the limit of {limit} bytes of store {store}")]
    TooLarge {
        /// Size of the record in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
        /// The scheme of the store that sets it.
        store: String,
    },
    /// The directory does not take names of this form.
    #[error("name {name:?} does not fit {rule}: {reason}")]
    NameInvalid {
        /// The name.
        name: String,
        /// The rule, in words.
        rule: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The store refuses to overwrite what another engine published under the name.
    #[error("name {name} is held by {}", match holder { Some(h) => h.to_string(), None => "another engine".to_owned() })]
    NameTaken {
        /// The name.
        name: SegmentName,
        /// The RPC endpoint the name leads to now, if it could be read.
        holder: Option<Endpoint>,
    },
    /// Another engine has published under our name since we did. Nothing of it was touched.
    #[error("name {name} was taken over by another engine")]
    NameLost {
        /// The name.
        name: SegmentName,
    },
    /// The peer answers, but hands out no descriptor: engines that publish in a store do not.
    #[error(
        "peer at {address} hands out no descriptor: it publishes in a metadata store, or has nothing to offer yet"
    )]
    NotAP2pPeer {
        /// The peer's address.
        address: Endpoint,
    },
    /// The store refuses us the record.
    #[error("{operation} of {name} was denied by {from}: {detail}")]
    Denied {
        /// The call.
        operation: DirectoryOperation,
        /// The name.
        name: String,
        /// The store's scheme.
        from: String,
        /// The store's words.
        detail: String,
    },
    /// The store or the peer answered something that is no answer to the question.
    #[error("{operation} of {name} got an unusable answer from {from}: {detail}")]
    InvalidAnswer {
        /// The call.
        operation: DirectoryOperation,
        /// The name.
        name: String,
        /// Who answered: the store's scheme, or the peer's address.
        from: String,
        /// What is wrong with it.
        detail: String,
    },
}

impl DirectoryError {
    /// Whether repeating the call soon can help. Not for [`NotFound`](Self::NotFound): somebody has to publish first.
    pub fn is_retryable(&self) -> bool {
        self.is_outage() || matches!(self, Self::NoLocation { .. } | Self::Refused { .. })
    }

    /// Whether nobody gave an answer: the error then says nothing about the segment.
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::DeadlineExceeded { .. })
    }

    pub(crate) fn from_store(operation: DirectoryOperation, name: &str, error: StoreError) -> Self {
        let (name, from) = (name.to_owned(), error.scheme.to_owned());
        match error.kind {
            StoreErrorKind::Unavailable { detail } => Self::Unavailable { operation, name, from, detail },
            StoreErrorKind::DeadlineExceeded => Self::DeadlineExceeded { operation, name, from },
            StoreErrorKind::TooLarge { size, limit, store } => {
                Self::TooLarge { size, limit, store: store.to_owned() }
            }
            StoreErrorKind::Denied { detail } => Self::Denied { operation, name, from, detail },
            kind => Self::InvalidAnswer { operation, name, from, detail: kind.to_string() },
        }
    }
}
