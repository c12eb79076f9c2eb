//! The suite accepts the honest transport, and each case refuses a transport that breaks its fact.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use te_segment::{SegmentDescriptor, TransportKind};
use te_transport::Install;

use super::{Profile, Rig, Side, transport_cases};
use crate::{CopyTransport, Fabric, Flaw, Link, Verdict, Violation};

/// Copy transports, honest or not.
struct Copies {
    fabric: Fabric,
    kind: TransportKind,
    pace: Duration,
    chunk: u64,
    max_slice: u64,
    flaw: Option<Flaw>,
}

impl Copies {
    fn new(kind: TransportKind) -> Self {
        Self {
            fabric: Fabric::new(),
            kind,
            pace: Duration::ZERO,
            chunk: 64 << 10,
            max_slice: 1 << 40,
            flaw: None,
        }
    }

    fn flawed(flaw: Flaw) -> Self {
        let max_slice = if flaw == Flaw::IgnoresLimits { 100_000 } else { 1 << 40 };
        let kind = TransportKind::SHM;
        let (chunk, pace) = match flaw {
            // What shows only when a transfer is interrupted needs one that lasts longer than a busy machine keeps
            // the interrupting thread waiting.
            Flaw::DeniesEffect | Flaw::IgnoresCancel => (4096, Duration::from_micros(100)),
            _ => (64 << 10, Duration::ZERO),
        };
        Self { flaw: Some(flaw), max_slice, chunk, pace, ..Self::new(kind) }
    }
}

impl Rig for Copies {
    fn backend(&self, _side: Side) -> Box<dyn Install> {
        let honest = CopyTransport::new(&self.fabric, self.kind.clone()).with_pace(self.chunk, self.pace);
        let honest = honest.with_capabilities(|offered| offered.max_slice = self.max_slice);
        Box::new(match self.flaw {
            Some(flaw) => honest.with_flaw(flaw),
            None => honest,
        })
    }

    fn profile(&self) -> Profile {
        Profile { grace: Duration::from_secs(2), ..Profile::default() }
    }

    fn link(&self, far: &SegmentDescriptor) -> Result<Option<Link>, Violation> {
        self.fabric.link(&self.kind, far).map(Some)
    }
}

fn run(name: &str, rig: Copies) -> Verdict {
    let case = transport_cases().iter().find(|case| case.name() == name).expect("a case of this name");
    case.run(&(Arc::new(rig) as Arc<dyn Rig>))
}

mod honest {
    use super::*;
    crate::transport_conformance!(Copies::new(TransportKind::SHM));
}

/// Slow enough that interruptions find transfers in the middle.
mod honest_and_slow {
    use super::*;
    crate::transport_conformance!(Copies {
        chunk: 32 << 10,
        pace: Duration::from_micros(100),
        ..Copies::new(TransportKind::RDMA)
    });
}

/// Each flaw with the cases that must refuse it.
macro_rules! refuses {
    ($($test:ident: $flaw:ident => $($case:ident),+;)*) => {
        $(
            #[test]
            fn $test() {
                for case in [$(stringify!($case)),+] {
                    // Some flaws show only if an interruption falls into the middle of a slice, which it nearly
                    // always does: three tries.
                    let noticed = (0..3).any(|_| matches!(run(case, Copies::flawed(Flaw::$flaw)), Verdict::Failed(_)));
                    assert!(noticed, "{case} accepts {:?}", Flaw::$flaw);
                }
            }
        )*

        /// The flaws in the table and the cases that refuse at least one of them.
        fn table() -> (Vec<Flaw>, HashSet<&'static str>) {
            (vec![$(Flaw::$flaw),*], HashSet::from([$($(stringify!($case)),+),*]))
        }
    };
}

