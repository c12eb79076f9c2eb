//! What the segment cache promises about opens, refreshes and lives.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure fails the test")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use support::{FakeDirectory, Says, descriptor, location, name, soon};
use te_metadata::{
    CachedSegment, Cause, Directory, DirectoryError, Keys, MemoryStore, Refreshed, Resolved, SegmentCache,
    SegmentState, Source, StoreDirectory,
};
use te_segment::Incarnation;

fn buffers(segment: &CachedSegment) -> usize {
    segment.snapshot().descriptor.buffers().len()
}

fn owner_says(found: te_segment::SegmentDescriptor) -> Resolved {
    Resolved::new(found, Source::Owner { address: "10.0.0.7:15893".parse().unwrap() })
}

#[track_caller]
fn suspect(segment: &CachedSegment) -> Cause {
    match segment.state() {
        SegmentState::Suspect { cause, .. } => cause,
        other => panic!("not suspect but {other:?}"),
    }
}

async fn eventually(what: impl Fn() -> bool) {
    let until = soon();
    while !what() {
        assert!(Instant::now() < until, "did not come about");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_opens_of_one_name_make_one_fetch() {
    let fake = FakeDirectory::held();
    fake.record(descriptor("b", 1, 1, 2));
    let cache = SegmentCache::new(fake.clone());
    let begun = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (cache, begun) = (cache.clone(), Arc::clone(&begun));
            tokio::spawn(async move {
                let of = name("b");
                let mut open = std::pin::pin!(cache.open(&of, soon()));
                // Polled once before it counts as begun.
                let first = std::future::poll_fn(|cx| std::task::Poll::Ready(open.as_mut().poll(cx))).await;
                begun.fetch_add(1, Ordering::SeqCst);
                assert!(first.is_pending());
                open.await
            })
        })
        .collect();
    eventually(|| begun.load(Ordering::SeqCst) == 64).await;
    fake.before.add_permits(64);
    let mut opened = Vec::new();
    for task in tasks {
        opened.push(task.await.unwrap().unwrap());
    }
    assert_eq!(fake.fetches(), 1);
    let first = opened[0].snapshot();
    assert!(opened.iter().all(|segment| Arc::ptr_eq(&segment.snapshot(), &first)));
}

#[tokio::test]
async fn opens_of_different_names_do_not_wait_for_each_other() {
    let fake = FakeDirectory::open();
    fake.say("a", Says::Hangs);
    fake.record(descriptor("b", 1, 1, 1));
    let cache = SegmentCache::new(fake.clone());
    let stuck = tokio::spawn({
        let cache = cache.clone();
        async move { cache.open(&name("a"), soon()).await }
    });
    eventually(|| fake.fetches() == 1).await;
    cache.open(&name("b"), soon()).await.unwrap();
    assert!(!stuck.is_finished());
    stuck.abort();
}

#[tokio::test]
async fn a_dropped_open_does_not_fail_the_others() {
    let fake = FakeDirectory::held();
    fake.record(descriptor("b", 1, 1, 1));
    let cache = SegmentCache::new(fake.clone());
    let open = |cache: SegmentCache| tokio::spawn(async move { cache.open(&name("b"), soon()).await });
    let first = open(cache.clone());
    eventually(|| fake.fetches() == 1).await;
    let second = open(cache.clone());
    first.abort();
    eventually(|| fake.fetches() == 2).await;
    fake.before.add_permits(1);
    second.await.unwrap().unwrap();
}

#[tokio::test]
async fn anothers_short_deadline_is_not_inherited() {
    let fake = FakeDirectory::held();
    fake.record(descriptor("b", 1, 1, 1));
    let cache = SegmentCache::new(fake.clone());
    let hasty = tokio::spawn({
        let cache = cache.clone();
        async move { cache.open(&name("b"), Instant::now() + Duration::from_millis(50)).await }
    });
    eventually(|| fake.fetches() == 1).await;
    let patient = tokio::spawn({
        let cache = cache.clone();
        async move { cache.open(&name("b"), soon()).await }
    });
    let error = hasty.await.unwrap().unwrap_err();
    assert!(matches!(error, DirectoryError::DeadlineExceeded { .. }), "{error}");
    fake.before.add_permits(1);
    patient.await.unwrap().unwrap();
}

