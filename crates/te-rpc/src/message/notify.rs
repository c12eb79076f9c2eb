//! Notifications and their replies.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    MessageError,
    json::{Members, Writer},
};

const SUCCESS: &str = "success";

/// Request and reply of a notify frame: two opaque texts. Source: reference engine, wire spec.
///
/// ```
/// use te_rpc::message::NotifyBody;
/// let body = NotifyBody::new("layer", "17");
/// assert_eq!(body.encode(), b"{\"name\":\"layer\",\"notify_msg\":\"17\"}\n");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NotifyBody {
    /// Name, member `name`.
    pub name: String,
    /// Text, member `notify_msg`.
    pub msg: String,
    /// Members that are not listed above, kept as they are.
    pub extra: BTreeMap<String, Value>,
}

impl NotifyBody {
    /// A notification without further members.
    pub fn new(name: impl Into<String>, msg: impl Into<String>) -> Self {
        Self { name: name.into(), msg: msg.into(), extra: BTreeMap::new() }
    }

    /// Reads a body. An object with no members is a notification of two empty texts.
    pub fn decode(body: &[u8]) -> Result<Self, MessageError> {
        let mut members = Members::parse(body)?;
        Ok(Self { name: members.text("name")?, msg: members.text("notify_msg")?, extra: members.rest() })
    }

    /// Writes the body.
    pub fn encode(&self) -> Vec<u8> {
        Writer::new(&self.extra)
            .member("name", self.name.as_str())
            .member("notify_msg", self.msg.as_str())
            .finish()
    }

    /// Whether this, as a reply, says that the notification was accepted: any text but an empty one does.
    pub fn is_accepted(&self) -> bool {
        !self.msg.is_empty()
    }
}

/// The reply body that accepts a notification.
pub fn notify_success() -> Vec<u8> {
    NotifyBody::new("", SUCCESS).encode()
}

/// The reply body that refuses a notification, for example because the queue is full.
pub fn notify_refused() -> Vec<u8> {
    NotifyBody::new("", "").encode()
}
