//! The suite accepts the in-memory store, and each case refuses a store that breaks its fact.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use te_metadata::{BoxFuture, Key, MemoryStore, MetadataStore, PutRequest, StoreErrorKind, StoreOperation};

use super::{FaultStore, FlawedStore, Outage, StoreFlaw, StoreRig, store_cases};
use crate::{Verdict, Violation};

const LIMIT: usize = 100_000;

type Opened<T> = BoxFuture<'static, Result<T, Violation>>;

struct InMemory {
    store: Arc<dyn MetadataStore>,
    silent: Arc<dyn MetadataStore>,
}

impl InMemory {
    fn honest() -> Self {
        let silent = FaultStore::new(MemoryStore::new());
        silent.set(Outage::Silent);
        Self { store: Arc::new(MemoryStore::with_max_value(LIMIT)), silent: Arc::new(silent) }
    }

    fn flawed(flaw: StoreFlaw) -> Self {
        let store = FlawedStore::new(MemoryStore::new(), flaw, Some(LIMIT));
        let honest = Self::honest();
        let silent =
            if flaw == StoreFlaw::InventsAnswers { Arc::new(MemoryStore::new()) } else { honest.silent };
        Self { store: Arc::new(store), silent }
    }
}

impl StoreRig for InMemory {
    fn open(&self) -> Opened<Arc<dyn MetadataStore>> {
        let store = self.store.clone();
        Box::pin(async { Ok(store) })
    }

    fn silent(&self) -> Opened<Option<Arc<dyn MetadataStore>>> {
        let silent = self.silent.clone();
        Box::pin(async { Ok(Some(silent)) })
    }
}

mod honest {
    use super::*;
    crate::store_conformance!(InMemory::honest());
}

fn run(name: &str, flaw: StoreFlaw) -> Verdict {
    let case = store_cases().iter().find(|case| case.name() == name).expect("a case of this name");
    case.run(&(Arc::new(InMemory::flawed(flaw)) as Arc<dyn StoreRig>))
}

/// Each flaw with the cases that must refuse it.
macro_rules! refuses {
    ($($test:ident: $flaw:ident => $($case:ident),+;)*) => {
        $(
            #[test]
            fn $test() {
                for case in [$(stringify!($case)),+] {
                    let verdict = run(case, StoreFlaw::$flaw);
                    assert!(matches!(verdict, Verdict::Failed(_)), "{case} accepts {:?}: {verdict:?}", StoreFlaw::$flaw);
                }
            }
        )*

        /// The flaws in the table and the cases that refuse at least one of them.
        fn table() -> (Vec<StoreFlaw>, HashSet<&'static str>) {
            (vec![$(StoreFlaw::$flaw),*], HashSet::from([$($(stringify!($case)),+),*]))
        }
    };
}

refuses! {
    failure_on_missing_is_noticed: FailsOnMissing => missing_keys_are_values, deleted_keys_are_gone;
    trimmed_value_is_noticed: TrimsValues => values_come_back_as_they_were;
    cached_read_is_noticed: CachesReads => overwriting_replaces_and_revisions_grow, deleted_keys_are_gone;
    forgotten_revision_is_noticed: ForgetsRevisions =>
        overwriting_replaces_and_revisions_grow, lists_are_exact_and_in_order, no_update_is_lost;
    refused_overwrite_is_noticed: RefusesOverwrite => same_value_twice_is_no_conflict;
    kept_key_is_noticed: KeepsDeleted => deleted_keys_are_gone, odd_keys_stay_apart;
    early_limit_is_noticed: LimitsTooEarly => limit_is_exact;
    ignored_limit_is_noticed: IgnoresLimit => limit_is_exact;
    ignored_deadline_is_noticed: IgnoresDeadline => late_calls_fail_at_once;
    invented_answer_is_noticed: InventsAnswers => silent_servers_cost_the_deadline;
    ignored_absence_is_noticed: IgnoresAbsence => absent_puts_do_not_overwrite, one_of_many_claims_a_key;
    ignored_revision_is_noticed: IgnoresRevision => stale_puts_do_not_overwrite, stale_deletes_do_nothing;
    lost_update_is_noticed: LosesUpdates => no_update_is_lost;
    mixed_keys_are_noticed: MixesKeys => concurrent_writers_do_not_mix;
    folded_case_is_noticed: FoldsCase => odd_keys_stay_apart, lists_are_exact_and_in_order;
    decoded_key_is_noticed: DecodesKeys => odd_keys_stay_apart;
    shortened_key_is_noticed: ShortensKeys => odd_keys_stay_apart;
    unsorted_list_is_noticed: ListsUnsorted => lists_are_exact_and_in_order;
    too_long_list_is_noticed: ListsTooMuch => lists_are_exact_and_in_order;
    hidden_deletion_is_noticed: HidesDeletions => changes_are_seen_in_order;
    replayed_change_is_noticed: ReplaysOldChanges => changes_are_seen_in_order;
    too_wide_watch_is_noticed: WatchesTooMuch => watches_see_their_prefix_only;
    event_lost_on_drop_is_noticed: LosesOnDrop => dropped_waits_lose_nothing;
    split_events_are_noticed: SplitsEvents => every_watcher_sees_everything;
    endless_lease_is_noticed: NeverExpires => leased_keys_expire, renewed_leases_last;
    short_lease_is_noticed: ExpiresAtOnce => leased_keys_expire;
    forgotten_renewal_is_noticed: ForgetsRenewals => renewed_leases_last, lists_say_what_is_left_of_leases;
    renewal_of_anything_is_noticed: RenewsAnything => renewal_needs_the_revision;
    kept_lease_is_noticed: KeepsLease => unleased_put_ends_the_lease;
    quiet_expiry_is_noticed: ExpiresQuietly => expiry_is_watched;
    hidden_lease_is_noticed: HidesLeases => lists_say_what_is_left_of_leases;
    whole_lease_is_noticed: ListsWholeLeases => lists_say_what_is_left_of_leases;
}

