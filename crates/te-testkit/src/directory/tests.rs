//! The suite accepts the directory over a store, and each case refuses a directory that breaks its fact.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Instant;

use te_metadata::{
    BoxFuture, Directory, DirectoryError, Keys, MemoryStore, NameRule, Resolved, StoreDirectory,
};
use te_segment::wire::RpcLocation;
use te_segment::{Endpoint, SegmentDescriptor, SegmentName};

use super::{DirectoryFlaw, DirectoryRig, FlawedDirectory, Publisher, directory_cases};
use crate::{Verdict, Violation};

const LIMIT: usize = 50_000;

struct Shared {
    directory: Arc<dyn Directory>,
    ports: AtomicU16,
}

impl Shared {
    fn over(directory: impl Directory + 'static) -> Self {
        Self { directory: Arc::new(directory), ports: AtomicU16::new(20_000) }
    }

    fn honest() -> Self {
        Self::over(StoreDirectory::new(MemoryStore::with_max_value(LIMIT), Keys::default()))
    }

    fn addressed() -> Self {
        Self::over(AddressNames(Self::honest().directory))
    }

    fn flawed(flaw: DirectoryFlaw) -> Self {
        Self::over(FlawedDirectory::new(Self::honest().directory, flaw))
    }
}

impl DirectoryRig for Shared {
    fn publisher(&self, wish: &str) -> BoxFuture<'_, Result<Publisher, Violation>> {
        let port = self.ports.fetch_add(2, Ordering::Relaxed);
        let name = match self.directory.name_rule() {
            NameRule::Any => wish.to_owned(),
            _ => format!("127.0.0.1:{port}"),
        };
        let directory = self.directory.clone();
        Box::pin(async move {
            let location: Endpoint = format!("127.0.0.1:{port}").parse()?;
            Ok(Publisher {
                directory,
                name: SegmentName::new(&name)?,
                location: location.into(),
                keep: Box::new(()),
            })
        })
    }

    fn reader(&self) -> BoxFuture<'_, Result<Arc<dyn Directory>, Violation>> {
        Box::pin(async { Ok(self.directory.clone()) })
    }
}

mod honest {
    use super::*;
    crate::directory_conformance!(Shared::honest());
}

mod honest_with_addresses_as_names {
    use super::*;
    crate::directory_conformance!(Shared::addressed());
}

fn run(name: &str, rig: Shared) -> Verdict {
    let case = directory_cases().iter().find(|case| case.name() == name).expect("a case of this name");
    case.run(&(Arc::new(rig) as Arc<dyn DirectoryRig>))
}

/// Each flaw with the cases that must refuse it.
macro_rules! refuses {
    ($($test:ident: $flaw:ident => $($case:ident),+;)*) => {
        $(
            #[test]
            fn $test() {
                for case in [$(stringify!($case)),+] {
                    let flaw = DirectoryFlaw::$flaw;
                    let verdict = run(case, Shared::flawed(flaw));
                    assert!(matches!(verdict, Verdict::Failed(_)), "{case} accepts {flaw:?}: {verdict:?}");
                }
            }
        )*

        /// The flaws in the table and the cases that refuse at least one of them.
        fn table() -> (Vec<DirectoryFlaw>, HashSet<&'static str>) {
            (vec![$(DirectoryFlaw::$flaw),*], HashSet::from([$($(stringify!($case)),+),*]))
        }
    };
}

refuses! {
    endless_cache_is_noticed: CachesForEver => publishing_again_replaces, concurrent_engines_do_not_mix;
    omitted_tcp_is_noticed: OmitsTcp => published_segments_are_resolved;
    lost_buffer_is_noticed: LosesBuffers => buffers_survive_publication;
    wrong_location_is_noticed: MislocatesEngines => locations_are_found, concurrent_engines_do_not_mix;
    absence_as_outage_is_noticed: AbsenceIsOutage => unknown_names_are_told_from_outages, withdrawn_segments_are_gone;
    single_publication_is_noticed: PublishesOnce => publishing_again_replaces;
    kept_name_is_noticed: KeepsWithdrawn => withdrawn_segments_are_gone, changes_are_watched;
    single_withdrawal_is_noticed: WithdrawsOnce => withdrawn_segments_are_gone;
    folded_case_is_noticed: FoldsCase => odd_names_stay_apart;
    any_name_is_noticed: TakesAnyName => unfit_names_are_refused;
    dropped_record_is_noticed: DropsOversized => oversized_records_are_refused_whole;
    ignored_deadline_is_noticed: IgnoresDeadline => late_calls_fail_at_once;
    mixed_engines_are_noticed: MixesEngines => concurrent_engines_do_not_mix, odd_names_stay_apart;
    hidden_removal_is_noticed: HidesRemovals => changes_are_watched;
}

#[test]
fn every_case_refuses_some_flaw() {
    let (_, refusing) = table();
    let idle: Vec<_> =
        directory_cases().iter().map(|case| case.name()).filter(|name| !refusing.contains(name)).collect();
    assert!(idle.is_empty(), "cases that nothing shows to be able to fail: {idle:?}");
}

#[test]
fn every_flaw_is_refused_by_some_case() {
    let (tried, _) = table();
    let missed: Vec<_> = DirectoryFlaw::ALL.iter().filter(|flaw| !tried.contains(flaw)).collect();
    assert!(missed.is_empty(), "flaws that no case is known to notice: {missed:?}");
}

/// A directory whose names have to be addresses, around one that takes any.
struct AddressNames(Arc<dyn Directory>);

impl Directory for AddressNames {
    fn scheme(&self) -> &str {
        self.0.scheme()
    }

    fn max_value(&self) -> Option<usize> {
        self.0.max_value()
    }

    fn name_rule(&self) -> NameRule {
        NameRule::HostPort
    }

    fn publish(
        &self,
        descriptor: Arc<SegmentDescriptor>,
        location: RpcLocation,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<(), DirectoryError>> {
        self.0.publish(descriptor, location, deadline)
    }

    fn withdraw<'a>(
        &'a self,
        name: &'a SegmentName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<(), DirectoryError>> {
        self.0.withdraw(name, deadline)
    }

    fn resolve<'a>(
        &'a self,
        name: &'a SegmentName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Resolved, DirectoryError>> {
        Box::pin(async move {
            self.name_rule().check(name)?;
            self.0.resolve(name, deadline).await
        })
    }

    fn locate<'a>(
        &'a self,
        name: &'a SegmentName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Endpoint, DirectoryError>> {
        Box::pin(async move {
            self.name_rule().check(name)?;
            self.0.locate(name, deadline).await
        })
    }
}
