//! Streams of changes.

use crate::{
    error::StoreError,
    key::Key,
    store::{BoxFuture, Entry},
};

/// One change of a watched prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchEvent {
    /// The key has this value now.
    Put {
        /// The key.
        key: Key,
        /// Its value and revision.
        entry: Entry,
    },
    /// The key is gone: deleted, or its lease ended.
    Delete {
        /// The key.
        key: Key,
        /// The revision of the deletion.
        revision: u64,
    },
    /// Changes were lost: whoever keeps a copy has to read it again. The stream goes on.
    Resync,
}

/// What a store's watch is behind its [`WatchStream`].
pub trait WatchSource: Send {
    /// Waits for the next change; `None` after the last one. Dropping the future loses nothing.
    fn next(&mut self) -> BoxFuture<'_, Option<Result<WatchEvent, StoreError>>>;
}

/// The changes of a prefix, in the order in which the store made them. Dropping it ends the watch.
pub struct WatchStream(Box<dyn WatchSource>);

impl WatchStream {
    /// The stream over a store's own source.
    pub fn new(source: impl WatchSource + 'static) -> Self {
        Self(Box::new(source))
    }

    /// Waits for the next change; `None` when the watch has ended. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The watch broke, as [`StoreError`] says. It says nothing about any key; start another watch and read again.
    pub async fn next(&mut self) -> Option<Result<WatchEvent, StoreError>> {
        self.0.next().await
    }
}

impl std::fmt::Debug for WatchStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WatchStream")
    }
}
