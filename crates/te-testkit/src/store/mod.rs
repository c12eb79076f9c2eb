//! The conformance suite of metadata stores.

mod bench;
mod cases;
mod fault;
mod flaw;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use te_metadata::{BoxFuture, MetadataStore};

pub use fault::{FaultStore, Outage, StoreCall};
pub use flaw::{FlawedStore, StoreFlaw};

use crate::report::{Report, Verdict, Violation};
use crate::watchdog::within;
use bench::StoreBench;

const LIMIT: Duration = Duration::from_secs(90);

/// Opens the store that the suite tests.
pub trait StoreRig: Send + Sync + 'static {
    /// Another handle to the store. All handles of one rig lead to the same contents. Cases use keys of their own and
    /// do not clean up.
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn MetadataStore>, Violation>>;

    /// A handle to a store whose server does not answer, without which that is not tested.
    fn silent(&self) -> BoxFuture<'_, Result<Option<Arc<dyn MetadataStore>>, Violation>> {
        Box::pin(async { Ok(None) })
    }

    /// The lease that the cases use. Stores that count in seconds need two or more. Default 400 ms.
    fn lease(&self) -> Duration {
        Duration::from_millis(400)
    }

    /// How much longer than due a call may take and an event or an expiry may be late. Default 2 s.
    fn grace(&self) -> Duration {
        Duration::from_secs(2)
    }
}

type Run = for<'a> fn(&'a StoreBench) -> BoxFuture<'a, Result<Verdict, Violation>>;

/// One fact that holds for every metadata store.
#[derive(Clone, Copy)]
pub struct StoreCase {
    name: &'static str,
    run: Run,
}

/// Names all cases, once, for the table and for the macro that makes tests of them.
#[doc(hidden)]
#[macro_export]
macro_rules! __store_cases {
    ($callback:ident $($context:tt)*) => {
        $crate::$callback! {
            [$($context)*]
            basic::missing_keys_are_values
            basic::values_come_back_as_they_were
            basic::overwriting_replaces_and_revisions_grow
            basic::same_value_twice_is_no_conflict
            basic::deleted_keys_are_gone
            basic::limit_is_exact
            basic::late_calls_fail_at_once
            basic::silent_servers_cost_the_deadline
            condition::absent_puts_do_not_overwrite
            condition::stale_puts_do_not_overwrite
            condition::stale_deletes_do_nothing
            condition::one_of_many_claims_a_key
            condition::no_update_is_lost
            condition::concurrent_writers_do_not_mix
            keys::odd_keys_stay_apart
            keys::lists_are_exact_and_in_order
            watch::changes_are_seen_in_order
            watch::watches_see_their_prefix_only
            watch::dropped_waits_lose_nothing
            watch::every_watcher_sees_everything
            lease::leased_keys_expire
            lease::renewed_leases_last
            lease::renewal_needs_the_revision
            lease::unleased_put_ends_the_lease
            lease::expiry_is_watched
            lease::lists_say_what_is_left_of_leases
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __store_table {
    ([] $($module:ident::$case:ident)*) => {
        &[$(StoreCase { name: stringify!($case), run: |bench| Box::pin(cases::$module::$case(bench)) }),*]
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __store_tests {
    ([$rig:expr] $($module:ident::$case:ident)*) => {
        $(
            #[test]
            fn $case() {
                let rig: ::std::sync::Arc<dyn $crate::StoreRig> = ::std::sync::Arc::new($rig);
                let case = $crate::store_cases().iter().find(|case| case.name() == stringify!($case));
                match case.map(|case| case.run(&rig)) {
                    Some($crate::Verdict::Failed(violation)) => panic!("{violation}"),
                    Some($crate::Verdict::NotApplicable(why)) => eprintln!("not applicable: {why}"),
                    Some(_) => {}
                    None => panic!("the suite has no such case"),
                }
            }
        )*
    };
}

/// Makes one `#[test]` of each case of the store suite. Takes an expression that gives a [`StoreRig`](crate::StoreRig).
///
/// ```no_run
/// use std::sync::Arc;
/// use te_metadata::{BoxFuture, MemoryStore, MetadataStore};
/// use te_testkit::{StoreRig, Violation};
///
/// struct InMemory(MemoryStore);
///
/// impl StoreRig for InMemory {
///     fn open(&self) -> BoxFuture<'_, Result<Arc<dyn MetadataStore>, Violation>> {
///         Box::pin(async { Ok(Arc::new(self.0.clone()) as Arc<dyn MetadataStore>) })
///     }
/// }
///
/// te_testkit::store_conformance!(InMemory(MemoryStore::new()));
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! store_conformance {
    ($rig:expr) => {
        $crate::__store_cases! { __store_tests $rig }
    };
}

static CASES: &[StoreCase] = __store_cases! { __store_table };

/// All cases of the suite.
#[must_use]
pub fn store_cases() -> &'static [StoreCase] {
    CASES
}

impl StoreCase {
    /// The fact in words, joined by underscores.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Opens the store and checks the fact, on a runtime of its own. A case that hangs fails.
    #[must_use]
    pub fn run(&self, rig: &Arc<dyn StoreRig>) -> Verdict {
        let (run, rig) = (self.run, rig.clone());
        run_async(self.name, move || async move { run(&StoreBench::open(rig).await?).await })
    }
}

/// Runs an asynchronous case on a runtime and a thread of its own.
pub(crate) fn run_async<F>(name: &str, case: impl FnOnce() -> F + Send + 'static) -> Verdict
where
    F: Future<Output = Result<Verdict, Violation>>,
{
    let ran = within(LIMIT, name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(case())
    });
    match ran {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(violation)) => Verdict::Failed(violation),
        Err(stuck) => Verdict::Failed(stuck.into()),
    }
}

/// Runs the whole suite, one case after the other.
///
/// [`store_conformance!`](crate::store_conformance) makes a test of each case instead.
#[must_use]
pub fn store_report(rig: &Arc<dyn StoreRig>) -> Report {
    let mut report = Report::default();
    for case in store_cases() {
        let began = Instant::now();
        let verdict = case.run(rig);
        report.add(case.name, verdict, began.elapsed());
    }
    report
}
