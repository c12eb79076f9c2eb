//! One client, one key.

use std::time::{Duration, Instant};

use te_metadata::{PutRequest, StoreError, StoreErrorKind};

use super::{PASSED, skip};
use crate::report::{Verdict, Violation, ensure};
use crate::store::bench::{StoreBench, patience};

/// A key that is not there is a value, not an error.
pub(in crate::store) async fn missing_keys_are_values(bench: &StoreBench) -> Result<Verdict, Violation> {
    let key = bench.key("missing");
    ensure!(!bench.store.info().scheme.is_empty(), "the store has no scheme");
    bench.expect(&key, None).await?;
    ensure!(!bench.delete(&key).await?, "a missing key was deleted");
    if bench.store.info().list {
        ensure!(bench.list(bench.prefix()).await?.is_empty(), "a prefix without keys lists some");
    }
    PASSED
}

/// Values come back byte for byte, also to another handle.
pub(in crate::store) async fn values_come_back_as_they_were(
    bench: &StoreBench,
) -> Result<Verdict, Violation> {
    let large = "0123456789abcdef".repeat(4096);
    let values = [
        "x",
        "{\"name\":\"a\",\"buffers\":[]}\n",
        " leading and trailing ",
        "\n\nlines\r\n",
        "quotes \" ' ` and \\ backslashes \\n \\u0041",
        "Größe 寸法 🦀",
        "%20+&=?#;",
        "null",
        "0",
        &large,
    ];
    let other = bench.rig.open().await?;
    for (number, value) in values.into_iter().enumerate() {
        let key = bench.key(&format!("value-{number}"));
        bench.put(&key, value).await?;
        bench.expect(&key, Some(value)).await?;
        let seen = other.get(&key, patience()).await?.map(|entry| entry.value);
        ensure!(seen.as_deref() == Some(value), "another handle sees another value of key {key}");
    }
    PASSED
}

/// Overwriting replaces the value; revisions grow, and a read gives the one that the put gave.
pub(in crate::store) async fn overwriting_replaces_and_revisions_grow(
    bench: &StoreBench,
) -> Result<Verdict, Violation> {
    let key = bench.key("overwritten");
    let mut last = 0;
    for round in 0..5 {
        let value = format!("value {round}");
        let revision = bench.put(&key, &value).await?;
        let entry = bench.entry(&key).await?;
        ensure!(entry.value == value, "round {round} reads {:?}", entry.value);
        ensure!(entry.revision == revision, "put gave revision {revision}, get {}", entry.revision);
        // Stores without conditions may have no revisions at all.
        ensure!(revision > last || !bench.store.info().conditional, "revision {revision} follows {last}");
        last = revision;
    }
    PASSED
}

/// Putting the same value twice is no conflict (META-03).
pub(in crate::store) async fn same_value_twice_is_no_conflict(
    bench: &StoreBench,
) -> Result<Verdict, Violation> {
    let key = bench.key("twice");
    bench.put(&key, "same").await?;
    bench.put(&key, "same").await.map_err(|violation| violation.at("second put"))?;
    bench.expect(&key, Some("same")).await?;
    PASSED
}

/// A deleted key is gone, and can be put again.
pub(in crate::store) async fn deleted_keys_are_gone(bench: &StoreBench) -> Result<Verdict, Violation> {
    let (key, neighbour) = (bench.key("deleted"), bench.key("deleted-not"));
    bench.put(&key, "1").await?;
    bench.put(&neighbour, "2").await?;
    ensure!(bench.delete(&key).await?, "the key was there and the store says it was not");
    bench.expect(&key, None).await?;
    bench.expect(&neighbour, Some("2")).await?;
    ensure!(!bench.delete(&key).await?, "the key was gone and the store says it was not");
    bench.put(&key, "3").await?;
    bench.expect(&key, Some("3")).await?;
    PASSED
}

/// A value as large as the limit is taken, one byte more is refused and changes nothing.
pub(in crate::store) async fn limit_is_exact(bench: &StoreBench) -> Result<Verdict, Violation> {
    let Some(limit) = bench.store.info().max_value else {
        return skip("the store states no limit");
    };
    let key = bench.key("large");
    let largest = "v".repeat(limit);
    bench.put(&key, &largest).await.map_err(|violation| violation.at("value as large as the limit"))?;
    bench.expect(&key, Some(&largest)).await?;
    let over = bench.store.put(PutRequest::new(key.clone(), "w".repeat(limit + 1)), patience()).await;
    match over {
        Err(StoreError { kind: StoreErrorKind::TooLarge { size, limit: stated, .. }, .. }) => {
            ensure!(size == limit + 1 && stated == limit, "the error speaks of {size} of {stated} bytes");
        }
        other => return Err(Violation::new(format!("one byte over the limit: {other:?}"))),
    }
    bench.expect(&key, Some(&largest)).await?;
    PASSED
}

/// A call whose deadline is over fails at once, as such.
pub(in crate::store) async fn late_calls_fail_at_once(bench: &StoreBench) -> Result<Verdict, Violation> {
    let key = bench.key("late");
    let late = Instant::now() - Duration::from_millis(10);
    let began = Instant::now();
    let store = &bench.store;
    let put = PutRequest::new(key.clone(), "x".to_owned());
    // A store that cannot list may say so at any time.
    let calls = [
        ("get", store.get(&key, late).await.err()),
        ("put", store.put(put, late).await.err()),
        ("delete", store.delete(&key, None, late).await.err()),
        ("list", store.list(bench.prefix(), late).await.err()),
    ];
    let calls = calls.into_iter().filter(|(call, _)| *call != "list" || store.info().list);
    for (call, error) in calls {
        let kind = error.ok_or_else(|| Violation::new(format!("{call} succeeded after its deadline")))?.kind;
        ensure!(kind == StoreErrorKind::DeadlineExceeded, "{call} after its deadline: {kind}");
    }
    ensure!(began.elapsed() < bench.grace(), "late calls took {:?}", began.elapsed());
    PASSED
}

/// A server that does not answer costs the deadline and is told from a missing key (META-05).
pub(in crate::store) async fn silent_servers_cost_the_deadline(
    bench: &StoreBench,
) -> Result<Verdict, Violation> {
    let Some(store) = bench.rig.silent().await? else {
        return skip("the rig has no silent server");
    };
    let key = bench.key("silent");
    for call in ["get", "put", "delete", "list"] {
        let began = Instant::now();
        let deadline = began + Duration::from_millis(300);
        let error = match call {
            "get" => store.get(&key, deadline).await.err(),
            "put" => store.put(PutRequest::new(key.clone(), "x".to_owned()), deadline).await.err(),
            "delete" => store.delete(&key, None, deadline).await.err(),
            _ => store.list(bench.prefix(), deadline).await.err(),
        };
        let took = began.elapsed();
        let error =
            error.ok_or_else(|| Violation::new(format!("{call} got an answer from a silent server")))?;
        ensure!(took < Duration::from_millis(300) + bench.grace(), "{call} took {took:?}");
        ensure!(error.is_retryable(), "{call} of a silent server cannot be repeated: {error}");
    }
    PASSED
}
