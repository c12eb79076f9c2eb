//! Every feature compiles alone, none at all, and all together; the facade also with every pair of a transport and a
//! metadata service, which is what its users choose. The fuzz targets, a workspace of their own, compile too.

use crate::Result;
use crate::outcome::Outcome;
use crate::provision::{self, Need, What};
use crate::shell::Cmd;
use crate::workspace::{Package, Workspace};

/// The crate whose features users combine.
const FACADE: &str = "te";
const METADATA: [&str; 4] = ["p2p", "etcd", "redis", "http"];
const TRANSPORTS: [&str; 7] = ["tcp", "shm", "rdma", "nvlink", "hip", "nvmeof", "cxl"];

pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    provision::building()?;
    // Of the fuzzer that the fuzz targets are linked with.
    provision::debian(&[Need { what: What::Program("c++"), package: "g++" }])?;
    let mut outcome = Outcome::default();
    let mut rows = Vec::new();
    for package in workspace.published().filter(|p| !choices(p).is_empty()) {
        for features in combinations(package) {
            let check = Cmd::cargo("check").args(["--locked", "--quiet", "-p", &package.name]);
            let success = check.args(["--no-default-features", "--features", &features]).run()?;
            rows.push((package.name.clone(), features.clone(), success));
            outcome
                .add(Outcome::of_command(&format!("{} with features [{features}]", package.name), success));
        }
    }
    let fuzz = Cmd::cargo("check").args(["--locked", "--quiet", "--manifest-path", "fuzz/Cargo.toml"]);
    let success = fuzz.dir(&workspace.root).env("CARGO_TARGET_DIR", workspace.target.join("fuzz")).run()?;
    rows.push(("fuzz targets".to_owned(), String::new(), success));
    outcome.add(Outcome::of_command("fuzz targets", success));
    println!("{:<18} {:<44} result", "crate", "features");
    for (package, features, success) in rows {
        let features = if features.is_empty() { "none" } else { &features };
        println!("{package:<18} {features:<44} {}", if success { "ok" } else { "FAILED" });
    }
    Ok(outcome)
}

/// The features a consumer chooses from: not the default set, not the internal ones.
fn choices(package: &Package) -> Vec<&str> {
    package.features.iter().map(String::as_str).filter(|f| *f != "default" && !f.starts_with("__")).collect()
}

/// None, each alone, pairs for the facade, and all, as values of `--features`.
fn combinations(package: &Package) -> Vec<String> {
    let choices = choices(package);
    let mut sets = vec![String::new()];
    sets.extend(choices.iter().map(|c| (*c).to_owned()));
    if package.name == FACADE {
        let transports = TRANSPORTS.iter().filter(|t| choices.contains(t));
        sets.extend(transports.flat_map(|transport| {
            METADATA.iter().filter(|m| choices.contains(m)).map(move |store| format!("{transport},{store}"))
        }));
    }
    if choices.len() > 1 {
        let all = choices.join(",");
        if !sets.contains(&all) {
            sets.push(all);
        }
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_each_and_all_are_tried() {
        let features = ["default", "p2p", "tcp", "__internal"].map(str::to_owned).to_vec();
        let package = Package { features, ..Package::default() };
        assert_eq!(combinations(&package), ["", "p2p", "tcp", "p2p,tcp"]);
    }

    #[test]
    fn facade_is_tried_with_every_pair_of_transport_and_metadata() {
        let features = ["default", "etcd", "p2p", "tcp", "tls"].map(str::to_owned).to_vec();
        let package = Package { name: "te".into(), features, ..Package::default() };
        assert_eq!(
            combinations(&package),
            ["", "etcd", "p2p", "tcp", "tls", "tcp,p2p", "tcp,etcd", "etcd,p2p,tcp,tls"]
        );
    }
}
