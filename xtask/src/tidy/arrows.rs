//! Which crate may know which: the arrows of the architecture, as a table.

use crate::workspace::Package;

/// What a row's crates may depend on. A `*` at the end of a name stands for the rest of it.
struct Row {
    crates: &'static str,
    may_use: &'static [&'static str],
    /// What their tests may use besides.
    tests_may_use: &'static [&'static str],
}

const CONTRACTS: [&str; 4] = ["te-select", "te-transport", "te-metadata", "te-rpc"];

/// The first row that matches a crate counts. A crate without a row is a complaint: decide where it belongs.
const TABLE: &[Row] = &[
    Row { crates: "te-segment", may_use: &[], tests_may_use: &[] },
    Row { crates: "te-memory", may_use: &["te-segment"], tests_may_use: &[] },
    Row { crates: "te-topology", may_use: &["te-segment"], tests_may_use: &[] },
    // Endpoints only: no names, no stores.
    Row { crates: "te-rpc", may_use: &["te-segment", "te-memory"], tests_may_use: &["te-testkit"] },
    Row { crates: "te-transport", may_use: &["te-segment", "te-memory"], tests_may_use: &["te-testkit"] },
    // Stores and their contract do not know how peers talk.
    Row { crates: "te-metadata", may_use: &["te-segment", "te-memory"], tests_may_use: &["te-testkit"] },
    Row {
        crates: "te-select",
        may_use: &["te-segment", "te-memory", "te-transport"],
        tests_may_use: &["te-testkit"],
    },
    // The peers themselves are the store.
    Row {
        crates: "te-metadata-p2p",
        may_use: &["te-segment", "te-memory", "te-metadata", "te-rpc"],
        tests_may_use: &["te-testkit"],
    },
    // Backends: no other backend, not the engine, not the facade.
    Row {
        crates: "te-metadata-*",
        may_use: &["te-segment", "te-memory", "te-metadata"],
        tests_may_use: &["te-testkit"],
    },
    Row {
        crates: "te-transport-*",
        may_use: &["te-segment", "te-memory", "te-transport", "te-topology", "te-sys-*"],
        tests_may_use: &["te-testkit"],
    },
    Row { crates: "te-sys-*", may_use: &[], tests_may_use: &[] },
    // No backend is known here; tests may bring one.
    Row {
        crates: "te-engine",
        may_use: &[
            "te-segment",
            "te-memory",
            "te-topology",
            "te-select",
            "te-transport",
            "te-metadata",
            "te-rpc",
        ],
        tests_may_use: &["te-testkit", "te-transport-*", "te-metadata-*"],
    },
    Row {
        crates: "te",
        may_use: &[
            "te-segment",
            "te-memory",
            "te-topology",
            "te-select",
            "te-transport",
            "te-transport-*",
            "te-metadata",
            "te-metadata-*",
            "te-rpc",
            "te-engine",
        ],
        tests_may_use: &["te-testkit"],
    },
    Row {
        crates: "te-cli",
        may_use: &[
            "te",
            "te-segment",
            "te-memory",
            "te-topology",
            "te-select",
            "te-transport",
            "te-transport-*",
            "te-metadata",
            "te-metadata-*",
            "te-rpc",
            "te-engine",
        ],
        tests_may_use: &["te-testkit"],
    },
    // Fakes and suites for backends, so it knows the contracts and none of their users.
    Row {
        crates: "te-testkit",
        may_use: &["te-segment", "te-memory", "te-select", "te-transport", "te-metadata", "te-rpc"],
        tests_may_use: &[],
    },
    // Whole engines, through the facade.
    Row {
        crates: "te-tests",
        may_use: &[],
        tests_may_use: &[
            "te",
            "te-engine",
            "te-memory",
            "te-metadata",
            "te-segment",
            "te-testkit",
            "te-metadata-*",
            "te-transport-*",
            "te-sys-*",
        ],
    },
    Row { crates: "xtask", may_use: &[], tests_may_use: &[] },
];

/// Foreign crates that belong in one place: the codec, and what only a program wants.
const FOREIGN: &[(&str, &[&str])] = &[
    ("bincode", &["te-segment"]),
    ("clap", &["te-cli"]),
    ("indicatif", &["te-cli"]),
    ("hdrhistogram", &["te-cli"]),
];

