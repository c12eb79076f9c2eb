//! What this build can do: a table made by the code itself.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

use te_segment::TransportKind;

/// What a feature adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FeatureKind {
    /// A way to move bytes.
    Transport,
    /// A way to publish and find segments.
    Metadata,
    /// A way to keep others from reading along.
    Security,
}

impl fmt::Display for FeatureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Transport => "transport",
            Self::Metadata => "metadata",
            Self::Security => "security",
        })
    }
}

/// A part of the engine, present or not.
#[derive(Clone, Copy, Debug)]
pub struct Feature {
    name: &'static str,
    kind: FeatureKind,
    schemes: &'static [&'static str],
    presence: Presence,
}

#[derive(Clone, Copy, Debug)]
enum Presence {
    /// Part of this release; whether it is compiled in, and how to find out whether this host can use it.
    Here { compiled: bool, probe: fn() -> Probed },
    /// Known by name only.
    Later,
}

/// Why it can be used here, or why not.
type Probed = Result<String, Lack>;

/// What a host lacks, in one line.
#[derive(Debug)]
enum Lack {
    /// What it opens at run time.
    #[cfg_attr(not(any(feature = "rdma", test)), expect(dead_code, reason = "nothing else opens anything"))]
    Library(String),
    /// Anything else.
    Other(String),
}

/// Whether and why a feature can be used on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Availability {
    /// It is part of this build.
    pub compiled: bool,
    /// Whatever it opens at run time is there.
    pub loadable: bool,
    /// It would work here and now.
    pub usable: bool,
    /// Why, in one line.
    pub reason: String,
}

impl Feature {
    /// Its name: the Cargo feature, and the word of a transport. Only `local` is no Cargo feature, being always there.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What it adds.
    #[must_use]
    pub fn kind(&self) -> FeatureKind {
        self.kind
    }

    /// Schemes of its metadata URLs.
    #[must_use]
    pub fn schemes(&self) -> &'static [&'static str] {
        self.schemes
    }

    /// Whether it is part of this build.
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        matches!(self.presence, Presence::Here { compiled: true, .. })
    }

    /// Whether this release has it at all.
    #[must_use]
    pub fn is_in_this_release(&self) -> bool {
        matches!(self.presence, Presence::Here { .. })
    }

    /// Finds out whether it can be used here. Takes a port of this host, or opens its RDMA devices, for a moment.
    #[must_use]
    pub fn availability(&self) -> Availability {
        let no = |reason: String| Availability { compiled: false, loadable: false, usable: false, reason };
        match self.presence {
            Presence::Later => no("not in this release".to_owned()),
            Presence::Here { compiled: false, .. } => {
                no(format!("not compiled in: build with the Cargo feature `{}`", self.name))
            }
            Presence::Here { probe, .. } => {
                let (loadable, usable, reason) = match probe() {
                    Ok(reason) => (true, true, reason),
                    Err(Lack::Other(reason)) => (true, false, reason),
                    Err(Lack::Library(reason)) => (false, false, reason),
                };
                Availability { compiled: true, loadable, usable, reason }
            }
        }
    }
}

const fn later(name: &'static str, kind: FeatureKind, schemes: &'static [&'static str]) -> Feature {
    Feature { name, kind, schemes, presence: Presence::Later }
}

const TABLE: &[Feature] = &[
    Feature {
        name: "local",
        kind: FeatureKind::Transport,
        schemes: &[],
        // Costs nothing, and is used only by engines that are given a group.
        presence: Presence::Here { compiled: true, probe: in_a_group },
    },
    Feature {
        name: "tcp",
        kind: FeatureKind::Transport,
        schemes: &[],
        presence: Presence::Here { compiled: cfg!(feature = "tcp"), probe: can_listen },
    },
    Feature {
        name: "shm",
        kind: FeatureKind::Transport,
        schemes: &[],
        presence: Presence::Here { compiled: cfg!(feature = "shm"), probe: can_share },
    },
    Feature {
        name: "rdma",
        kind: FeatureKind::Transport,
        schemes: &[],
        presence: Presence::Here { compiled: cfg!(feature = "rdma"), probe: has_nics },
    },
    later("nvlink", FeatureKind::Transport, &[]),
    later("hip", FeatureKind::Transport, &[]),
    later("nvmeof", FeatureKind::Transport, &[]),
    later("cxl", FeatureKind::Transport, &[]),
    Feature {
        name: "p2p",
        kind: FeatureKind::Metadata,
        schemes: &["p2p"],
        presence: Presence::Here { compiled: cfg!(feature = "p2p"), probe: can_listen },
    },
    Feature {
        name: "etcd",
        kind: FeatureKind::Metadata,
        schemes: &["etcd", "etcds"],
        presence: Presence::Here { compiled: cfg!(feature = "etcd"), probe: asked_later },
    },
    Feature {
        name: "redis",
        kind: FeatureKind::Metadata,
        schemes: &["redis", "rediss"],
        presence: Presence::Here { compiled: cfg!(feature = "redis"), probe: asked_later },
    },
    Feature {
        name: "http",
        kind: FeatureKind::Metadata,
        schemes: &["http", "https"],
        presence: Presence::Here { compiled: cfg!(feature = "http"), probe: asked_later },
    },
    Feature {
        name: TLS,
        kind: FeatureKind::Security,
        schemes: &[],
        presence: Presence::Here { compiled: cfg!(feature = "tls"), probe: own_tls },
    },
];

/// The feature that schemes with TLS need besides their own.
pub(crate) const TLS: &str = "tls";

/// Whether a scheme means TLS.
pub(crate) fn needs_tls(scheme: &str) -> bool {
    matches!(scheme, "etcds" | "rediss" | "https")
}

/// Every part that this release knows by name.
pub fn all() -> impl Iterator<Item = &'static Feature> {
    TABLE.iter()
}

