//! What a metadata request says about who asks.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use te_segment::CompatProtocol;

/// The part of a request that matters for the answer. Everything else in it is skipped unread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requester {
    /// The one transport its own record is about, if it is one that we can write records for.
    pub(crate) compat: Option<CompatProtocol>,
    /// It reads the extension: its own record has one.
    pub(crate) is_te: bool,
}

impl Requester {
    /// Reads a request body; `None` if it is no JSON. What it has no use for is an unknown requester, never an error.
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        serde_json::from_slice::<IgnoredAny>(body).ok()?;
        // Of a repeated member the last counts, as for the reference engine.
        let members: BTreeMap<String, &RawValue> = serde_json::from_slice(body).unwrap_or_default();
        let word = members.get("protocol").and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
        let compat = match word.as_deref() {
            Some("tcp") => Some(CompatProtocol::Tcp),
            Some("rdma") => Some(CompatProtocol::Rdma),
            _ => None,
        };
        let is_te = members.get("te").is_some_and(|raw| raw.get().starts_with('{'));
        Some(Self { compat, is_te })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(body: &str) -> Option<(Option<CompatProtocol>, bool)> {
        Requester::read(body.as_bytes()).map(|requester| (requester.compat, requester.is_te))
    }

    #[test]
    fn protocol_and_extension_are_read() {
        assert_eq!(read(r#"{"protocol":"tcp"}"#), Some((Some(CompatProtocol::Tcp), false)));
        assert_eq!(read(r#"{"te":{"v":1},"protocol":"rdma"}"#), Some((Some(CompatProtocol::Rdma), true)));
    }

    #[test]
    fn other_protocols_ask_for_the_default() {
        for body in [r#"{"protocol":"nvlink"}"#, r#"{"protocol":["tcp"]}"#, r#"{"protocol":{"tcp":1}}"#, "{}"]
        {
            assert_eq!(read(body), Some((None, false)), "{body}");
        }
    }

    /// The reference engine ignores the body and answers `{}`, `[]` and `5` alike.
    #[test]
    fn a_body_of_any_json_is_a_request() {
        for body in ["[]", "5", "-5", "2.5", "null", "true", "\"te\"", "[{\"te\":{}}]", " {} \n", "1e400"] {
            assert_eq!(read(body), Some((None, false)), "{body}");
        }
    }

    #[test]
    fn an_extension_that_is_no_object_is_none() {
        for te in ["null", "1", "\"x\"", "[]", "true"] {
            assert_eq!(read(&format!("{{\"te\":{te}}}")), Some((None, false)), "{te}");
        }
    }

    #[test]
    fn of_a_repeated_member_the_last_counts() {
        assert_eq!(
            read(r#"{"protocol":"tcp","protocol":"rdma"}"#),
            Some((Some(CompatProtocol::Rdma), false))
        );
    }

    #[test]
    fn deep_nesting_is_skipped_without_recursion() {
        let levels = 300_000;
        let deep = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert_eq!(
            read(&format!("{{\"x\":{deep},\"protocol\":\"tcp\"}}")),
            Some((Some(CompatProtocol::Tcp), false))
        );
        assert_eq!(read(&deep), Some((None, false)));
        assert_eq!(read(&"[".repeat(levels)), None);
    }

    #[test]
    fn what_is_no_json_is_no_request() {
        for body in ["", "{", "GET / HTTP/1.1", "{\"protocol\":}", "\u{0}"] {
            assert_eq!(read(body), None, "{body}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_handled(body in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Requester::read(&body);
        }
    }
}
