//! Whether the bytes are right: a known pattern at the source before the rounds, the destination compared after them.

use te::{Access, Location, blocking::Engine};

use super::load::Load;
use crate::failure::{Failure, Result};
use crate::pattern;
use crate::size::index;

/// Of the bytes that are to arrive, and of what was there before.
const SOURCE: u8 = 0x5a;
const BEFORE: u8 = 0xc3;

/// Puts the pattern at the source and another one at the destination.
pub(super) fn prepare(load: &Load<'_>) -> Result<()> {
    let (write, all) = (load.shape.write, all(load));
    let (here, there) = if write { (SOURCE, BEFORE) } else { (BEFORE, SOURCE) };
    let staging = load.engine.allocate(index(all), Location::Any, Access::LOCAL)?;
    pattern::write_to(&staging, there, 0, all)?;
    load.engine.batch().write(staging.slice(..), &load.remote.slice(0, all)?).run()?;
    pattern::write_to(load.local, here, 0, all)?;
    Ok(())
}

/// Moves everything once more, in the same batches, and compares all of the destination.
pub(super) fn check(load: &Load<'_>) -> Result<u64> {
    load.pass()?;
    let all = all(load);
    let wrong = if load.shape.write {
        read_back(load.engine, load, all)?
    } else {
        pattern::verify(load.local, SOURCE, 0, all)?
    };
    match wrong {
        None => Ok(all),
        Some(wrong) => Err(Failure::Other(format!(
            "{}: byte {} of the destination is {:#04x} and should be {:#04x}",
            load.shape, wrong.at, wrong.found, wrong.expected
        ))),
    }
}

fn read_back(engine: &Engine, load: &Load<'_>, all: u64) -> Result<Option<pattern::Mismatch>> {
    let staging = engine.allocate(index(all), Location::Any, Access::LOCAL)?;
    engine.batch().read(&load.remote.slice(0, all)?, staging.slice(..)).run()?;
    Ok(pattern::verify(&staging, SOURCE, 0, all)?)
}

/// Bytes of the working sets of all threads.
fn all(load: &Load<'_>) -> u64 {
    load.shape.area * load.shape.threads
}
