//! Who may ask: one token, compared in constant time.

use axum::http::{HeaderMap, header::AUTHORIZATION};
use subtle::ConstantTimeEq;
use te_metadata::backend::Secret;

/// Whether the request carries the token: as bearer token, or as password of basic authentication with any user.
pub(super) fn is_allowed(token: Option<&Secret>, headers: &HeaderMap) -> bool {
    let Some(token) = token else { return true };
    let Some(shown) = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()) else { return false };
    let Some((scheme, shown)) = shown.split_once(' ') else { return false };
    let equal = |shown: &[u8]| bool::from(shown.ct_eq(token.reveal().as_bytes()));
    if scheme.eq_ignore_ascii_case("bearer") {
        return equal(shown.trim().as_bytes());
    }
    if scheme.eq_ignore_ascii_case("basic") {
        let Some(pair) = decode_base64(shown.trim()) else { return false };
        let Some(colon) = pair.iter().position(|byte| *byte == b':') else { return false };
        return equal(&pair[colon + 1..]);
    }
    false
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut word, mut bits) = (Vec::new(), 0_u32, 0);
    for digit in text.trim_end_matches('=').bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (word, bits) = ((word << 6 | u32::from(value)) & 0xffff, bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits & 0xff) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(header: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, header.parse().unwrap());
        is_allowed(Some(&Secret::new("s3cret")), &headers)
    }

    #[test]
    fn the_token_is_taken_in_both_forms() {
        assert!(allowed("Bearer s3cret"));
        assert!(allowed("bearer s3cret"));
        assert!(allowed("Basic b3BzOnMzY3JldA=="), "ops:s3cret");
        assert!(allowed("Basic OnMzY3JldA=="), ":s3cret");
    }

    #[test]
    fn anything_else_is_refused() {
        for header in [
            "s3cret",
            "Bearer s3cre",
            "Bearer ",
            "Digest s3cret",
            "Basic s3cret",
            "Basic czNjcmV0",
            "Basic !",
        ] {
            assert!(!allowed(header), "{header}");
        }
        assert!(!is_allowed(Some(&Secret::new("x")), &HeaderMap::new()));
    }

    #[test]
    fn without_a_token_everybody_may() {
        assert!(is_allowed(None, &HeaderMap::new()));
    }

    #[test]
    fn base64_is_decoded_totally() {
        assert_eq!(decode_base64("Zm9vYg=="), Some(b"foob".to_vec()));
        assert_eq!(decode_base64("/+/+"), Some(vec![0xff, 0xef, 0xfe]));
        assert_eq!(decode_base64(""), Some(vec![]));
        assert_eq!(decode_base64("a b"), None);
    }
}
