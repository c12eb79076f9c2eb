//! What the tests with stores share.
#![allow(clippy::unwrap_used, dead_code, reason = "helpers of tests, and each test uses its part of them")]

use std::time::{Duration, Instant};

use te::{Access, Deadline, EngineBuilder, Location, Result, blocking};

pub(crate) fn soon() -> Deadline {
    Deadline::after_secs(10)
}

/// An engine with a name in a store, on the loopback address.
pub(crate) fn named(name: &str) -> EngineBuilder {
    te::builder(name).advertise("127.0.0.1")
}

pub(crate) fn stop(engine: &blocking::Engine) {
    let report = engine.shutdown(Deadline::after_secs(5));
    assert!(report.is_clean(), "{report:?}");
}

/// `reader` reads what `owner` offers under its name, and compares.
pub(crate) fn read_across(owner: &blocking::Engine, reader: &blocking::Engine) -> Result<()> {
    let offered = owner.register(vec![9; 64], Access::REMOTE_READ).unwrap();
    owner.published(soon())?;
    let local = reader.allocate(64, Location::Any, Access::LOCAL)?;
    let peer = reader.open(owner.name().as_str())?;
    reader.sync(&peer)?;
    reader.batch().read(&peer.range(offered.address(), 64)?, local.slice(..)).run()?;
    let mut byte = [0];
    local.read_at(63, &mut byte)?;
    assert_eq!(byte, [9]);
    owner.unregister(offered, soon()).unwrap();
    Ok(())
}

/// Waits until it is so, and says how long that took.
pub(crate) fn until(what: &str, mut reached: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !reached() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
    began.elapsed()
}
