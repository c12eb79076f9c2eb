//! Where the engines of a check find each other: at each other's address, or in a store.

use std::process::Command;

/// A metadata service and the part of it that is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Meeting {
    url: String,
    cluster: Option<String>,
}

impl Meeting {
    /// Engines ask each other.
    pub(super) fn peers() -> Self {
        Self { url: "P2PHANDSHAKE".to_owned(), cluster: None }
    }

    /// A store, and the cluster in it.
    pub(super) fn store(url: &str, cluster: Option<&str>) -> Self {
        Self { url: url.to_owned(), cluster: cluster.map(str::to_owned) }
    }

    /// Arguments for `te`. In a store the name says nothing about the address, so it is given.
    pub(super) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["--metadata".to_owned(), self.url.clone()];
        if *self != Self::peers() {
            arguments.extend(["--set", "advertise=127.0.0.1"].map(str::to_owned));
        }
        if let Some(cluster) = &self.cluster {
            arguments.extend(["--set".to_owned(), format!("metadata.cluster={cluster}")]);
        }
        arguments
    }

    /// Arguments and environment for the reference's scripts.
    pub(super) fn tell(&self, command: &mut Command) {
        command.args(["--metadata", &self.url]);
        match &self.cluster {
            Some(cluster) => command.env("MC_METADATA_CLUSTER_ID", cluster),
            None => command.env_remove("MC_METADATA_CLUSTER_ID"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_needs_an_address_and_a_cluster_is_passed_on() {
        assert_eq!(Meeting::peers().arguments(), ["--metadata", "P2PHANDSHAKE"]);
        let arguments = Meeting::store("etcd://127.0.0.1:2379", Some("blue")).arguments().join(" ");
        assert_eq!(
            arguments,
            "--metadata etcd://127.0.0.1:2379 --set advertise=127.0.0.1 --set metadata.cluster=blue"
        );
    }
}
