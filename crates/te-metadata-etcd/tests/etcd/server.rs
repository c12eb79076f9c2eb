//! etcd servers for tests, with stores that lead to them.

use std::{
    ops::{Deref, DerefMut},
    path::Path,
    process::Command,
};

use te_metadata_etcd::{EtcdConfig, EtcdStore};
use te_testkit::EtcdServer;
use tempfile::TempDir;

const FOLDER: &str = env!("CARGO_TARGET_TMPDIR");

/// One etcd member.
pub(crate) struct Server(EtcdServer);

pub(crate) fn scratch() -> TempDir {
    tempfile::tempdir_in(FOLDER).unwrap()
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(extra: &[&str]) -> Self {
        Self(EtcdServer::start(Path::new(FOLDER), extra).unwrap())
    }

    /// Three members of one cluster.
    pub(crate) fn cluster() -> Vec<Self> {
        EtcdServer::cluster(Path::new(FOLDER)).unwrap().into_iter().map(Self).collect()
    }

    pub(crate) fn run(&mut self) {
        self.0.run().unwrap();
    }

    pub(crate) fn wipe(&self) {
        self.0.wipe().unwrap();
    }

    pub(crate) fn freeze(&self) {
        self.0.freeze().unwrap();
    }

    pub(crate) fn thaw(&self) {
        self.0.thaw().unwrap();
    }

    pub(crate) fn connections(&self) -> usize {
        self.0.connections().unwrap()
    }

    pub(crate) fn config(&self) -> EtcdConfig {
        EtcdConfig::parse(&format!("etcd://{}", self.address())).unwrap()
    }

    pub(crate) fn store(&self) -> EtcdStore {
        EtcdStore::new(self.config()).unwrap()
    }

    /// Runs etcd's own client, which sets up users.
    pub(crate) fn ctl(&self, args: &[&str]) {
        let done = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .arg("--endpoints")
            .arg(self.address())
            .args(args)
            .output();
        let done = done.expect("these tests need the program `etcdctl`: apt-get install etcd-client");
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

impl Deref for Server {
    type Target = EtcdServer;

    fn deref(&self) -> &EtcdServer {
        &self.0
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut EtcdServer {
        &mut self.0
    }
}
