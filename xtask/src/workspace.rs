//! The workspace as cargo describes it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::Result;
use crate::shell::Cmd;

/// Where everything is, and the packages that are ours.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
    /// The members, by name.
    pub(crate) members: BTreeMap<String, Package>,
    /// `links` keys of every package in the graph, by (name, version).
    pub(crate) links: BTreeMap<(String, String), String>,
}

/// One workspace member.
#[derive(Debug, Default, Clone)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Folder of its manifest.
    pub(crate) dir: PathBuf,
    pub(crate) published: bool,
    pub(crate) features: Vec<String>,
    pub(crate) dependencies: Vec<Dependency>,
}

/// A dependency as the manifest declares it.
#[derive(Debug, Clone)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// Needed by tests, examples and benches only.
    pub(crate) dev: bool,
}

impl Workspace {
    /// Asks cargo. The lock file must be current.
    pub(crate) fn load() -> Result<Self> {
        let text = Cmd::cargo("metadata").args(["--format-version=1", "--locked"]).read()?;
        Self::parse(&serde_json::from_str(&text)?)
    }

    fn parse(metadata: &Value) -> Result<Self> {
        let path = |member: &str| -> Result<PathBuf> {
            let text = metadata[member].as_str().ok_or_else(|| format!("cargo metadata has no {member}"))?;
            Ok(PathBuf::from(text))
        };
        let ours: Vec<&str> = strings(&metadata["workspace_members"]).collect();
        let mut members = BTreeMap::new();
        let mut links = BTreeMap::new();
        for package in elements(&metadata["packages"]) {
            let text = |member: &str| package[member].as_str().unwrap_or_default().to_owned();
            if let Some(library) = package["links"].as_str() {
                links.insert((text("name"), text("version")), library.to_owned());
            }
            if ours.contains(&text("id").as_str()) {
                members.insert(text("name"), member(package)?);
            }
        }
        if members.is_empty() {
            return Err("cargo metadata names no workspace member".into());
        }
        Ok(Self { root: path("workspace_root")?, target: path("target_directory")?, members, links })
    }

    /// The members that are ours to publish.
    pub(crate) fn published(&self) -> impl Iterator<Item = &Package> {
        self.members.values().filter(|p| p.published)
    }
}

fn member(package: &Value) -> Result<Package> {
    let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
    let dir = manifest.parent().ok_or("a package without a folder")?.to_owned();
    let dependencies = elements(&package["dependencies"])
        .map(|d| Dependency {
            name: d["name"].as_str().unwrap_or_default().to_owned(),
            dev: d["kind"].as_str() == Some("dev"),
        })
        .collect();
    let features = package["features"].as_object().map(|f| f.keys().cloned().collect()).unwrap_or_default();
    // `publish = false` is an empty list of registries; no restriction is null.
    let published = package["publish"].as_array().is_none_or(|registries| !registries.is_empty());
    let name = package["name"].as_str().unwrap_or_default().to_owned();
    Ok(Package { name, dir, published, features, dependencies })
}

fn elements(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn strings(value: &Value) -> impl Iterator<Item = &str> {
    elements(value).filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_features_and_links_are_read() {
        let metadata = json!({
            "workspace_root": "/w", "target_directory": "/w/target", "workspace_members": ["a 1"],
            "packages": [
                {"id": "a 1", "name": "a", "version": "1", "manifest_path": "/w/a/Cargo.toml", "publish": [],
                 "links": null, "features": {"default": [], "tcp": []},
                 "dependencies": [{"name": "b", "kind": null}, {"name": "c", "kind": "dev"}]},
                {"id": "z 2", "name": "z", "version": "2", "links": "zlib", "publish": null},
            ],
        });
        let workspace = Workspace::parse(&metadata).unwrap();
        let a = &workspace.members["a"];
        assert_eq!(workspace.members.len(), 1);
        assert!(!a.published);
        assert_eq!(a.features, ["default", "tcp"]);
        assert!(!a.dependencies[0].dev && a.dependencies[1].dev);
        assert_eq!(workspace.links[&("z".into(), "2".into())], "zlib");
    }

    #[test]
    fn a_graph_without_members_is_an_error() {
        assert!(Workspace::parse(&json!({"packages": []})).is_err());
    }
}