#[test]
fn every_case_refuses_some_flaw() {
    let (_, refusing) = table();
    let idle: Vec<_> =
        store_cases().iter().map(|case| case.name()).filter(|name| !refusing.contains(name)).collect();
    assert!(idle.is_empty(), "cases that nothing shows to be able to fail: {idle:?}");
}

#[test]
fn every_flaw_is_refused_by_some_case() {
    let (tried, _) = table();
    let missed: Vec<_> = StoreFlaw::ALL.iter().filter(|flaw| !tried.contains(flaw)).collect();
    assert!(missed.is_empty(), "flaws that no case is known to notice: {missed:?}");
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(100)
}

fn put(key: &str) -> PutRequest {
    PutRequest::new(Key::new(key), "value".to_owned())
}

#[tokio::test]
async fn store_that_is_down_fails_at_once() {
    let store = FaultStore::new(MemoryStore::new());
    store.set(Outage::Down);
    let error = store.put(put("a"), Instant::now() + Duration::from_secs(600)).await.unwrap_err();
    assert!(matches!(error.kind, StoreErrorKind::Unavailable { .. }), "{error}");
    store.set(Outage::None);
    assert_eq!(store.get(&Key::new("a"), soon()).await, Ok(None));
}

#[tokio::test]
async fn silent_store_answers_when_it_is_back() {
    let store = FaultStore::new(MemoryStore::new());
    store.set(Outage::Silent);
    let error = store.get(&Key::new("a"), soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::DeadlineExceeded);
    let waiting = {
        let store = store.clone();
        tokio::spawn(async move { store.put(put("a"), Instant::now() + Duration::from_secs(600)).await })
    };
    tokio::task::yield_now().await;
    store.set(Outage::None);
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn write_with_a_lost_answer_takes_effect() {
    let store = FaultStore::new(MemoryStore::new());
    store.set(Outage::LosesAnswers);
    store.put(put("a"), soon()).await.unwrap_err();
    assert_eq!(store.get(&Key::new("a"), soon()).await.unwrap().unwrap().value, "value");
}

#[tokio::test]
async fn slow_store_answers_late_or_not_in_time() {
    let store = FaultStore::new(MemoryStore::new());
    store.set(Outage::Slow(Duration::from_millis(30)));
    let began = Instant::now();
    store.put(put("a"), Instant::now() + Duration::from_secs(600)).await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(30));
    store.set(Outage::Slow(Duration::from_secs(600)));
    let error = store.get(&Key::new("a"), soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::DeadlineExceeded);
}

#[tokio::test]
async fn calls_are_recorded_in_order() {
    let store = FaultStore::new(MemoryStore::new());
    store.put(put("a"), soon()).await.unwrap();
    store.get(&Key::new("b"), soon()).await.unwrap();
    let calls: Vec<_> = store.calls().into_iter().map(|call| (call.operation, call.key)).collect();
    assert_eq!(calls, [(StoreOperation::Put, "a".to_owned()), (StoreOperation::Get, "b".to_owned())]);
    assert_eq!(store.count(StoreOperation::Get), 1);
}