#[tokio::test]
async fn open_ends_by_its_deadline_while_anothers_fetch_hangs() {
    let fake = FakeDirectory::held();
    let cache = SegmentCache::new(fake.clone());
    let hanging = tokio::spawn({
        let cache = cache.clone();
        async move { cache.open(&name("b"), soon()).await }
    });
    eventually(|| fake.fetches() == 1).await;
    let error = cache.open(&name("b"), Instant::now() + Duration::from_millis(20)).await.unwrap_err();
    assert!(matches!(error, DirectoryError::DeadlineExceeded { .. }), "{error}");
    hanging.abort();
}

/// META-01.
#[tokio::test]
async fn open_of_a_withdrawn_name_is_not_found_even_if_it_is_still_held() {
    let fake = FakeDirectory::open();
    fake.record(descriptor("b", 1, 1, 2));
    let cache = SegmentCache::new(fake.clone());
    let held = cache.open(&name("b"), soon()).await.unwrap();
    fake.say("b", Says::Nothing);
    let error = cache.open(&name("b"), soon()).await.unwrap_err();
    assert_eq!(error, DirectoryError::NotFound { name: name("b") });
    assert_eq!(suspect(&held), Cause::NotFound);
    assert_eq!(buffers(&held), 2);
}

/// META-01: a single failed refresh does not evict.
#[tokio::test]
async fn an_outage_expires_nothing() {
    let fake = FakeDirectory::open();
    fake.record(descriptor("b", 1, 1, 2));
    let cache = SegmentCache::new(fake.clone());
    let held = cache.open(&name("b"), soon()).await.unwrap();
    fake.say("b", Says::Outage);
    for _ in 0..3 {
        assert!(held.sync(soon()).await.unwrap_err().is_outage());
    }
    assert!(!suspect(&held).starts_expiry());
    assert_eq!(buffers(&held), 2);
    let again = cache.open(&name("b"), soon()).await.unwrap();
    assert_eq!(buffers(&again), 2);
    assert!(matches!(again.state(), SegmentState::Suspect { .. }));
}

#[tokio::test]
async fn an_outage_is_an_error_for_a_name_never_seen() {
    let fake = FakeDirectory::open();
    fake.say("b", Says::Outage);
    let cache = SegmentCache::new(fake.clone());
    assert!(cache.open(&name("b"), soon()).await.unwrap_err().is_outage());
}

#[tokio::test]
async fn an_outage_does_not_displace_the_directorys_statement() {
    let fake = FakeDirectory::open();
    fake.record(descriptor("b", 1, 1, 1));
    let cache = SegmentCache::new(fake.clone());
    let held = cache.open(&name("b"), soon()).await.unwrap();
    fake.say("b", Says::Nothing);
    held.sync(soon()).await.unwrap_err();
    let SegmentState::Suspect { since, .. } = held.state() else { panic!("not suspect") };
    fake.say("b", Says::Outage);
    held.sync(soon()).await.unwrap_err();
    assert_eq!(held.state(), SegmentState::Suspect { since, cause: Cause::NotFound });
}

/// SEG-09.
#[tokio::test]
async fn reopening_sees_current_buffers_without_a_flush() {
    let fake = FakeDirectory::open();
    fake.record(descriptor("b", 1, 1, 1));
    let cache = SegmentCache::new(fake.clone());
    drop(cache.open(&name("b"), soon()).await.unwrap());
    assert!(cache.lookup(&name("b")).is_none());
    fake.record(descriptor("b", 1, 2, 3));
    assert_eq!(buffers(&cache.open(&name("b"), soon()).await.unwrap()), 3);
}