refuses! {
    early_done_is_noticed: DoneBeforeApplied =>
        done_means_applied, reads_of_every_size_arrive, writes_of_every_size_arrive, mixed_batches_arrive,
        source_may_change_after_completion, many_threads_share_one_path, batches_arrive_in_both_submit_modes;
    dropped_token_is_noticed: DropsToken =>
        mixed_batches_arrive, cancelled_slices_resolve_and_rest, dropped_paths_resolve_everything;
    lost_slice_is_noticed: LosesSlice =>
        cancelled_batches_are_not_begun, late_batches_are_not_begun, silent_peers_time_out;
    wrong_count_is_noticed: MiscountsBytes => engine_reaches_itself, published_descriptor_opens_a_path;
    missing_last_byte_is_noticed: Truncates => reads_of_every_size_arrive, writes_of_every_size_arrive;
    shuffled_chunks_are_noticed: ShuffleChunks => reads_of_every_size_arrive, done_means_applied;
    byte_too_many_is_noticed: Overruns =>
        reads_of_every_size_arrive, writes_of_every_size_arrive, mixed_batches_arrive;
    wrong_direction_is_noticed: SwapsDirection => reads_of_every_size_arrive, writes_of_every_size_arrive;
    ignored_access_is_noticed: IgnoresAccess => access_is_enforced, path_works_after_a_refusal;
    merged_regions_are_noticed: MergesRegions => ranges_across_regions_are_refused;
    clipped_range_is_noticed: ClipsRange => ranges_outside_of_regions_are_refused;
    served_reservation_is_noticed: ServesReserved => reserved_regions_are_not_served;
    served_stranger_is_noticed: ServesAnything =>
        unregistered_memory_is_not_served, ranges_outside_of_regions_are_refused;
    leaked_remote_hold_is_noticed: LeaksRemoteHold =>
        withdrawal_ends_serving, local_memory_can_be_withdrawn, shutdown_ends_serving;
    leaked_local_hold_is_noticed: LeaksLocalHold => local_memory_can_be_withdrawn, shutdown_resolves_everything;
    misnamed_refusal_is_noticed: MisnamesRefusal =>
        access_is_enforced, ranges_outside_of_regions_are_refused, withdrawal_ends_serving;
    death_by_refusal_is_noticed: DiesOfRefusal => path_works_after_a_refusal;
    ignored_size_limit_is_noticed: IgnoresLimits => missing_operations_are_unsupported;
    ignored_cancel_is_noticed: IgnoresCancel =>
        cancelled_slices_resolve_and_rest, cancelled_transfers_stop_midway, cancelled_batches_are_not_begun;
    ignored_queued_cancel_is_noticed: IgnoresQueuedCancel => queued_slices_are_cancelled_alone;
    ignored_deadline_is_noticed: IgnoresDeadline => silent_peers_time_out, late_batches_are_not_begun;
    copy_after_failure_is_noticed: CopiesAfterFailure =>
        cancelled_slices_resolve_and_rest, silent_peers_time_out, caller_runs_ends_by_the_deadline;
    denied_effect_is_noticed: DeniesEffect => cancelled_transfers_stop_midway;
    failure_without_path_is_noticed: OmitsPath => access_is_enforced, cancelled_slices_resolve_and_rest;
    blocking_submit_is_noticed: BlocksInSubmit => submit_does_not_wait_for_a_silent_peer;
    shared_worker_is_noticed: SharesWorker => silent_peers_delay_nobody_else;
    ignored_death_is_noticed: IgnoresPeerDeath => dead_peers_fail_everything_in_flight;
    dead_path_is_noticed: NeverRecovers => cut_links_fail_and_recover;
    abandoning_shutdown_is_noticed: AbandonsAtShutdown => shutdown_resolves_everything;
    late_acceptance_is_noticed: AcceptsAfterShutdown => shutdown_resolves_everything;
    single_shutdown_is_noticed: ShutsDownOnce => shutdown_resolves_everything;
    single_withdrawal_is_noticed: UnregistersOnce => unregister_can_be_repeated;
    ignored_generation_is_noticed: IgnoresGeneration => earlier_generations_are_refused;
    ignored_incarnation_is_noticed: IgnoresIncarnation => earlier_lives_are_refused;
    blind_assessment_is_noticed: AssessesEverything => assessment_and_path_agree;
    busy_idle_path_is_noticed: MiscountsInFlight => idle_paths_have_nothing_in_flight;
}

#[test]
fn every_case_refuses_some_flaw() {
    let (_, refusing) = table();
    let idle: Vec<_> =
        transport_cases().iter().map(|case| case.name()).filter(|name| !refusing.contains(name)).collect();
    assert!(idle.is_empty(), "cases that nothing shows to be able to fail: {idle:?}");
}

#[test]
fn every_flaw_is_refused_by_some_case() {
    let (tried, _) = table();
    let missed: Vec<_> = Flaw::ALL.iter().filter(|flaw| !tried.contains(flaw)).collect();
    assert!(missed.is_empty(), "flaws that no case is known to notice: {missed:?}");
}

#[test]
fn refused_sizes_are_unsupported() {
    let rig = Copies { max_slice: 100_000, ..Copies::new(TransportKind::SHM) };
    assert_eq!(run("missing_operations_are_unsupported", rig), Verdict::Passed);
}

#[test]
fn case_that_does_not_apply_says_so() {
    struct NoLink(Copies);
    impl Rig for NoLink {
        fn backend(&self, side: Side) -> Box<dyn Install> {
            self.0.backend(side)
        }
    }
    let rig: Arc<dyn Rig> = Arc::new(NoLink(Copies::new(TransportKind::SHM)));
    let case =
        transport_cases().iter().find(|case| case.name() == "silent_peers_time_out").expect("the case");
    assert!(matches!(case.run(&rig), Verdict::NotApplicable(_)));
}
