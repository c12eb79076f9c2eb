//! Packages every published crate and builds the packages, without uploading anything.
//!
//! Uploading is a person's decision and a person's command.

use std::fs;

use crate::Result;
use crate::args::Args;
use crate::outcome::Outcome;
use crate::shell::Cmd;
use crate::workspace::{Package, Workspace};

/// What a crate needs in its manifest before anybody else can use it.
const FIELDS: [&str; 4] = ["description", "license", "repository", "rust-version"];

pub(crate) fn command(mut args: Args) -> Result<Outcome> {
    let dry_run = args.flag("--dry-run");
    let allow_dirty = args.flag("--allow-dirty");
    args.finish()?;
    if !dry_run {
        return Err(
            "only `publish --dry-run` exists: uploading is done by a person, with cargo publish".into()
        );
    }
    let workspace = Workspace::load()?;
    let mut outcome = Outcome::default();
    for package in workspace.published() {
        outcome.verdict(&package.name, complaints(package)?);
    }
    let mut package = Cmd::cargo("package").args(["--workspace", "--locked"]);
    for private in workspace.members.values().filter(|p| !p.published) {
        package = package.args(["--exclude", &private.name]);
    }
    if allow_dirty {
        package = package.arg("--allow-dirty");
    }
    outcome.add(Outcome::of_command("cargo package", package.run()?));
    outcome.print();
    Ok(outcome)
}

fn complaints(package: &Package) -> Result<Vec<String>> {
    Ok(missing_fields(&fs::read_to_string(package.dir.join("Cargo.toml"))?))
}

fn missing_fields(manifest: &str) -> Vec<String> {
    let has = |field: &str| {
        manifest.lines().any(|line| {
            let name = line.split_once('=').map_or("", |(name, _)| name.trim());
            name == field || name.strip_suffix(".workspace") == Some(field)
        })
    };
    FIELDS.iter().filter(|field| !has(field)).map(|field| format!("no `{field}` in its manifest")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_without_a_licence_is_refused() {
        let manifest = "description = \"x\"\nrepository.workspace = true\nrust-version = \"1.88\"\n";
        assert_eq!(missing_fields(manifest), ["no `license` in its manifest"]);
    }

    #[test]
    fn only_a_dry_run_exists() {
        assert!(command(Args::new([])).is_err());
    }
}
