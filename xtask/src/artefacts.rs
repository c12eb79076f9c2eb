//! What the built program needs at run time: the C library and nothing else.
//!
//! Vendor libraries are opened at run time when they are there, so one binary starts on every host (B-01; B-05: the
//! check is the same on every processor).

use std::path::PathBuf;

use crate::Result;
use crate::outcome::Outcome;
use crate::provision::{self, Need, What};
use crate::shell::Cmd;
use crate::workspace::Workspace;

/// Prefixes of the shared libraries the program may name.
const ALLOWED: [&str; 4] = ["libc.so.", "libm.so.", "libgcc_s.so.", "ld-linux"];

pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    provision::debian(&[Need { what: What::Program("readelf"), package: "binutils" }])?;
    let mut outcome = Outcome::default();
    // With every feature too: those that are about devices must not link what drives them.
    for (name, program) in [("te", te(workspace)?), ("te with every feature", te_with_stores(workspace)?)] {
        let dynamic = Cmd::new("readelf").args(["-d", "-W"]).arg(&program).env("LC_ALL", "C").read()?;
        let needed = needed(&dynamic);
        if needed.is_empty() {
            return Err(
                "readelf names no library the program needs; a dynamic program needs the C library".into()
            );
        }
        println!("{name} needs {}", needed.join(", "));
        outcome.verdict(name, strangers(&needed));
    }
    Ok(outcome)
}

/// The release build of the program, built if it is not current.
pub(crate) fn te(workspace: &Workspace) -> Result<PathBuf> {
    if !Cmd::cargo("build").args(["--locked", "--release", "-p", "te-cli", "--bin", "te"]).run()? {
        return Err("te does not build".into());
    }
    Ok(workspace.target.join("release/te"))
}

/// A build with every feature, for checks of bytes and not of speed: it shares its parts with the tests.
pub(crate) fn te_with_stores(workspace: &Workspace) -> Result<PathBuf> {
    provision::building()?;
    if !Cmd::cargo("build").args(["--locked", "-p", "te-cli", "--all-features", "--bin", "te"]).run()? {
        return Err("te does not build with every feature".into());
    }
    Ok(workspace.target.join("debug/te"))
}

/// The libraries in the NEEDED entries of `readelf -d`.
fn needed(dynamic: &str) -> Vec<&str> {
    dynamic
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split_once('[')?.1.split_once(']').map(|(name, _)| name))
        .collect()
}

fn strangers(needed: &[&str]) -> Vec<String> {
    let known = |library: &&&str| ALLOWED.iter().any(|prefix| library.starts_with(prefix));
    needed.iter().filter(|library| !known(library)).map(|library| format!("needs {library}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DYNAMIC: &str = "
Dynamic section at offset 0x2d8 contains 30 entries:
  Tag        Type                         Name/Value
 0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]
 0x0000000000000001 (NEEDED)             Shared library: [libibverbs.so.1]
 0x0000000000000001 (NEEDED)             Shared library: [ld-linux-x86-64.so.2]
 0x000000000000000c (INIT)               0x1000
";

    #[test]
    fn needed_libraries_are_read() {
        assert_eq!(needed(DYNAMIC), ["libgcc_s.so.1", "libibverbs.so.1", "ld-linux-x86-64.so.2"]);
    }

    #[test]
    fn a_vendor_library_is_a_stranger() {
        assert_eq!(strangers(&needed(DYNAMIC)), ["needs libibverbs.so.1"]);
        for library in ["librdmacm.so.1", "libmlx5.so.1", "libcuda.so.1"] {
            assert_eq!(strangers(&[library]).len(), 1, "{library}");
        }
    }

    #[test]
    fn a_library_that_only_begins_like_the_c_library_is_a_stranger() {
        assert_eq!(strangers(&["libcurl.so.4", "libc.so.6"]), ["needs libcurl.so.4"]);
    }
}
