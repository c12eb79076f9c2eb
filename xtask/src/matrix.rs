//! Every feature compiles alone, none at all, and all together.

use crate::Result;
use crate::outcome::Outcome;
use crate::shell::Cmd;
use crate::workspace::{Package, Workspace};

pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for package in workspace.published().filter(|p| !choices(p).is_empty()) {
        for features in combinations(package) {
            let check = Cmd::cargo("check").args(["--locked", "--quiet", "-p", &package.name]);
            let success = check.args(["--no-default-features", "--features", &features]).run()?;
            outcome
                .add(Outcome::of_command(&format!("{} with features [{features}]", package.name), success));
        }
    }
    Ok(outcome)
}

/// The features a consumer chooses from: not the default set, not the internal ones.
fn choices(package: &Package) -> Vec<&str> {
    package.features.iter().map(String::as_str).filter(|f| *f != "default" && !f.starts_with("__")).collect()
}

/// None, each alone, and all, as values of `--features`.
fn combinations(package: &Package) -> Vec<String> {
    let choices = choices(package);
    let mut sets = vec![String::new()];
    sets.extend(choices.iter().map(|c| (*c).to_owned()));
    if choices.len() > 1 {
        sets.push(choices.join(","));
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
}
