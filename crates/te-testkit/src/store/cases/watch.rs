//! Changes are told to those who watch.

use std::time::Duration;

use te_metadata::{Key, WatchEvent, WatchStream};

use super::{PASSED, skip};
use crate::report::{Verdict, Violation, ensure};
use crate::store::bench::StoreBench;

const UNWATCHED: &str = "the store has no watch that tells every change";

fn tells_all(bench: &StoreBench) -> bool {
    let info = bench.store.info();
    info.watch && info.every_change
}

/// What an event is about: the key, and the value or nothing.
type Change = (String, Option<String>);

async fn change(bench: &StoreBench, watch: &mut WatchStream) -> Result<Change, Violation> {
    match bench.event(watch).await? {
        WatchEvent::Put { key, entry } => Ok((key.as_str().to_owned(), Some(entry.value))),
        WatchEvent::Delete { key, .. } => Ok((key.as_str().to_owned(), None)),
        other => Err(Violation::new(format!("an event that says nothing about a key: {other:?}"))),
    }
}

async fn see(bench: &StoreBench, watch: &mut WatchStream, expected: &[Change]) -> Result<(), Violation> {
    for (number, expected) in expected.iter().enumerate() {
        let step = |violation: Violation| violation.at(format_args!("event {number}, of {expected:?}"));
        let seen = change(bench, watch).await.map_err(step)?;
        ensure!(seen == *expected, "event {number} is {seen:?} instead of {expected:?}");
    }
    Ok(())
}

fn put(key: &Key, value: &str) -> Change {
    (key.as_str().to_owned(), Some(value.to_owned()))
}

fn deleted(key: &Key) -> Change {
    (key.as_str().to_owned(), None)
}

/// Puts and deletes are seen in the order in which they happened, from the start of the watch on, with the revision that
/// a get gives.
pub(in crate::store) async fn changes_are_seen_in_order(bench: &StoreBench) -> Result<Verdict, Violation> {
    if !tells_all(bench) {
        return skip(UNWATCHED);
    }
    let (a, b) = (bench.key("a"), bench.key("b"));
    bench.put(&a, "before").await?;
    let mut watch = bench.watch(bench.prefix()).await?;
    bench.put(&a, "1").await?;
    bench.put(&b, "1").await?;
    bench.put(&a, "2").await?;
    bench.delete(&b).await?;
    bench.delete(&a).await?;
    bench.put(&b, "3").await?;
    let expected = [put(&a, "1"), put(&b, "1"), put(&a, "2"), deleted(&b), deleted(&a), put(&b, "3")];
    see(bench, &mut watch, &expected).await?;
    let revision = bench.put(&b, "4").await?;
    match bench.event(&mut watch).await? {
        WatchEvent::Put { entry, .. } if entry.revision == revision => PASSED,
        other => Err(Violation::new(format!("the put of revision {revision} is seen as {other:?}"))),
    }
}

/// A watch sees the keys with its prefix and no others.
pub(in crate::store) async fn watches_see_their_prefix_only(
    bench: &StoreBench,
) -> Result<Verdict, Violation> {
    if !tells_all(bench) {
        return skip(UNWATCHED);
    }
    let mut watch = bench.watch(bench.key("w/").as_str()).await?;
    let inside = [bench.key("w/a"), bench.key("w/a/b"), bench.key("w/")];
    let mut expected = Vec::new();
    for key in &inside {
        for text in ["w", "w0", "v/a", "W/a", "xw/a"] {
            bench.put(&bench.key(text), "outside").await?;
        }
        bench.put(key, "inside").await?;
        bench.delete(&bench.key("w0")).await?;
        expected.push(put(key, "inside"));
    }
    see(bench, &mut watch, &expected).await?;
    PASSED
}

/// Giving up a wait loses no event.
pub(in crate::store) async fn dropped_waits_lose_nothing(bench: &StoreBench) -> Result<Verdict, Violation> {
    const EVENTS: usize = 40;
    if !tells_all(bench) {
        return skip(UNWATCHED);
    }
    let key = bench.key("impatient");
    let mut watch = bench.watch(bench.prefix()).await?;
    let store = bench.store.clone();
    let writing = {
        let key = key.clone();
        tokio::spawn(async move {
            for number in 0..EVENTS {
                let request = te_metadata::PutRequest::new(key.clone(), number.to_string());
                store.put(request, crate::store::bench::patience()).await?;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok::<_, Violation>(())
        })
    };
    let mut seen = Vec::new();
    let until = tokio::time::Instant::now() + bench.grace() + Duration::from_secs(3);
    while seen.len() < EVENTS && tokio::time::Instant::now() < until {
        // Shorter than the pause between two events, so that most waits are given up.
        if let Ok(event) = tokio::time::timeout(Duration::from_micros(200), watch.next()).await {
            match event {
                Some(Ok(WatchEvent::Put { entry, .. })) => seen.push(entry.value),
                other => return Err(Violation::new(format!("instead of a put: {other:?}"))),
            }
        }
    }
    writing.await??;
    let expected: Vec<_> = (0..EVENTS).map(|number| number.to_string()).collect();
    ensure!(seen == expected, "of {EVENTS} events {} were seen: {seen:?}", seen.len());
    PASSED
}

/// Two watches of one prefix both see everything, and one that is dropped does not disturb the other.
pub(in crate::store) async fn every_watcher_sees_everything(
    bench: &StoreBench,
) -> Result<Verdict, Violation> {
    if !tells_all(bench) {
        return skip(UNWATCHED);
    }
    let key = bench.key("shared");
    let mut first = bench.watch(bench.prefix()).await?;
    let mut second = bench.watch(bench.prefix()).await?;
    bench.put(&key, "1").await?;
    see(bench, &mut first, &[put(&key, "1")]).await?;
    see(bench, &mut second, &[put(&key, "1")]).await?;
    drop(first);
    bench.put(&key, "2").await?;
    bench.delete(&key).await?;
    see(bench, &mut second, &[put(&key, "2"), deleted(&key)]).await?;
    PASSED
}
