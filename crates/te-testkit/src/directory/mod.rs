//! The conformance suite of directories.

mod cases;
mod flaw;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use te_metadata::{BoxFuture, Directory};
use te_segment::SegmentName;
use te_segment::wire::RpcLocation;

pub use flaw::{DirectoryFlaw, FlawedDirectory};

use crate::report::{Report, Verdict, Violation};
use crate::store::run_async;

/// An engine, as far as a directory sees one.
pub struct Publisher {
    /// The directory as this engine opened it.
    pub directory: Arc<dyn Directory>,
    /// The name it may publish.
    pub name: SegmentName,
    /// Where it answers.
    pub location: RpcLocation,
    /// What has to live as long as the engine: a listener, for example.
    pub keep: Box<dyn Any + Send + Sync>,
}

/// Opens the directory that the suite tests.
pub trait DirectoryRig: Send + Sync + 'static {
    /// Another engine, with a name of its own. `wish` is to be part of the name where the directory leaves a choice.
    fn publisher(&self, wish: &str) -> BoxFuture<'_, Result<Publisher, Violation>>;

    /// The directory as somebody opens it who publishes nothing.
    fn reader(&self) -> BoxFuture<'_, Result<Arc<dyn Directory>, Violation>>;

    /// Whether the directory can tell that a name is not published from getting no answer. Where the owner itself is
    /// asked, it cannot. Default yes.
    fn states_absence(&self) -> bool {
        true
    }

    /// How much longer than due a call may take and an event may be late. Default 2 s.
    fn grace(&self) -> Duration {
        Duration::from_secs(2)
    }
}

type Run = for<'a> fn(&'a dyn DirectoryRig) -> BoxFuture<'a, Result<Verdict, Violation>>;

/// One fact that holds for every directory.
#[derive(Clone, Copy)]
pub struct DirectoryCase {
    name: &'static str,
    run: Run,
}

/// Names all cases, once, for the table and for the macro that makes tests of them.
#[doc(hidden)]
#[macro_export]
macro_rules! __directory_cases {
    ($callback:ident $($context:tt)*) => {
        $crate::$callback! {
            [$($context)*]
            published_segments_are_resolved
            buffers_survive_publication
            locations_are_found
            unknown_names_are_told_from_outages
            publishing_again_replaces
            withdrawn_segments_are_gone
            odd_names_stay_apart
            unfit_names_are_refused
            oversized_records_are_refused_whole
            late_calls_fail_at_once
            concurrent_engines_do_not_mix
            changes_are_watched
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __directory_table {
    ([] $($case:ident)*) => {
        &[$(DirectoryCase { name: stringify!($case), run: |rig| Box::pin(cases::$case(rig)) }),*]
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __directory_tests {
    ([$rig:expr] $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                let rig: ::std::sync::Arc<dyn $crate::DirectoryRig> = ::std::sync::Arc::new($rig);
                let case = $crate::directory_cases().iter().find(|case| case.name() == stringify!($case));
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

/// Makes one `#[test]` of each case of the directory suite. Takes an expression that gives a
/// [`DirectoryRig`](crate::DirectoryRig).
#[macro_export]
macro_rules! directory_conformance {
    ($rig:expr) => {
        $crate::__directory_cases! { __directory_tests $rig }
    };
}

static CASES: &[DirectoryCase] = __directory_cases! { __directory_table };

/// All cases of the suite.
#[must_use]
pub fn directory_cases() -> &'static [DirectoryCase] {
    CASES
}

impl DirectoryCase {
    /// The fact in words, joined by underscores.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Checks the fact, on a runtime of its own. A case that hangs fails.
    #[must_use]
    pub fn run(&self, rig: &Arc<dyn DirectoryRig>) -> Verdict {
        let (run, rig) = (self.run, rig.clone());
        run_async(self.name, move || async move { run(&*rig).await })
    }
}

/// Runs the whole suite, one case after the other.
///
/// [`directory_conformance!`](crate::directory_conformance) makes a test of each case instead.
#[must_use]
pub fn directory_report(rig: &Arc<dyn DirectoryRig>) -> Report {
    let mut report = Report::default();
    for case in directory_cases() {
        let began = Instant::now();
        let verdict = case.run(rig);
        report.add(case.name, verdict, began.elapsed());
    }
    report
}
