//! Nodes of this transport.
#![allow(dead_code, unused_imports, reason = "each test uses a part")]

pub(crate) use te_testkit::node::*;
use te_transport_shm::{Shm, ShmConfig, ShmTransport};

pub(crate) type Node = te_testkit::node::Node<ShmTransport>;

pub(crate) fn new() -> Node {
    with(ShmConfig::default())
}

pub(crate) fn with(config: ShmConfig) -> Node {
    Node::start(|context| Shm::new(config).start(context))
}
