use te_transport::{Failure, FailureKind};

use super::*;

fn seen(kind: FailureKind) -> Error {
    Error::from_failure("read".to_owned(), "prefill-3", &Failure::new(kind, "why"))
}

/// META-01, META-02: both are told apart from a refusal, and both mean that the handle is old.
#[test]
fn another_life_and_a_withdrawn_buffer_ask_for_a_reopened_segment() {
    for (failure, error) in [
        (FailureKind::StaleIncarnation, ErrorKind::StaleIncarnation),
        (FailureKind::BufferGone, ErrorKind::BufferGone),
    ] {
        let seen = seen(failure);
        assert_eq!((seen.kind(), seen.retry()), (error, Retry::AfterReopen), "{failure}");
        assert_eq!(seen.peer(), Some("prefill-3"));
    }
}

#[test]
fn local_buffer_that_is_gone_is_not_helped_by_reopening() {
    let seen = seen(FailureKind::LocalMemory);
    assert_eq!((seen.kind(), seen.retry()), (ErrorKind::BufferGone, Retry::No));
}
