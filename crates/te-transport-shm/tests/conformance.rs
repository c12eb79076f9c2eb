//! The transport contract, over mappings and through the kernel.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;

use common::proxy_link;
use te_segment::SegmentDescriptor;
use te_testkit::{Link, Rig, Side, Violation};
use te_transport::Install;
use te_transport_shm::{Shm, ShmConfig};

struct Copies {
    shareable: bool,
}

impl Rig for Copies {
    fn backend(&self, _side: Side) -> Box<dyn Install> {
        let mut config = ShmConfig::default();
        // Cases that stall the way to a peer say themselves how long they wait.
        config.connect_timeout = std::time::Duration::from_secs(60);
        config.silent_timeout = std::time::Duration::from_secs(60);
        Box::new(Shm::new(config))
    }

    fn shareable(&self) -> bool {
        self.shareable
    }

    fn link(&self, far: &SegmentDescriptor) -> Result<Option<Link>, Violation> {
        proxy_link(far).map(Some)
    }
}

mod mapped {
    use super::*;
    te_testkit::transport_conformance!(Copies { shareable: true });
}

mod by_the_kernel {
    use super::*;
    te_testkit::transport_conformance!(Copies { shareable: false });
}
