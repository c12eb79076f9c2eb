//! The transport contract, over the native framing and both of the reference engine.

use te_segment::SegmentDescriptor;
use te_testkit::{Link, Profile, Rig, Side, Violation, tcp_link};
use te_transport::Install;
use te_transport_tcp::{FramingChoice, Tcp, TcpConfig};

struct Sockets {
    framing: FramingChoice,
}

impl Rig for Sockets {
    fn backend(&self, _side: Side) -> Box<dyn Install> {
        let mut config = TcpConfig::default();
        config.framing = self.framing;
        Box::new(Tcp::new(config))
    }

    fn profile(&self) -> Profile {
        // Version 1 has no status: a refusal closes the connection, and a WRITE is confirmed by reading it back.
        let confirms = self.framing != FramingChoice::V1;
        let mut profile = Profile::default();
        profile.explicit_refusals = confirms;
        profile.writes_without_reading = confirms;
        profile
    }

    fn link(&self, far: &SegmentDescriptor) -> Result<Option<Link>, Violation> {
        tcp_link(far).map(Some)
    }
}

mod native {
    use super::*;
    te_testkit::transport_conformance!(Sockets { framing: FramingChoice::Auto });
}

mod version_2 {
    use super::*;
    te_testkit::transport_conformance!(Sockets { framing: FramingChoice::V2 });
}

mod version_1 {
    use super::*;
    te_testkit::transport_conformance!(Sockets { framing: FramingChoice::V1 });
}
