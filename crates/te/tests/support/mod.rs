//! What the tests with stores share.
#![allow(clippy::unwrap_used, dead_code, reason = "helpers of tests, and each test uses its part of them")]

use std::time::{Duration, Instant};

use te::metadata::{Listed, Owner, list};
use te::settings::{Origin, Settings};
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

/// `writer` writes to what `owner` offers under its name, and the owner compares.
pub(crate) fn write_across(owner: &blocking::Engine, writer: &blocking::Engine) -> Result<()> {
    let offered = owner.register(vec![0; 64], Access::REMOTE).unwrap();
    owner.published(soon())?;
    let local = writer.register(vec![5; 64], Access::LOCAL).unwrap();
    let peer = writer.open(owner.name().as_str())?;
    writer.sync(&peer)?;
    writer.batch().write(local.slice(..), &peer.range(offered.address(), 64)?).run()?;
    let mut bytes = [0; 64];
    offered.read_at(0, &mut bytes)?;
    assert_eq!(bytes, [5; 64]);
    owner.unregister(offered, soon()).unwrap();
    writer.unregister(local, soon()).unwrap();
    Ok(())
}

/// What the store at a URL lists.
pub(crate) fn listed(url: &str) -> Vec<Listed> {
    let mut settings = Settings::default();
    settings.set("metadata", url, Origin::Builder).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(list(&settings, soon())).unwrap().names
}

/// The names in the store at a URL, and whether their engines answer.
pub(crate) fn names(url: &str) -> Vec<(String, Owner)> {
    listed(url).into_iter().map(|one| (one.name.to_string(), one.owner)).collect()
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
