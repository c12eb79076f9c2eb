//! What one call moves: a list of memory ranges.

use std::ptr;

use super::CALL_BYTES;

/// A list of memory ranges for one call, at most `MAX`.
///
/// It holds addresses, not references: the bytes may be registered memory, of which no reference may exist.
pub(crate) struct Spans {
    list: [libc::iovec; Self::MAX],
    first: usize,
    len: usize,
}

impl Spans {
    /// Most ranges in one list.
    pub(crate) const MAX: usize = 136;

    pub(crate) fn new() -> Self {
        Self { list: [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; Self::MAX], first: 0, len: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first == self.len
    }

    /// How many ranges can be added.
    pub(crate) fn room(&self) -> usize {
        Self::MAX - self.len
    }

    pub(crate) fn clear(&mut self) {
        self.first = 0;
        self.len = 0;
    }

    /// Adds a range. Empty ranges are left out; the caller keeps within [`Self::MAX`], beyond it nothing is added.
    pub(crate) fn push(&mut self, start: *mut u8, len: usize) {
        if len > 0
            && let Some(slot) = self.list.get_mut(self.len)
        {
            *slot = libc::iovec { iov_base: start.cast(), iov_len: len };
            self.len += 1;
        }
    }

    /// Forgets the first `bytes` bytes.
    pub(crate) fn advance(&mut self, mut bytes: usize) {
        while bytes > 0 && self.first < self.len {
            let span = &mut self.list[self.first];
            if bytes < span.iov_len {
                span.iov_base = span.iov_base.cast::<u8>().wrapping_add(bytes).cast();
                span.iov_len -= bytes;
                return;
            }
            bytes -= span.iov_len;
            self.first += 1;
        }
    }

    /// Bytes of all ranges.
    pub(super) fn bytes(&self) -> usize {
        self.list[self.first..self.len].iter().map(|span| span.iov_len).sum()
    }

    /// The first [`CALL_BYTES`] bytes, if they are in one range.
    pub(super) fn only(&self) -> Option<(*mut u8, usize)> {
        match &self.list[self.first..self.len] {
            [span] => Some((span.iov_base.cast(), span.iov_len.min(CALL_BYTES))),
            _ => None,
        }
    }

    /// Calls `call` with a message of the first [`CALL_BYTES`] bytes.
    pub(super) fn with_message<R>(&mut self, call: impl FnOnce(&mut libc::msghdr) -> R) -> R {
        // The last span of the message is cut for the call and restored after it.
        let mut bytes = 0;
        let mut end = self.first;
        let mut cut = 0;
        while end < self.len && bytes < CALL_BYTES {
            bytes += self.list[end].iov_len;
            end += 1;
        }
        if bytes > CALL_BYTES {
            cut = bytes - CALL_BYTES;
            self.list[end - 1].iov_len -= cut;
        }
        // SAFETY: `msghdr` is a C struct for which all zeros means: no name, no vector, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.list[self.first..end].as_mut_ptr();
        message.msg_iovlen = (end - self.first) as _;
        let result = call(&mut message);
        if cut > 0 {
            self.list[end - 1].iov_len += cut;
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_advance_across_ranges() {
        let mut bytes = [0_u8; 10];
        let start = bytes.as_mut_ptr();
        let mut spans = Spans::new();
        spans.push(start, 4);
        spans.push(start, 0);
        spans.push(start.wrapping_add(4), 6);
        spans.advance(5);
        assert_eq!(spans.list[spans.first].iov_base.cast::<u8>(), start.wrapping_add(5));
        spans.advance(5);
        assert!(spans.is_empty());
    }

    #[test]
    fn one_call_is_cut_and_the_list_restored() {
        let mut spans = Spans::new();
        spans.push(ptr::dangling_mut(), CALL_BYTES + 7);
        spans.with_message(|message| {
            assert_eq!(message.msg_iovlen, 1);
        });
        assert_eq!(spans.list[0].iov_len, CALL_BYTES + 7);
    }
}
