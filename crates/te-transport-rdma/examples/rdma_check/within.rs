//! Two sides, the far one in another network namespace of this host.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use te_testkit::Side;
use te_transport::{Context, InstallError};
use te_transport_rdma::{Rdma, RdmaConfig, RdmaTransport};

/// The rails, and where the far side is.
#[derive(Clone, Debug)]
pub(crate) struct Rails {
    pub(crate) namespace: PathBuf,
    /// For each rail the device here and the one there.
    pub(crate) rails: Vec<(String, String)>,
}

impl Rails {
    fn config(&self, side: Side) -> RdmaConfig {
        let mut config = RdmaConfig::default();
        let of = |(near, far): &(String, String)| match side {
            Side::Near => (near.clone(), far.clone()),
            Side::Far => (far.clone(), near.clone()),
        };
        let pairs: Vec<_> = self.rails.iter().map(of).collect();
        let names: Vec<_> = pairs.iter().map(|(own, _)| own.as_str()).collect();
        // The own device as well: an engine can be its own peer.
        let map: Vec<_> = pairs.iter().map(|(own, other)| format!("{own}={own},{other}")).collect();
        config.set("nics", &names.join(",")).unwrap();
        config.set("rail_map", &map.join(";")).unwrap();
        config
    }

    /// Starts one side. Its threads stay in the namespace in which they were started.
    pub(crate) fn start(&self, side: Side, context: &Context) -> Result<Arc<RdmaTransport>, InstallError> {
        let rdma = Rdma::new(self.config(side));
        let start = || {
            if side == Side::Far {
                let space = File::open(&self.namespace).unwrap();
                move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            }
            rdma.start(context)
        };
        thread::scope(|scope| scope.spawn(start).join().unwrap())
    }
}
