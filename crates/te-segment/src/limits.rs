//! Upper bounds that decoding enforces before it allocates.

/// Longest name of a segment, location or device, in bytes.
pub const MAX_NAME_BYTES: usize = 1024;

/// Largest document that is looked at, in bytes: 128 MiB, the most a control frame can carry.
pub const MAX_DOCUMENT_BYTES: usize = 128 << 20;

/// Deepest nesting of arrays and objects in a document.
pub const MAX_NESTING: usize = 64;

/// Most buffers in one descriptor.
pub const MAX_BUFFERS: usize = 1_000_000;

/// Most parts of one buffer, each with keys of its own.
pub const MAX_PARTS: usize = 65_536;

/// Most devices in one descriptor.
pub const MAX_DEVICES: usize = 4096;

/// Bounds for decoding one document.
///
/// ```
/// use te_segment::DecodeLimits;
/// let limits = DecodeLimits { max_bytes: 1 << 20, ..DecodeLimits::default() };
/// assert_eq!(limits.max_nesting, 64);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Largest document, in bytes. Default [`MAX_DOCUMENT_BYTES`].
    pub max_bytes: usize,
    /// Deepest nesting of arrays and objects. Default [`MAX_NESTING`]. A larger number is safe, but values that are kept
    /// as values, not as text, cannot be nested deeper than 127 levels.
    pub max_nesting: usize,
    /// Most elements of `buffers`, the rejected ones counted. Default [`MAX_BUFFERS`].
    pub max_buffers: usize,
    /// Most parts of one buffer. Default [`MAX_PARTS`]; a larger number is as good as that.
    pub max_parts: usize,
    /// Most elements of `devices`. Default [`MAX_DEVICES`].
    pub max_devices: usize,
}

impl Default for DecodeLimits {
    fn default() -> Self {
        Self {
            max_bytes: MAX_DOCUMENT_BYTES,
            max_nesting: MAX_NESTING,
            max_buffers: MAX_BUFFERS,
            max_parts: MAX_PARTS,
            max_devices: MAX_DEVICES,
        }
    }
}