/// SEG-09, with the first handle still there.
#[tokio::test]
async fn opening_again_refreshes_the_handles_of_the_same_life() {
    let fake = FakeDirectory::open();
    fake.record(descriptor("b", 1, 1, 1));
    let cache = SegmentCache::new(fake.clone());
    let first = cache.open(&name("b"), soon()).await.unwrap();
    let planned_with = first.snapshot();
    fake.record(descriptor("b", 1, 2, 3));
    let second = cache.open(&name("b"), soon()).await.unwrap();
    assert_eq!((buffers(&first), buffers(&second)), (3, 3));
    assert_eq!(planned_with.descriptor.buffers().len(), 1);
    assert!(second.snapshot().sequence > planned_with.sequence);
}

#[tokio::test]
async fn sync_says_what_it_found() {
    let fake = FakeDirectory::open();
    fake.record(descriptor("b", 1, 1, 1));
    let cache = SegmentCache::new(fake.clone());
    let segment = cache.open(&name("b"), soon()).await.unwrap();
    assert_eq!(segment.sync(soon()).await.unwrap(), Refreshed::Unchanged);
    fake.record(descriptor("b", 1, 2, 2));
    assert_eq!(segment.sync(soon()).await.unwrap(), Refreshed::Changed);
    fake.record(descriptor("b", 2, 1, 2));
    assert_eq!(segment.sync(soon()).await.unwrap(), Refreshed::Replaced);
}

/// A fetch that looked before the call began does not answer it.
#[tokio::test]
async fn sync_sees_what_was_published_before_it() {
    let fake = FakeDirectory::open();
    fake.record(descriptor("b", 1, 1, 1));
    let cache = SegmentCache::new(fake.clone());
    let segment = cache.open(&name("b"), soon()).await.unwrap();
    // Holds a fetch between looking and answering.
    fake.after.forget_permits(1_000_000);
    let early = tokio::spawn({
        let segment = segment.clone();
        async move { segment.sync(soon()).await }
    });
    eventually(|| fake.fetches() == 2 && fake.before.available_permits() == 1_000_000 - 2).await;
    fake.record(descriptor("b", 1, 2, 5));
    let late = tokio::spawn({
        let segment = segment.clone();
        async move {
            let refreshed = segment.sync(soon()).await;
            (refreshed, buffers(&segment))
        }
    });
    tokio::task::yield_now().await;
    fake.after.add_permits(10);
    early.await.unwrap().unwrap();
    assert_eq!(late.await.unwrap().1, 5);
}

/// META-02.
#[tokio::test]
async fn a_handle_of_an_earlier_life_never_sees_the_newer_owner() {
    let fake = FakeDirectory::open();
    fake.record(descriptor("b", 1, 1, 1));
    let cache = SegmentCache::new(fake.clone());
    let old = cache.open(&name("b"), soon()).await.unwrap();
    fake.record(descriptor("b", 2, 1, 4));
    let new = cache.open(&name("b"), soon()).await.unwrap();
    assert_eq!((buffers(&old), buffers(&new)), (1, 4));
    let SegmentState::Replaced { by, .. } = old.state() else { panic!("{:?}", old.state()) };
    assert_eq!(by, Some(Incarnation::from_bits(2)));
    assert_eq!(new.state(), SegmentState::Fresh);
    // Final, whatever is said later.
    old.confirm();
    old.invalidate(Cause::Announced);
    assert_eq!(old.sync(soon()).await.unwrap(), Refreshed::Replaced);
    assert!(matches!(old.state(), SegmentState::Replaced { .. }));
    assert_eq!(cache.lookup(&name("b")).unwrap().snapshot().sequence, new.snapshot().sequence);
}

