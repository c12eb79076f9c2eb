//! The conformance suite of transports.

pub(crate) mod bench;
mod cases;
mod claims;
mod rig;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bench::Bench;
pub(crate) use rig::redescribe_buffers;
pub use rig::{Profile, Rig, Side, over_rail, redescribe, tcp_link};

use crate::report::{Report, Verdict, Violation};
use crate::watchdog::within;

/// How long one case may take. Far more than it needs: what takes longer hangs.
const LIMIT: Duration = Duration::from_secs(90);

type Run = fn(&Bench) -> Result<Verdict, Violation>;

/// One fact that holds for every transport.
#[derive(Clone, Copy)]
pub struct TransportCase {
    name: &'static str,
    run: Run,
}

/// Names all cases, once, for the table and for the macro that makes tests of them.
#[doc(hidden)]
#[macro_export]
macro_rules! __transport_cases {
    ($callback:ident $($context:tt)*) => {
        $crate::$callback! {
            [$($context)*]
            data::reads_of_every_size_arrive
            data::writes_of_every_size_arrive
            data::mixed_batches_arrive
            data::batches_arrive_in_both_submit_modes
            data::many_threads_share_one_path
            data::done_means_applied
            data::source_may_change_after_completion
            data::engine_reaches_itself
            refusal::ranges_outside_of_regions_are_refused
            refusal::ranges_across_regions_are_refused
            refusal::access_is_enforced
            refusal::reserved_regions_are_not_served
            refusal::unregistered_memory_is_not_served
            refusal::path_works_after_a_refusal
            refusal::missing_operations_are_unsupported
            refusal::earlier_generations_are_refused
            refusal::earlier_lives_are_refused
            interrupt::cancelled_slices_resolve_and_rest
            interrupt::cancelled_transfers_stop_midway
            interrupt::queued_slices_are_cancelled_alone
            interrupt::cancelled_batches_are_not_begun
            interrupt::silent_peers_time_out
            interrupt::late_batches_are_not_begun
            interrupt::caller_runs_ends_by_the_deadline
            interrupt::submit_does_not_wait_for_a_silent_peer
            interrupt::silent_peers_delay_nobody_else
            interrupt::cut_links_fail_and_recover
            lifecycle::dead_peers_fail_everything_in_flight
            lifecycle::withdrawal_ends_serving
            lifecycle::local_memory_can_be_withdrawn
            lifecycle::shutdown_resolves_everything
            lifecycle::shutdown_ends_serving
            lifecycle::dropped_paths_resolve_everything
            lifecycle::unregister_can_be_repeated
            lifecycle::assessment_and_path_agree
            lifecycle::published_descriptor_opens_a_path
            lifecycle::idle_paths_have_nothing_in_flight
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __transport_table {
    ([] $($module:ident::$case:ident)*) => {
        &[$(TransportCase { name: stringify!($case), run: cases::$module::$case }),*]
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __transport_tests {
    ([$rig:expr] $($module:ident::$case:ident)*) => {
        $(
            #[test]
            fn $case() {
                let rig: ::std::sync::Arc<dyn $crate::Rig> = ::std::sync::Arc::new($rig);
                let case = $crate::transport_cases().iter().find(|case| case.name() == stringify!($case));
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

/// Makes one `#[test]` of each case of the transport suite. Takes an expression that gives a [`Rig`](crate::Rig).
///
/// ```no_run
/// use te_segment::{SegmentDescriptor, TransportKind};
/// use te_testkit::{CopyTransport, Fabric, Link, Rig, Side, Violation};
/// use te_transport::Install;
///
/// struct Copies(Fabric);
///
/// impl Rig for Copies {
///     fn backend(&self, _side: Side) -> Box<dyn Install> {
///         Box::new(CopyTransport::new(&self.0, TransportKind::SHM))
///     }
///
///     fn link(&self, far: &SegmentDescriptor) -> Result<Option<Link>, Violation> {
///         self.0.link(&TransportKind::SHM, far).map(Some)
///     }
/// }
///
/// te_testkit::transport_conformance!(Copies(Fabric::new()));
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! transport_conformance {
    ($rig:expr) => {
        $crate::__transport_cases! { __transport_tests $rig }
    };
}

static CASES: &[TransportCase] = __transport_cases! { __transport_table };

/// All cases of the suite.
#[must_use]
pub fn transport_cases() -> &'static [TransportCase] {
    CASES
}

impl TransportCase {
    /// The fact in words, joined by underscores.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Builds both sides and checks the fact. A case that hangs fails.
    #[must_use]
    pub fn run(&self, rig: &Arc<dyn Rig>) -> Verdict {
        let (run, rig) = (self.run, rig.clone());
        match within(LIMIT, self.name, move || run(&Bench::new(&rig)?)) {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(violation)) => Verdict::Failed(violation),
            Err(stuck) => Verdict::Failed(stuck.into()),
        }
    }
}

/// Runs the whole suite, one case after the other.
///
/// [`transport_conformance!`](crate::transport_conformance) makes a test of each case instead.
#[must_use]
pub fn transport_report(rig: &Arc<dyn Rig>) -> Report {
    let mut report = Report::default();
    for case in transport_cases() {
        let began = Instant::now();
        let verdict = case.run(rig);
        report.add(case.name, verdict, began.elapsed());
    }
    report
}
