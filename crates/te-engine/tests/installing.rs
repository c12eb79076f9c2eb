//! Engines on hosts that lack what a transport needs.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::sync::Arc;

use common::World;
use te_engine::{EngineConfig, ErrorKind, block_on};
use te_segment::TransportKind;
use te_transport::{Context, IfAvailable, Install, InstallError, Transport};

/// A transport that this host cannot have, or that does not start.
struct Missing(fn() -> InstallError);

impl Install for Missing {
    fn kind(&self) -> TransportKind {
        TransportKind::CXL
    }

    fn install(self: Box<Self>, _: &Context) -> Result<Arc<dyn Transport>, InstallError> {
        Err((self.0)())
    }
}

fn unavailable() -> InstallError {
    InstallError::Unavailable { transport: TransportKind::CXL, missing: "a window".to_owned() }
}

fn failed() -> InstallError {
    InstallError::Failed { transport: TransportKind::CXL, cause: "out of luck".to_owned() }
}

fn start(
    world: &World,
    config: EngineConfig,
    missing: Box<dyn Install>,
) -> te_engine::Result<te_engine::Engine> {
    world.try_engine(config, vec![Box::new(world.transport(TransportKind::TCP)), missing])
}

#[test]
fn what_nobody_asked_for_may_be_missing_and_everything_else_may_not() {
    let world = World::new();
    let config = World::config("engine");
    let without =
        start(&world, config.clone(), Box::new(IfAvailable(Box::new(Missing(unavailable))))).unwrap();
    assert_eq!(without.transports(), [TransportKind::TCP]);
    assert!(block_on(without.shutdown(common::soon())).is_clean());
    for missing in [
        Box::new(Missing(unavailable)) as Box<dyn Install>,
        Box::new(Missing(failed)),
        // There, and broken: that is said.
        Box::new(IfAvailable(Box::new(Missing(failed)))),
    ] {
        let Err(error) = start(&world, config.clone(), missing) else { panic!("it started") };
        assert_eq!(error.kind(), ErrorKind::Transport, "{error}");
        assert!(error.to_string().contains("cxl"), "{error}");
    }
}
