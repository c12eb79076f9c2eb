//! What an answer of the client means for the call.

use etcd_client::Error;
use te_metadata::StoreErrorKind;

use crate::SCHEME;

/// Longest text of somebody else that is put into an error.
const WORDS: usize = 300;

/// gRPC status codes by number: the client does not hand on their names.
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const OUT_OF_RANGE: i32 = 11;
    pub(super) const UNIMPLEMENTED: i32 = 12;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

/// Why one attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Another attempt, here or at another server, may succeed.
    Outage(String),
    /// The lease that was named does not exist any more.
    LeaseGone,
    /// The history that was asked for has been compacted.
    Compacted,
    /// An answer; asking again gives the same.
    Final(StoreErrorKind),
}

impl Failure {
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::Final(StoreErrorKind::Invalid { detail: detail.into() })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::GRpcStatus(status) => status,
            Error::LeaseKeepAliveError(words) if words.contains("not found") => return Self::LeaseGone,
            Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
                return Self::invalid(cut(&error.to_string()));
            }
            Error::TransportError(inner) => return Self::Outage(chain(String::new(), Some(inner))),
            _ => return Self::Outage(cut(&error.to_string())),
        };
        let words = cut(status.message());
        let says = |text: &str| words.contains(text);
        let denied = || Self::Final(StoreErrorKind::Denied { detail: words.clone() });
        match status.code() as i32 {
            code::PERMISSION_DENIED | code::UNAUTHENTICATED => denied(),
            code::INVALID_ARGUMENT if says("request is too large") => too_large(),
            code::INVALID_ARGUMENT if says("user name") || says("authentication failed") => denied(),
            code::FAILED_PRECONDITION if says("authentication") => denied(),
            code::RESOURCE_EXHAUSTED if says("larger than max") => too_large(),
            // No space left: nobody but the operator can change that.
            code::RESOURCE_EXHAUSTED if says("space exceeded") => denied(),
            code::NOT_FOUND if says("lease not found") => Self::LeaseGone,
            code::OUT_OF_RANGE if says("compacted") => Self::Compacted,
            // A server that has seen less than we have: it lags, or was wiped.
            code::OUT_OF_RANGE if says("future revision") => Self::Compacted,
            code::INVALID_ARGUMENT | code::OUT_OF_RANGE | code::UNIMPLEMENTED => Self::invalid(words),
            _ => Self::Outage(chain(words, std::error::Error::source(status))),
        }
    }
}

/// The server's limit is smaller than we were told; size and limit are filled in by the caller.
fn too_large() -> Failure {
    Failure::Final(StoreErrorKind::TooLarge { size: 0, limit: 0, store: SCHEME })
}

fn cut(text: &str) -> String {
    text.chars().take(WORDS).collect()
}

/// Words with what caused them: the client says "transport error" and hides the rest.
fn chain(mut words: String, mut source: Option<&(dyn std::error::Error + 'static)>) -> String {
    while let Some(error) = source {
        let text = error.to_string();
        if !text.is_empty() && !words.contains(&text) {
            if !words.is_empty() {
                words.push_str(": ");
            }
            words.push_str(&text);
        }
        source = error.source();
    }
    cut(&words)
}
