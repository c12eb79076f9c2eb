//! The checks made on the bytes of a document before any parser sees it.

use crate::{error::DescriptorError, limits::DecodeLimits};

/// Refuses documents that are too large or nested too deep. Looks at brackets outside strings only, so it also stops
/// at documents that are no JSON.
pub(crate) fn check_document(bytes: &[u8], limits: &DecodeLimits) -> Result<(), DescriptorError> {
    if bytes.len() > limits.max_bytes {
        return Err(DescriptorError::TooLarge { len: bytes.len(), limit: limits.max_bytes });
    }
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut escaped = false;
    for (at, byte) in bytes.iter().enumerate() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                if depth > limits.max_nesting {
                    return Err(DescriptorError::TooDeep { limit: limits.max_nesting, at });
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}
