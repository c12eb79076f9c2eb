//! Keys that live as long as somebody renews them.

use std::time::{Duration, Instant};

use te_metadata::{Key, LeasedEntry, WatchEvent};

use super::{PASSED, skip};
use crate::report::{Verdict, Violation, ensure};
use crate::store::bench::{StoreBench, patience};

const UNLEASED: &str = "the store has no leases";

/// Waits until the key is gone; an error if it is still there long after its lease.
async fn expires(bench: &StoreBench, key: &Key) -> Result<(), Violation> {
    let until = Instant::now() + bench.rig.lease() + bench.grace();
    while bench.get(key).await?.is_some() {
        ensure!(Instant::now() < until, "key {key} is still there long after its lease");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// A leased key is there until its lease ends and gone soon after; its neighbours stay (META-19).
pub(in crate::store) async fn leased_keys_expire(bench: &StoreBench) -> Result<Verdict, Violation> {
    if !bench.store.info().leases {
        return skip(UNLEASED);
    }
    let (leased, other) = (bench.key("leased"), bench.key("other"));
    bench.put(&other, "stays").await?;
    let began = Instant::now();
    bench.put_leased(&leased, "goes", bench.rig.lease()).await?;
    let entry = bench.get(&leased).await?;
    ensure!(entry.is_some() || began.elapsed() > bench.rig.lease() / 2, "a leased key is gone at once");
    expires(bench, &leased).await?;
    // A little less than the lease, for clocks that are not ours.
    let lived = began.elapsed();
    ensure!(lived > bench.rig.lease() * 3 / 4, "a lease of {:?} ended after {lived:?}", bench.rig.lease());
    bench.expect(&other, Some("stays")).await?;
    bench.put(&leased, "new").await?;
    bench.expect(&leased, Some("new")).await?;
    PASSED
}

/// A key whose lease is renewed stays, with its value, until the renewals stop.
pub(in crate::store) async fn renewed_leases_last(bench: &StoreBench) -> Result<Verdict, Violation> {
    if !bench.store.info().leases {
        return skip(UNLEASED);
    }
    let (key, lease) = (bench.key("renewed"), bench.rig.lease());
    let revision = bench.put_leased(&key, "kept", lease).await?;
    let until = Instant::now() + lease * 3;
    while Instant::now() < until {
        tokio::time::sleep(lease / 5).await;
        ensure!(bench.store.renew(&key, revision, lease, patience()).await?, "the renewal came in time");
    }
    bench.expect(&key, Some("kept")).await?;
    expires(bench, &key).await?;
    PASSED
}

/// Only the holder of the current revision can renew.
pub(in crate::store) async fn renewal_needs_the_revision(bench: &StoreBench) -> Result<Verdict, Violation> {
    if !bench.store.info().leases {
        return skip(UNLEASED);
    }
    let (key, lease) = (bench.key("taken-over"), Duration::from_secs(60));
    let renew = |revision| bench.store.renew(&key, revision, lease, patience());
    ensure!(!renew(1).await?, "a missing key was renewed");
    let first = bench.put_leased(&key, "old holder", lease).await?;
    let second = bench.put_leased(&key, "new holder", lease).await?;
    ensure!(!renew(first).await?, "the old holder renewed the key of the new one");
    ensure!(renew(second).await?, "the holder could not renew its key");
    bench.expect(&key, Some("new holder")).await?;
    bench.delete(&key).await?;
    ensure!(!renew(second).await?, "a deleted key was renewed");
    bench.expect(&key, None).await?;
    PASSED
}

/// A put without a lease keeps the key for ever, whatever was there before.
pub(in crate::store) async fn unleased_put_ends_the_lease(bench: &StoreBench) -> Result<Verdict, Violation> {
    if !bench.store.info().leases {
        return skip(UNLEASED);
    }
    let (key, lease) = (bench.key("kept"), bench.rig.lease());
    bench.put_leased(&key, "leased", lease).await?;
    bench.put(&key, "for ever").await?;
    let witness = bench.key("witness");
    bench.put_leased(&witness, "leased", lease).await?;
    // When a lease of the same length is over, this one would be too.
    expires(bench, &witness).await?;
    tokio::time::sleep(lease / 2).await;
    bench.expect(&key, Some("for ever")).await?;
    PASSED
}

/// The end of a lease is seen as a delete, without anybody touching the key.
pub(in crate::store) async fn expiry_is_watched(bench: &StoreBench) -> Result<Verdict, Violation> {
    let info = bench.store.info();
    if !info.leases || !info.watch || !info.every_change {
        return skip("the store has no leases or no watch that tells every change");
    }
    let (key, lease) = (bench.key("watched"), bench.rig.lease());
    let mut watch = bench.watch(bench.prefix()).await?;
    bench.put_leased(&key, "goes", lease).await?;
    let first = bench.event(&mut watch).await?;
    ensure!(matches!(&first, WatchEvent::Put { .. }), "instead of the put: {first:?}");
    tokio::time::sleep(lease).await;
    match bench.event(&mut watch).await? {
        WatchEvent::Delete { key: gone, .. } if gone == key => PASSED,
        other => Err(Violation::new(format!("the end of the lease is seen as {other:?}"))),
    }
}

/// A list can say what is left of each lease: less as time goes by, all of it after a renewal, nothing where there is no
/// lease. It has the same keys and values as any other list.
pub(in crate::store) async fn lists_say_what_is_left_of_leases(
    bench: &StoreBench,
) -> Result<Verdict, Violation> {
    const SHORT: Duration = Duration::from_secs(60);
    const LONG: Duration = Duration::from_secs(600);
    // Some stores count in seconds.
    const WAIT: Duration = Duration::from_millis(2_500);
    let info = bench.store.info();
    if !info.leases || !info.list {
        return skip("the store has no leases or no list");
    }
    let (kept, long, short) = (bench.key("a-kept"), bench.key("b-long"), bench.key("c-short"));
    bench.put(&kept, "for ever").await?;
    bench.put_leased(&long, "long", LONG).await?;
    let revision = bench.put_leased(&short, "short", SHORT).await?;
    tokio::time::sleep(WAIT).await;
    let before = remaining(bench).await?;
    let [None, Some(of_long), Some(of_short)] = before[..] else {
        return Err(Violation::new(format!("of no lease, {LONG:?} and {SHORT:?} is left {before:?}")));
    };
    ensure!(of_short <= SHORT - WAIT && of_short > SHORT / 2, "of {SHORT:?} {of_short:?} is left");
    ensure!(of_long <= LONG - WAIT && of_long > LONG / 2, "of {LONG:?} {of_long:?} is left");
    ensure!(bench.store.renew(&short, revision, SHORT, patience()).await?, "the renewal came in time");
    match remaining(bench).await?[..] {
        [None, Some(_), Some(renewed)] if renewed > of_short && renewed <= SHORT => PASSED,
        ref after => Err(Violation::new(format!("after the renewal of what had {of_short:?}: {after:?}"))),
    }
}

/// What is left of the lease of each key of this case, in byte order.
async fn remaining(bench: &StoreBench) -> Result<Vec<Option<Duration>>, Violation> {
    let found = bench.store.list_with_leases(bench.prefix(), patience()).await?;
    let plain = found.iter().map(|LeasedEntry { key, entry, .. }| (key.clone(), entry.clone()));
    ensure!(plain.eq(bench.list(bench.prefix()).await?), "the two lists differ");
    Ok(found.into_iter().map(|found| found.remaining).collect())
}
