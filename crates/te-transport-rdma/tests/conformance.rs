//! The transport contract, between engines whose NICs are of one fabric in this process. Two NICs on each side: the second
//! ones are the controlled link, the first ones are everything else.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

use std::sync::{Arc, Mutex};

use te_segment::SegmentDescriptor;
use te_sys_verbs::fake::{Fabric, Nic};
use te_testkit::{Link, LinkControl, Profile, Rig, Side, Violation, over_rail};
use te_transport::Install;
use te_transport_rdma::{Rdma, RdmaConfig};

struct Fakes {
    fabric: Arc<Fabric>,
    /// The far side as it describes itself.
    far: Mutex<Option<SegmentDescriptor>>,
}

struct Wire(Arc<Fabric>);

impl LinkControl for Wire {
    fn stall(&self) {
        self.0.hold_nic("n1");
    }

    fn resume(&self) {
        self.0.release();
    }

    fn cut(&self) {
        self.0.set_port("n1", false);
        self.0.set_port("n1", true);
    }
}

fn fakes() -> Fakes {
    let fabric = Fabric::new(["n0", "n1", "f0", "f1"].map(Nic::new));
    Fakes { fabric: Arc::new(fabric), far: Mutex::new(None) }
}

impl Rig for Fakes {
    fn backend(&self, side: Side) -> Box<dyn Install> {
        let nics = match side {
            Side::Near => ["n0", "n1"],
            Side::Far => ["f0", "f1"],
        };
        let mut config = RdmaConfig::default();
        config.set("rail_map", "n0=n0,f0;n1=n1,f1;f0=f0,n0;f1=f1,n1").unwrap();
        Box::new(Rdma::over(self.fabric.verbs_with(&nics), config))
    }

    fn profile(&self) -> Profile {
        // Each piece of a request is refused by itself.
        let mut profile = Profile::default();
        profile.whole_refusals = false;
        profile
    }

    fn present(&self, descriptor: SegmentDescriptor) -> Result<SegmentDescriptor, Violation> {
        let presented = over_rail(&descriptor, "f0");
        *self.far.lock().unwrap() = Some(descriptor);
        presented
    }

    fn link(&self, _far: &SegmentDescriptor) -> Result<Option<Link>, Violation> {
        let far = self.far.lock().unwrap().clone().unwrap();
        Ok(Some(Link {
            descriptor: Arc::new(over_rail(&far, "f1")?),
            control: Arc::new(Wire(self.fabric.clone())),
        }))
    }
}

te_testkit::transport_conformance!(fakes());