#[tokio::test]
async fn invalidation_makes_suspect_and_the_next_refresh_ends_it() {
    let fake = FakeDirectory::open();
    fake.record(descriptor("b", 1, 1, 1));
    let cache = SegmentCache::new(fake.clone());
    let segment = cache.open(&name("b"), soon()).await.unwrap();
    let cause = Cause::Stale { detail: "connection reset".to_owned() };
    cache.invalidate(&name("b"), cause.clone());
    assert_eq!(suspect(&segment), cause);
    assert_eq!(cache.suspects().len(), 1);
    segment.sync(soon()).await.unwrap();
    assert_eq!(segment.state(), SegmentState::Fresh);
    assert!(cache.suspects().is_empty());
}

#[tokio::test]
async fn a_refresh_under_way_does_not_end_a_later_doubt() {
    let fake = FakeDirectory::open();
    fake.record(descriptor("b", 1, 1, 1));
    let cache = SegmentCache::new(fake.clone());
    let segment = cache.open(&name("b"), soon()).await.unwrap();
    fake.after.forget_permits(1_000_000);
    let refresh = tokio::spawn({
        let segment = segment.clone();
        async move { segment.sync(soon()).await }
    });
    eventually(|| fake.fetches() == 2).await;
    segment.invalidate(Cause::Announced);
    fake.after.add_permits(1);
    refresh.await.unwrap().unwrap();
    assert_eq!(suspect(&segment), Cause::Announced);
}

#[tokio::test]
async fn a_store_that_lags_does_not_take_back_what_the_owner_said() {
    let fake = FakeDirectory::open();
    fake.record(descriptor("b", 1, 1, 3));
    let cache = SegmentCache::new(fake.clone());
    let segment = cache.open(&name("b"), soon()).await.unwrap();
    assert_eq!(segment.learn(owner_says(descriptor("b", 1, 2, 2))), Refreshed::Changed);
    assert_eq!(segment.sync(soon()).await.unwrap(), Refreshed::Unchanged);
    assert_eq!(buffers(&segment), 2);
    assert_eq!(segment.state(), SegmentState::Fresh);
}

#[tokio::test]
async fn the_owners_answer_ends_the_suspicion() {
    let fake = FakeDirectory::open();
    fake.record(descriptor("b", 1, 1, 1));
    let cache = SegmentCache::new(fake.clone());
    let segment = cache.open(&name("b"), soon()).await.unwrap();
    fake.say("b", Says::Nothing);
    segment.sync(soon()).await.unwrap_err();
    segment.confirm();
    assert_eq!(segment.state(), SegmentState::Fresh);
    assert_eq!(segment.learn(owner_says(descriptor("b", 9, 1, 1))), Refreshed::Replaced);
}

#[tokio::test]
async fn an_expired_segment_is_no_longer_given_during_an_outage() {
    let fake = FakeDirectory::open();
    fake.record(descriptor("b", 1, 1, 1));
    let cache = SegmentCache::new(fake.clone());
    let segment = cache.open(&name("b"), soon()).await.unwrap();
    segment.expire();
    assert!(matches!(segment.state(), SegmentState::Gone { .. }));
    assert!(cache.lookup(&name("b")).is_none());
    fake.say("b", Says::Outage);
    assert!(cache.open(&name("b"), soon()).await.is_err());
    fake.record(descriptor("b", 1, 1, 1));
    cache.open(&name("b"), soon()).await.unwrap();
    assert_eq!(segment.state(), SegmentState::Fresh);
}

#[tokio::test]
async fn lookup_asks_nobody() {
    let fake = FakeDirectory::open();
    fake.record(descriptor("b", 1, 1, 1));
    let cache = SegmentCache::new(fake.clone());
    assert!(cache.lookup(&name("b")).is_none());
    let _open = cache.open(&name("b"), soon()).await.unwrap();
    assert!(cache.lookup(&name("b")).is_some());
    assert_eq!(fake.fetches(), 1);
}