/// The metadata service behind a URL scheme.
#[must_use]
pub fn by_scheme(scheme: &str) -> Option<&'static Feature> {
    all().find(|feature| feature.schemes.contains(&scheme))
}

/// The transport of that word.
#[must_use]
pub fn by_transport(word: &TransportKind) -> Option<&'static Feature> {
    all().find(|feature| feature.kind == FeatureKind::Transport && feature.name == word.as_str())
}

fn asked_later() -> Probed {
    Ok("a client; the server is asked when an engine starts".to_owned())
}

fn in_a_group() -> Probed {
    Ok("between engines of one process with a common local group".to_owned())
}

fn own_tls() -> Probed {
    Ok("to metadata stores, by rustls with ring".to_owned())
}

/// Whether memory can be allocated that others can map.
fn can_share() -> Probed {
    let memory = te_memory::Memory::allocate_shareable(1, te_memory::Sharing::ReadWrite);
    memory
        .map(|_| "files in memory, with sealed size".to_owned())
        .map_err(|error| Lack::Other(error.to_string()))
}

#[cfg(feature = "rdma")]
fn has_nics() -> Probed {
    use te_transport_rdma::{ProbeError, probe};

    probe().map_err(|error| match error {
        ProbeError::Library(reason) => Lack::Library(reason),
        other => Lack::Other(other.to_string()),
    })
}

#[cfg(not(feature = "rdma"))]
fn has_nics() -> Probed {
    Err(Lack::Other("not compiled in".to_owned()))
}

fn can_listen() -> Probed {
    let four = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let six = TcpListener::bind((Ipv6Addr::LOCALHOST, 0));
    match (four, six) {
        (Ok(_), Ok(_)) => Ok("IPv4 and IPv6 sockets".to_owned()),
        (Ok(_), Err(_)) => Ok("IPv4 sockets".to_owned()),
        (Err(_), Ok(_)) => Ok("IPv6 sockets".to_owned()),
        (Err(error), Err(_)) => Err(Lack::Other(format!("cannot listen: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B-08: the table says what the build has.
    #[test]
    fn compiled_is_what_the_build_says() {
        let compiled: Vec<_> = all().filter(|feature| feature.is_compiled()).map(Feature::name).collect();
        let expected: Vec<_> = [
            ("local", true),
            ("tcp", cfg!(feature = "tcp")),
            ("shm", cfg!(feature = "shm")),
            ("rdma", cfg!(feature = "rdma")),
            ("p2p", cfg!(feature = "p2p")),
            ("etcd", cfg!(feature = "etcd")),
            ("redis", cfg!(feature = "redis")),
            ("http", cfg!(feature = "http")),
            ("tls", cfg!(feature = "tls")),
        ]
        .into_iter()
        .filter_map(|(name, compiled)| compiled.then_some(name))
        .collect();
        assert_eq!(compiled, expected);
    }

    #[test]
    fn what_is_not_here_is_neither_loadable_nor_usable() {
        for feature in all().filter(|feature| !feature.is_compiled()) {
            let availability = feature.availability();
            assert!(!availability.loadable && !availability.usable, "{}", feature.name());
            assert!(!availability.reason.is_empty());
        }
    }

    /// Whatever this host has: what cannot be loaded cannot be used, and each answer has its reason in one line.
    #[test]
    fn what_cannot_be_loaded_cannot_be_used() {
        for feature in all() {
            let availability = feature.availability();
            assert!(availability.loadable || !availability.usable, "{}", feature.name());
            assert_eq!(availability.reason.lines().count(), 1, "{}: {}", feature.name(), availability.reason);
        }
    }

    #[test]
    fn a_missing_library_is_told_from_other_reasons() {
        let feature = |probe| Feature {
            name: "tape",
            kind: FeatureKind::Transport,
            schemes: &[],
            presence: Presence::Here { compiled: true, probe },
        };
        let without = feature(|| Err(Lack::Library("no library".to_owned()))).availability();
        assert_eq!((without.loadable, without.usable, without.reason.as_str()), (false, false, "no library"));
        let broken = feature(|| Err(Lack::Other("no tape".to_owned()))).availability();
        assert_eq!((broken.loadable, broken.usable, broken.reason.as_str()), (true, false, "no tape"));
    }

    #[test]
    fn no_scheme_has_two_meanings() {
        let schemes: Vec<_> = all().flat_map(Feature::schemes).collect();
        let mut unique = schemes.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), schemes.len());
    }
}
