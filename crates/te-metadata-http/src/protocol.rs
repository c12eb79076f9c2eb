//! What goes over the wire besides the bodies: header names, the encoding of keys, pages of a list and watch events.
//!
//! The three requests of the reference engine are untouched by all of this; each addition is a header it ignores or a
//! request it never makes.

// Each side of it uses only a part.
#![cfg_attr(not(all(feature = "client", feature = "server")), allow(dead_code))]

use serde::{Deserialize, Serialize};

/// On every answer of this server: the version of the additions it understands.
pub(crate) const STORE: &str = "te-store";
/// The version of the additions described here.
pub(crate) const STORE_VERSION: &str = "1";
/// On every answer: the largest value the server takes, in bytes.
pub(crate) const MAX_VALUE: &str = "te-max-value";
/// On answers: the revision of the value, or of the deletion.
pub(crate) const REVISION: &str = "te-revision";
/// On a put or renewal: how long the key outlives it, in milliseconds. On a get: what is left.
pub(crate) const LEASE_MS: &str = "te-lease-ms";
/// On writes: the incarnation of the writer, 32 hexadecimal digits.
pub(crate) const INCARNATION: &str = "te-incarnation";

/// What values and answers are declared as, as reference servers do.
pub(crate) const JSON: &str = "application/json";
/// Path of the watch, below the path of the store.
pub(crate) const WATCH_SUFFIX: &str = "/watch";

/// Largest value by default: what the reference's Python server takes.
pub(crate) const DEFAULT_MAX_VALUE: usize = 1 << 20;

/// Names of the events of a watch.
pub(crate) mod event {
    /// First of all: where the watch begins.
    pub(crate) const HELLO: &str = "hello";
    /// A key was written.
    pub(crate) const PUT: &str = "put";
    /// A key is gone.
    pub(crate) const DELETE: &str = "delete";
    /// Changes were lost.
    pub(crate) const RESYNC: &str = "resync";
}

/// One page of a list.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ListPage {
    /// Keys with their values, in byte order.
    pub(crate) entries: Vec<ListEntry>,
    /// Whether keys follow the last one.
    pub(crate) more: bool,
}

/// One key of a list.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ListEntry {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) revision: u64,
    /// What is left of its lease, in milliseconds, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lease_ms: Option<u64>,
}

/// Data of the `hello` event.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Which life of the server this is; a resumption names it.
    pub(crate) life: String,
    /// Changes after this revision follow.
    pub(crate) revision: u64,
}

/// Data of `put` and `delete` events.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) key: String,
    pub(crate) revision: u64,
    /// Only with `put`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
}

/// A key as it stands in a query: everything but `A-Za-z0-9-._~` as `%XX` (reference engine, wire spec).
pub(crate) fn encode_key(key: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut encoded = String::with_capacity(key.len() + key.len() / 4);
    for byte in key.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte))
            }
            _ => {
                encoded.push('%');
                encoded.push(char::from(HEX[usize::from(byte >> 4)]));
                encoded.push(char::from(HEX[usize::from(byte & 15)]));
            }
        }
    }
    encoded
}

/// A revision as entity tag.
pub(crate) fn tag(revision: u64) -> String {
    format!("\"{revision}\"")
}

/// The revision in an entity tag.
pub(crate) fn parse_tag(text: &str) -> Option<u64> {
    text.trim().strip_prefix('"')?.strip_suffix('"')?.parse().ok()
}

/// The first value of a query's parameter.
///
/// # Errors
/// The value is not UTF-8 once decoded.
pub(crate) fn parameter(query: &str, name: &str) -> Result<Option<String>, NotUtf8> {
    for pair in query.split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if key == name {
            return String::from_utf8(decode(value)).map(Some).map_err(|_| NotUtf8);
        }
    }
    Ok(None)
}

/// A parameter that is not UTF-8.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotUtf8;

fn decode(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let pair = bytes.get(at + 1).zip(bytes.get(at + 2));
        match (bytes[at], pair.and_then(|(high, low)| Some(digit(*high)? * 16 + digit(*low)?))) {
            (b'%', Some(byte)) => {
                decoded.push(u8::try_from(byte).unwrap_or_default());
                at += 3;
            }
            (b'+', _) => {
                decoded.push(b' ');
                at += 1;
            }
            (byte, _) => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As recorded from a reference engine with cluster id `clu` and the name `dir/node-c`.
    #[test]
    fn key_is_encoded_as_the_reference_does() {
        assert_eq!(encode_key("mooncake/clu/dir/node-c"), "mooncake%2Fclu%2Fdir%2Fnode-c");
        assert_eq!(encode_key("[2001:db8::1]:1"), "%5B2001%3Adb8%3A%3A1%5D%3A1");
        assert_eq!(encode_key("a b+c%d~e_f.g\u{e9}"), "a%20b%2Bc%25d~e_f.g%C3%A9");
    }

    #[test]
    fn parameter_is_the_first_of_its_name() {
        assert_eq!(parameter("a=1&key=x%2fy+z&key=w", "key"), Ok(Some("x/y z".into())));
        assert_eq!(parameter("akey=1", "key"), Ok(None));
        assert_eq!(parameter("key", "key"), Ok(Some(String::new())));
        assert_eq!(parameter("key=%FF", "key"), Err(NotUtf8));
        assert_eq!(parameter("key=%", "key"), Ok(Some("%".into())));
        assert_eq!(parameter("key=%2", "key"), Ok(Some("%2".into())));
        assert_eq!(parameter("key=%zz%+1", "key"), Ok(Some("%zz% 1".into())));
    }

    #[test]
    fn tag_leads_back_to_its_revision() {
        assert_eq!(parse_tag(&tag(7)), Some(7));
        assert_eq!(parse_tag("7"), None);
        assert_eq!(parse_tag("W/\"7\""), None);
    }

    proptest! {
        #[test]
        fn any_key_survives_a_query(key in "\\PC{0,40}|[ -~]{0,40}") {
            prop_assert_eq!(parameter(&format!("key={}", encode_key(&key)), "key"), Ok(Some(key)));
        }
    }
}
