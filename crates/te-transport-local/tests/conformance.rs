//! The transport contract, between two members of one group. Memory cannot be stalled or cut, so that cases which need that
//! are not applicable.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

use te_testkit::{Rig, Side};
use te_transport::Install;
use te_transport_local::{Local, LocalConfig, LocalGroup};

struct Copies(LocalGroup);

impl Rig for Copies {
    fn backend(&self, _side: Side) -> Box<dyn Install> {
        Box::new(Local::new(&self.0, LocalConfig::default()))
    }
}

te_testkit::transport_conformance!(Copies(LocalGroup::new()));
