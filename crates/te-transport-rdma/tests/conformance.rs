//! The transport contract, between engines whose NICs are of one fabric in this process. Two NICs on each side: the second
//! ones are the controlled link, the first ones are everything else.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use te_segment::{BufferDescriptor, SegmentDescriptor, TransportKind, Via};
use te_sys_verbs::fake::{Fabric, Nic};
use te_testkit::{Link, LinkControl, Profile, Rig, Side, Violation};
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

/// The same with keys of one NIC only.
fn only(descriptor: &SegmentDescriptor, nic: &str) -> Result<SegmentDescriptor, Violation> {
    let mut builder = SegmentDescriptor::builder(descriptor.name().clone())
        .identity(descriptor.identity().clone())
        .topology(descriptor.topology().clone());
    for device in descriptor.devices() {
        builder = builder.device(device.clone());
    }
    for buffer in descriptor.buffers() {
        let Some(Via::Rdma { keys }) = buffer.via_transport(&TransportKind::RDMA) else { continue };
        let keys =
            keys.iter().filter(|(name, _)| name.as_str() == nic).map(|(name, key)| (name.clone(), *key));
        let via = BTreeMap::from([(TransportKind::RDMA, Via::Rdma { keys: keys.collect() })]);
        let (range, location) = (buffer.range(), buffer.location().clone());
        builder = builder.buffer(BufferDescriptor::new(
            range,
            location,
            buffer.access(),
            buffer.generation(),
            via,
        )?);
    }
    Ok(builder.build()?)
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
        let presented = only(&descriptor, "f0");
        *self.far.lock().unwrap() = Some(descriptor);
        presented
    }

    fn link(&self, _far: &SegmentDescriptor) -> Result<Option<Link>, Violation> {
        let far = self.far.lock().unwrap().clone().unwrap();
        Ok(Some(Link {
            descriptor: Arc::new(only(&far, "f1")?),
            control: Arc::new(Wire(self.fabric.clone())),
        }))
    }
}

te_testkit::transport_conformance!(fakes());
