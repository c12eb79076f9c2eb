//! Reading server-sent events: bytes in, events out, no I/O.

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    /// Its kind; empty if the server named none.
    pub(super) name: String,
    /// Its data; lines are joined with `\n`.
    pub(super) data: String,
}

/// The stream has a line or an event over the limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Collects the bytes of a stream into events.
#[derive(Debug)]
pub(super) struct Parser {
    line: Vec<u8>,
    event: Event,
    /// The last byte was a carriage return: a line feed right after it ends no line.
    returned: bool,
    limit: usize,
}

impl Parser {
    /// A parser that refuses events over `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { line: Vec::new(), event: Event::default(), returned: false, limit }
    }

    /// Takes bytes as they come and appends the events that are complete.
    pub(super) fn push(&mut self, bytes: &[u8], events: &mut Vec<Event>) -> Result<(), TooLong> {
        for byte in bytes {
            let after_return = std::mem::take(&mut self.returned);
            match byte {
                b'\n' if after_return => {}
                b'\n' => self.end_line(events)?,
                b'\r' => {
                    self.returned = true;
                    self.end_line(events)?;
                }
                byte if self.line.len() < self.limit => self.line.push(*byte),
                _ => return Err(TooLong),
            }
        }
        Ok(())
    }

    fn end_line(&mut self, events: &mut Vec<Event>) -> Result<(), TooLong> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            let mut event = std::mem::take(&mut self.event);
            // Without data there is no event, and each data line added a line feed.
            if event.data.pop().is_some() {
                events.push(event);
            }
            return Ok(());
        }
        let line = String::from_utf8_lossy(&line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "data" => {
                if self.event.data.len() + value.len() > self.limit {
                    return Err(TooLong);
                }
                self.event.data.push_str(value);
                self.event.data.push('\n');
            }
            // Comments keep the line alive; other fields are nothing to us.
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(chunks: &[&[u8]]) -> Result<Vec<(String, String)>, TooLong> {
        let (mut parser, mut events) = (Parser::new(32), Vec::new());
        for chunk in chunks {
            parser.push(chunk, &mut events)?;
        }
        Ok(events.into_iter().map(|event| (event.name, event.data)).collect())
    }

    fn one(name: &str, data: &str) -> Result<Vec<(String, String)>, TooLong> {
        Ok(vec![(name.into(), data.into())])
    }

    #[test]
    fn event_ends_with_an_empty_line() {
        assert_eq!(parse(&[b"event: put\nid: 7\ndata: {}\n"]), Ok(vec![]));
        assert_eq!(parse(&[b"event: put\nid: 7\ndata: {}\n\n"]), one("put", "{}"));
    }

    #[test]
    fn any_line_end_will_do() {
        assert_eq!(parse(&[b"event:put\r\ndata:a\r", b"\ndata: b\r\r"]), one("put", "a\nb"));
    }

    #[test]
    fn comments_and_events_without_data_are_skipped() {
        assert_eq!(parse(&[b":\n\nevent: put\n\n: still here\n\ndata\n\n"]), one("", ""));
    }

    #[test]
    fn overlong_lines_and_events_are_refused() {
        assert_eq!(parse(&[&[b'x'; 33]]), Err(TooLong));
        assert_eq!(parse(&[b"data: 0123456789012345\ndata: 01234567890123456\n"]), Err(TooLong));
    }

    proptest! {
        #[test]
        fn chunks_do_not_matter(bytes in "(event: [a-z]{1,3}|data: ?[a-z]{0,3}|:x|)(\r\n|\n|\r)*", cut in 0usize..40) {
            let bytes = bytes.as_bytes();
            let cut = cut.min(bytes.len());
            prop_assert_eq!(parse(&[bytes]), parse(&[&bytes[..cut], &bytes[cut..]]));
        }

        #[test]
        fn any_bytes_are_handled(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&[&bytes]);
        }
    }
}
