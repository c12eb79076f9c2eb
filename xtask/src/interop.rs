//! Ours against the reference engine, in both directions, on this host only.
//!
//! The reference is the Python wheel of its CPU-only build, started through the scripts in `tests/interop`. Each check
//! is one row of the table: who acts on whom (directly, or through a store), framing, what, size, time. Bytes are always verified, never counted.

mod board;
mod checks;
pub(crate) mod environment;
mod json_peer;
mod meeting;
mod ours;
mod reference;
mod stores;

use std::path::PathBuf;

use crate::Result;
use crate::args::Args;
use crate::artefacts;
use crate::outcome::Outcome;
use crate::workspace::Workspace;

use board::Board;
use environment::Environment;

/// `cargo xtask interop [--te PATH] [--baseline]`
pub(crate) fn command(mut args: Args) -> Result<Outcome> {
    let te = args.value("--te")?.map(PathBuf::from);
    let baseline_only = args.flag("--baseline");
    args.finish()?;
    let workspace = Workspace::load()?;
    let environment = Environment::prepare(&workspace)?;
    let mut board = Board::new();
    checks::baseline(&environment, &mut board)?;
    if !baseline_only {
        let with_stores = te.clone().map_or_else(|| artefacts::te_with_stores(&workspace), Ok)?;
        let te = te.map_or_else(|| artefacts::te(&workspace), Ok)?;
        checks::ours(&environment, &te, &mut board)?;
        stores::checks(&environment, &with_stores, &mut board)?;
    }
    Ok(board.finish())
}

/// All checks with the release build.
pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    let environment = Environment::prepare(workspace)?;
    let te = artefacts::te(workspace)?;
    let with_stores = artefacts::te_with_stores(workspace)?;
    let mut board = Board::new();
    checks::baseline(&environment, &mut board)?;
    checks::ours(&environment, &te, &mut board)?;
    stores::checks(&environment, &with_stores, &mut board)?;
    Ok(board.finish())
}