/// The arrows that point the wrong way.
pub(super) fn complaints<'a>(packages: impl Iterator<Item = &'a Package>) -> Vec<String> {
    let packages: Vec<_> = packages.collect();
    let ours: Vec<_> = packages.iter().map(|p| p.name.as_str()).collect();
    let mut complaints = Vec::new();
    for package in &packages {
        let Some(row) = TABLE.iter().find(|row| matches(row.crates, &package.name)) else {
            complaints.push(format!("{} has no row in the table of arrows", package.name));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|d| ours.contains(&d.name.as_str())) {
            let listed = |names: &[&str]| names.iter().any(|name| matches(name, &dependency.name));
            // A crate may name itself to switch features on for its tests.
            let for_tests = dependency.dev && (dependency.name == package.name || listed(row.tests_may_use));
            if !listed(row.may_use) && !for_tests {
                let kind = if dependency.dev { "the tests of " } else { "" };
                complaints.push(format!("{kind}{} must not depend on {}", package.name, dependency.name));
            }
        }
    }
    for (foreign, owners) in FOREIGN {
        let strangers = packages.iter().filter(|p| !owners.contains(&p.name.as_str()));
        let users = strangers.filter(|p| p.dependencies.iter().any(|d| d.name == *foreign && !d.dev));
        complaints.extend(users.map(|p| format!("{} must not depend on {foreign}", p.name)));
    }
    if let Some(contract) = CONTRACTS.iter().find(|c| !ours.contains(c)) {
        complaints.push(format!("the workspace has no {contract}: is this the right table?"));
    }
    complaints
}

/// `te-sys-*` matches every name with that beginning and something after it.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty()),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    fn package(name: &str, uses: &[(&str, bool)]) -> Package {
        let dependencies = uses.iter().map(|(n, dev)| Dependency { name: (*n).into(), dev: *dev }).collect();
        Package { name: name.into(), dependencies, ..Package::default() }
    }

    /// The complaints about a workspace with the contracts and these packages.
    fn about(mut packages: Vec<Package>) -> Vec<String> {
        for name in CONTRACTS.into_iter().chain(["te-segment", "te-engine", "te-testkit", "te-metadata-p2p"])
        {
            if packages.iter().all(|p| p.name != name) {
                packages.push(package(name, &[]));
            }
        }
        complaints(packages.iter())
    }

    #[test]
    fn arrows_along_the_table_are_fine() {
        let tcp =
            package("te-transport-tcp", &[("te-transport", false), ("te-testkit", true), ("serde", false)]);
        let p2p = package("te-metadata-p2p", &[("te-rpc", false), ("te-metadata", false)]);
        assert_eq!(about(vec![tcp, p2p]), [""; 0]);
    }

    #[test]
    fn a_backend_that_knows_a_backend_is_refused() {
        let tcp = package("te-transport-tcp", &[("te-transport-shm", false)]);
        let shm = package("te-transport-shm", &[]);
        assert_eq!(about(vec![tcp, shm]), ["te-transport-tcp must not depend on te-transport-shm"]);
    }

    #[test]
    fn a_backend_that_tests_with_the_engine_is_refused() {
        let tcp = package("te-transport-tcp", &[("te-engine", true)]);
        assert_eq!(about(vec![tcp]), ["the tests of te-transport-tcp must not depend on te-engine"]);
    }

    #[test]
    fn metadata_that_knows_rpc_is_refused() {
        assert_eq!(about(vec![package("te-metadata", &[("te-rpc", false)])]).len(), 1);
        assert_eq!(about(vec![package("te-metadata-etcd", &[("te-rpc", false)])]).len(), 1);
    }

    #[test]
    fn the_testkit_in_a_product_dependency_is_refused() {
        assert_eq!(about(vec![package("te-engine", &[("te-testkit", false)])]).len(), 1);
        assert_eq!(about(vec![package("te-engine", &[("te-testkit", true)])]).len(), 0);
    }

    #[test]
    fn a_foreign_crate_outside_of_its_place_is_refused() {
        assert_eq!(about(vec![package("te-segment", &[("bincode", false)])]), [""; 0]);
        assert_eq!(
            about(vec![package("te-rpc", &[("bincode", false)])]),
            ["te-rpc must not depend on bincode"]
        );
        assert_eq!(about(vec![package("te-rpc", &[("bincode", true)])]), [""; 0]);
    }

    #[test]
    fn a_crate_without_a_row_is_refused() {
        assert_eq!(about(vec![package("te-new", &[])]), ["te-new has no row in the table of arrows"]);
    }

    #[test]
    fn a_workspace_without_the_contracts_is_refused() {
        assert_eq!(complaints([package("te-segment", &[])].iter()).len(), 1);
    }
}
