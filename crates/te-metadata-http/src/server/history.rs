//! The latest changes, so that a watch can be taken up where it broke.

use std::{collections::VecDeque, sync::Arc};

/// One change: a value, or a key that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) revision: u64,
    pub(super) key: Arc<str>,
    pub(super) value: Option<Arc<str>>,
}

/// The latest changes, bounded in number and size.
#[derive(Debug)]
pub(super) struct History {
    events: VecDeque<Event>,
    /// Changes after this revision are all there.
    since: u64,
    bytes: usize,
    max_events: usize,
    max_bytes: usize,
}

/// What a watcher has missed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Missed {
    /// These changes, in order, and the revision up to which they reach.
    Events(Vec<Event>, u64),
    /// More than is remembered; what is remembered begins after this revision.
    TooMuch(u64),
}

impl History {
    /// No changes yet, at this revision.
    pub(super) fn new(since: u64, max_events: usize, max_bytes: usize) -> Self {
        Self { events: VecDeque::new(), since, bytes: 0, max_events, max_bytes }
    }

    pub(super) fn push(&mut self, revision: u64, key: Arc<str>, value: Option<Arc<str>>) {
        let event = Event { revision, key, value };
        self.bytes += size(&event);
        self.events.push_back(event);
        while self.events.len() > self.max_events || self.bytes > self.max_bytes {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= size(&oldest);
            self.since = oldest.revision;
        }
    }

    /// The changes after `after` of keys that begin with `prefix`, at most `limit` of them.
    pub(super) fn after(&self, after: u64, prefix: &str, limit: usize) -> Missed {
        let last = self.events.back().map_or(self.since, |event| event.revision);
        if after < self.since || after > last {
            return Missed::TooMuch(last);
        }
        let first = self.events.partition_point(|event| event.revision <= after);
        let (mut found, mut reached) = (Vec::new(), last);
        for event in self.events.range(first..) {
            if event.key.starts_with(prefix) {
                found.push(event.clone());
                if found.len() == limit {
                    reached = event.revision;
                    break;
                }
            }
        }
        Missed::Events(found, reached)
    }
}

/// Keys and values are shared with the contents as long as those hold them; counted all the same.
fn size(event: &Event) -> usize {
    event.key.len() + event.value.as_ref().map_or(0, |value| value.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(max_events: usize, max_bytes: usize) -> History {
        let mut history = History::new(10, max_events, max_bytes);
        for (revision, key) in [(11, "a/1"), (12, "b/1"), (13, "a/2")] {
            history.push(revision, key.into(), Some("v".into()));
        }
        history
    }

    fn revisions(missed: Missed) -> (Vec<u64>, u64) {
        match missed {
            Missed::Events(events, reached) => (events.iter().map(|event| event.revision).collect(), reached),
            Missed::TooMuch(_) => panic!("too much"),
        }
    }

    #[test]
    fn changes_after_a_revision_are_found_in_order() {
        assert_eq!(revisions(history(9, 99).after(10, "", 9)), (vec![11, 12, 13], 13));
        assert_eq!(revisions(history(9, 99).after(11, "a/", 9)), (vec![13], 13));
        assert_eq!(revisions(history(9, 99).after(13, "", 9)), (vec![], 13));
    }

    #[test]
    fn limit_says_how_far_it_reached() {
        assert_eq!(revisions(history(9, 99).after(10, "", 2)), (vec![11, 12], 12));
        assert_eq!(revisions(history(9, 99).after(10, "b", 2)), (vec![12], 13));
    }

    #[test]
    fn too_old_and_future_revisions_are_too_much() {
        assert_eq!(history(9, 99).after(9, "", 9), Missed::TooMuch(13));
        assert_eq!(history(9, 99).after(14, "", 9), Missed::TooMuch(13));
        assert_eq!(history(2, 99).after(10, "", 9), Missed::TooMuch(13));
        assert_eq!(revisions(history(2, 99).after(11, "", 9)), (vec![12, 13], 13));
    }

    #[test]
    fn size_is_bounded_too() {
        assert_eq!(history(9, 8).after(10, "", 9), Missed::TooMuch(13));
        assert_eq!(revisions(history(9, 8).after(11, "", 9)), (vec![12, 13], 13));
        assert_eq!(history(9, 0).after(12, "", 9), Missed::TooMuch(13));
    }
}
