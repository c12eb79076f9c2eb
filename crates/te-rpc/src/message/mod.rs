//! The JSON bodies of control frames.
//!
//! Decoding is total: any bytes give a message or a [`MessageError`], never a panic. Odd but harmless input is read
//! as the reference engine reads it: a missing or null member is its default, a number or boolean where text is due
//! becomes text, an integral float is an integer, and of a repeated member the last counts. What makes the reference
//! engine abort (an array for text, a negative queue pair number, deep nesting) is an error.
//!
//! Encoding gives compact JSON with sorted members and a newline at the end, as the reference engine writes it.

mod connection;
mod json;
mod notify;
mod probe;

pub use connection::ConnectionBody;
pub use json::check_json;
pub use notify::{NotifyBody, notify_refused, notify_success};
pub use probe::{ProbeReply, probe_request};

/// Why a body is no message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The body is not JSON, or nested too deeply.
    #[error("body is not JSON: {0}")]
    NotJson(#[source] serde_json::Error),
    /// The body is JSON, but neither an object nor null.
    #[error("body is {found} where an object is due")]
    NotAnObject {
        /// What it is instead.
        found: &'static str,
    },
    /// A member has a value that cannot be understood.
    #[error("member `{member}` is not {expected}")]
    Member {
        /// Name of the member.
        member: &'static str,
        /// What it should have been.
        expected: &'static str,
    },
}

/// The JSON literal that answers a request nobody handles.
pub const NULL_BODY: &[u8] = b"null\n";
