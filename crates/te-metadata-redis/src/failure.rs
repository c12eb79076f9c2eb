//! What an answer of the client means for the call.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use te_metadata::StoreErrorKind;

use crate::SCHEME;

/// Longest text of somebody else that is put into an error.
const WORDS: usize = 300;

/// Why one attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The connection is of no use any more; another may be.
    Broken(String),
    /// The server asks to be asked again.
    Later(String),
    /// The server does not know the newer protocol.
    OldProtocol,
    /// An answer; asking again gives the same.
    Final(StoreErrorKind),
}

impl Failure {
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::Final(StoreErrorKind::Invalid { detail: detail.into() })
    }

    pub(crate) fn into_kind(self) -> StoreErrorKind {
        match self {
            Self::Broken(detail) | Self::Later(detail) => StoreErrorKind::Unavailable { detail },
            Self::OldProtocol => {
                StoreErrorKind::Invalid { detail: "the server does not know RESP3".to_owned() }
            }
            Self::Final(kind) => kind,
        }
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        let words: String = error.to_string().chars().take(WORDS).collect();
        let says = |text: &str| words.contains(text);
        if says("invalid bulk length") {
            return Self::Final(StoreErrorKind::TooLarge { size: 0, limit: 0, store: SCHEME });
        }
        match error.kind() {
            ErrorKind::RESP3NotSupported => return Self::OldProtocol,
            ErrorKind::Io | ErrorKind::Parse | ErrorKind::Client => return Self::Broken(words),
            ErrorKind::AuthenticationFailed | ErrorKind::Server(ServerErrorKind::NoPerm) => {
                return Self::Final(StoreErrorKind::Denied { detail: words });
            }
            // The address leads to another server now, or will.
            ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => {
                return Self::Broken(words);
            }
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::NoScript,
            ) => return Self::Later(words),
            _ => {}
        }
        match error.code().unwrap_or_default() {
            "NOAUTH" | "WRONGPASS" | "NOPERM" | "OOM" => {
                Self::Final(StoreErrorKind::Denied { detail: words })
            }
            "BUSY" | "MISCONF" | "NOREPLICAS" => Self::Later(words),
            _ if says("unknown command") && says("HELLO") => Self::OldProtocol,
            _ if says("AUTH") => Self::Final(StoreErrorKind::Denied { detail: words }),
            _ => Self::invalid(words),
        }
    }
}
