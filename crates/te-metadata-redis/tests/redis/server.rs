//! redis servers for tests, with stores and foreign clients that lead to them.

use std::{
    ops::{Deref, DerefMut},
    path::Path,
};

use redis::aio::MultiplexedConnection;
use te_metadata_redis::{RedisConfig, RedisStore};
use te_testkit::RedisServer;
use tempfile::TempDir;

const FOLDER: &str = env!("CARGO_TARGET_TMPDIR");

/// A redis server.
pub(crate) struct Server(RedisServer);

pub(crate) fn scratch() -> TempDir {
    tempfile::tempdir_in(FOLDER).unwrap()
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(extra: &[&str]) -> Self {
        Self(RedisServer::start(Path::new(FOLDER), extra).unwrap())
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

    pub(crate) fn config(&self) -> RedisConfig {
        RedisConfig::parse(&format!("redis://{}", self.address())).unwrap()
    }

    pub(crate) fn store(&self) -> RedisStore {
        RedisStore::new(self.config()).unwrap()
    }

    /// A client that knows nothing of this crate: the reference engine, or an operator.
    pub(crate) async fn foreign(&self) -> MultiplexedConnection {
        let client = redis::Client::open(format!("redis://{}", self.address())).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }

    /// Runs commands of somebody else.
    pub(crate) async fn command(&self, words: &[&str]) -> redis::Value {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query_async(&mut self.foreign().await).await.unwrap()
    }
}

impl Deref for Server {
    type Target = RedisServer;

    fn deref(&self) -> &RedisServer {
        &self.0
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut RedisServer {
        &mut self.0
    }
}
