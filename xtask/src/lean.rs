//! Default features build no C and link no system library.
//!
//! A consumer of the facade needs a Rust toolchain and nothing else (B-06); see "Crates" in the architecture page.

use crate::Result;
use crate::outcome::Outcome;
use crate::shell::Cmd;
use crate::workspace::Workspace;

/// Crates that compile C, generate bindings, look for system libraries or run a code generator.
const TOOLCHAINS: [&str; 7] =
    ["bindgen", "cc", "cmake", "pkg-config", "prost-build", "protobuf-src", "vcpkg"];

/// The crates that must stay lean: the facade and the program.
const LEAN: [&str; 2] = ["te", "te-cli"];

pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for name in LEAN {
        let tree = Cmd::cargo("tree")
            .args(["--locked", "-p", name, "-e", "normal,build", "--prefix", "none", "-f", "{p}"])
            .read()?;
        let packages = packages(&tree);
        if packages.len() < 2 {
            return Err(format!("cargo tree names no dependency of {name}").into());
        }
        let complaints = packages.iter().filter_map(|p| complaint(p, workspace)).collect();
        outcome.verdict(&format!("default features of {name}"), complaints);
    }
    Ok(outcome)
}

fn complaint((name, version): &(String, String), workspace: &Workspace) -> Option<String> {
    if TOOLCHAINS.contains(&name.as_str()) {
        return Some(format!("{name} {version} needs more than a Rust toolchain"));
    }
    let library = workspace.links.get(&(name.clone(), version.clone()))?;
    Some(format!("{name} {version} links {library}"))
}

/// The packages of `cargo tree --prefix none -f {p}`: `name vVERSION [(path)] [(*)]` per line.
fn packages(tree: &str) -> Vec<(String, String)> {
    let mut packages: Vec<_> = tree
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
        })
        .collect();
    packages.sort();
    packages.dedup();
    packages
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use super::*;

    fn workspace(links: &[(&str, &str, &str)]) -> Workspace {
        let links = links.iter().map(|(n, v, l)| (((*n).into(), (*v).into()), (*l).into())).collect();
        Workspace { root: PathBuf::new(), target: PathBuf::new(), members: BTreeMap::new(), links }
    }

    #[test]
    fn repeated_packages_are_counted_once() {
        let tree = "te v0.1.0 (/w/te)\nserde v1.0.2\nserde v1.0.2 (*)\nquote v1.0.0 (proc-macro)\n\n";
        assert_eq!(packages(tree).len(), 3);
    }

    #[test]
    fn a_c_compiler_is_found() {
        assert!(complaint(&("cc".into(), "1.2.0".into()), &workspace(&[])).is_some());
        assert!(complaint(&("cc2".into(), "1.2.0".into()), &workspace(&[])).is_none());
    }

    #[test]
    fn a_linked_library_is_found_by_exact_version() {
        let w = workspace(&[("ring", "0.17.0", "ring_core")]);
        assert!(complaint(&("ring".into(), "0.17.0".into()), &w).is_some());
        assert!(complaint(&("ring".into(), "0.16.0".into()), &w).is_none());
    }
}