/// META-09: the registry is copied on write, so a lookup finds a whole snapshot or none.
#[test]
fn lookups_during_opens_and_closes_find_whole_snapshots() {
    const NAMES: u128 = 8;
    let fake = FakeDirectory::open();
    fake.before.add_permits(usize::MAX >> 4);
    fake.after.add_permits(usize::MAX >> 4);
    for n in 0..NAMES {
        fake.record(descriptor(&format!("s{n}"), n, 1, n as u64 + 1));
    }
    let cache = SegmentCache::new(fake);
    let stop = AtomicBool::new(false);
    let check = |segment: &CachedSegment| {
        let snapshot = segment.snapshot();
        let life = snapshot.descriptor.incarnation().unwrap().bits();
        assert_eq!(segment.name().as_str(), format!("s{life}"));
        assert_eq!(snapshot.descriptor.buffers().len() as u128, life + 1);
    };
    let (mut opened, mut found) = (0u64, 0u64);
    std::thread::scope(|scope| {
        let (cache, stop, check) = (&cache, &stop, &check);
        let openers: Vec<_> = (0..32u128)
            .map(|n| {
                scope.spawn(move || {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                    let mut count = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let of = name(&format!("s{}", (n + u128::from(count)) % NAMES));
                        let segment = runtime.block_on(cache.open(&of, soon())).unwrap();
                        check(&segment);
                        count += 1u64;
                    }
                    count
                })
            })
            .collect();
        let lookers: Vec<_> = (0..32u128)
            .map(|n| {
                scope.spawn(move || {
                    let of = name(&format!("s{}", n % NAMES));
                    let mut count = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        if let Some(segment) = cache.lookup(&of) {
                            check(&segment);
                            segment.invalidate(Cause::Announced);
                            count += 1;
                        }
                    }
                    count
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(1500));
        stop.store(true, Ordering::Relaxed);
        opened = openers.into_iter().map(|thread| thread.join().unwrap()).sum();
        found = lookers.into_iter().map(|thread| thread.join().unwrap()).sum();
    });
    assert!(opened > 100 && found > 100, "{opened} opened, {found} found");
    assert!(cache.segments().is_empty(), "every handle is dropped, so nothing is kept");
}

fn followed() -> (Arc<StoreDirectory<MemoryStore>>, SegmentCache) {
    let directory = Arc::new(StoreDirectory::new(MemoryStore::new(), Keys::default()));
    let cache = SegmentCache::new(directory.clone());
    (directory, cache)
}

#[tokio::test]
async fn following_takes_over_a_change_by_itself() {
    let (directory, cache) = followed();
    directory.publish(Arc::new(descriptor("b", 1, 1, 1)), location(), soon()).await.unwrap();
    let segment = cache.open(&name("b"), soon()).await.unwrap();
    let following = tokio::spawn({
        let cache = cache.clone();
        async move { cache.follow(Duration::from_secs(1)).await }
    });
    directory.publish(Arc::new(descriptor("b", 1, 2, 2)), location(), soon()).await.unwrap();
    eventually(|| buffers(&segment) == 2).await;
    following.abort();
}

#[tokio::test]
async fn following_takes_a_deletion_as_the_directorys_statement() {
    let (directory, cache) = followed();
    directory.publish(Arc::new(descriptor("b", 1, 1, 1)), location(), soon()).await.unwrap();
    let segment = cache.open(&name("b"), soon()).await.unwrap();
    let following = tokio::spawn({
        let cache = cache.clone();
        async move { cache.follow(Duration::from_secs(1)).await }
    });
    // A change first, so that the watch is known to have begun.
    directory.publish(Arc::new(descriptor("b", 1, 2, 2)), location(), soon()).await.unwrap();
    eventually(|| buffers(&segment) == 2).await;
    directory.withdraw(&name("b"), soon()).await.unwrap();
    eventually(|| matches!(segment.state(), SegmentState::Suspect { .. })).await;
    assert_eq!(suspect(&segment), Cause::Deleted);
    assert_eq!(buffers(&segment), 2);
    following.abort();
}

#[tokio::test]
async fn following_a_directory_without_watch_ends_at_once() {
    let cache = SegmentCache::new(FakeDirectory::open());
    assert_eq!(cache.follow(Duration::from_secs(1)).await, Ok(()));
}
