//! Which devices are close to which memory: the priority matrix, made or read from a file.
//!
//! The rule is that of the reference engine. Host memory prefers the devices of its NUMA node. Memory of a GPU prefers,
//! among the devices of the GPU's node (all devices if there is none), those at the shortest distance on PCI. Whatever
//! else there is, is available.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use te_segment::{DecodeLimits, DescriptorError, Location, NicName, Topology};

use crate::gpu::Gpu;
use crate::nic::Nic;
use crate::numa::NumaNode;

/// Why a matrix file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MatrixError {
    /// The file cannot be read.
    #[error("cannot read the matrix {path}: {error}")]
    File {
        /// Where it should be.
        path: String,
        /// Why not.
        error: io::Error,
    },
    /// It is longer than a descriptor may be.
    #[error("the matrix has more than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: u64,
    },
    /// It is not JSON.
    #[error("the matrix is not valid JSON: {0}")]
    Syntax(serde_json::Error),
    /// It is JSON of another form.
    #[error("the matrix is not an object of two lists of devices for each location: {0}")]
    Shape(DescriptorError),
    /// It says nothing.
    #[error("the matrix names no device")]
    Empty,
    /// It names a device that this host does not have, or that a filter refuses.
    #[error("the matrix names {name} for {location}, which is no usable RDMA device of this host")]
    NoSuchNic {
        /// The device.
        name: NicName,
        /// For which location.
        location: Location,
    },
}

/// Makes the matrix of a host from what is close to what. Devices keep their order.
#[must_use]
pub fn matrix(nodes: &[NumaNode], gpus: &[Gpu], nics: &[&Nic]) -> Topology {
    let mut topology = Topology::new();
    if nics.is_empty() {
        return topology;
    }
    let on = |node: u32| move |nic: &Nic| nic.numa == Ok(Some(node));
    for node in nodes {
        insert(&mut topology, &Location::cpu(node.number), nics, on(node.number));
    }
    if nodes.is_empty() {
        // A kernel without NUMA has one node that it does not list.
        insert(&mut topology, &Location::cpu(0), nics, |_| true);
    }
    for gpu in gpus {
        let Some(location) = &gpu.location else { continue };
        let node = gpu.numa.clone().ok().flatten();
        let is_near = |nic: &Nic| node.is_some_and(|node| on(node)(nic));
        let none_near = !nics.iter().any(|nic| is_near(nic));
        // A device that is nowhere on PCI is further than any that is somewhere.
        let distance = |nic: &Nic| {
            (none_near || is_near(nic))
                .then(|| nic.pci.as_ref().map_or(usize::MAX, |path| gpu.pci.distance(path)))
        };
        let nearest = nics.iter().filter_map(|nic| distance(nic)).min();
        insert(&mut topology, location, nics, |nic| distance(nic).is_some() && distance(nic) == nearest);
    }
    topology
}

fn insert(topology: &mut Topology, location: &Location, nics: &[&Nic], is_preferred: impl Fn(&Nic) -> bool) {
    let (preferred, available): (Vec<&Nic>, Vec<&Nic>) = nics.iter().partition(|nic| is_preferred(nic));
    let names = |nics: Vec<&Nic>| nics.into_iter().map(|nic| nic.name.clone()).collect::<Vec<_>>();
    topology.insert(location, names(preferred), names(available));
}

/// Reads a matrix in the form of the reference engine; it replaces what was found. Every device in it must be one of
/// `usable`.
///
/// # Errors
///
/// The text is no such matrix, names no device, or names one that is not usable.
pub fn parse_matrix(text: &str, usable: &[&Nic]) -> Result<Topology, MatrixError> {
    let value = serde_json::from_str(text).map_err(MatrixError::Syntax)?;
    let topology = Topology::from_matrix(&value).map_err(MatrixError::Shape)?;
    if topology.nics().is_empty() {
        return Err(MatrixError::Empty);
    }
    let strange = topology.iter().find_map(|(location, rails)| {
        let name = rails.iter().find(|name| usable.iter().all(|nic| nic.name != **name))?;
        Some(MatrixError::NoSuchNic { name: name.clone(), location: location.clone() })
    });
    strange.map_or(Ok(topology), Err)
}

/// Reads a file with [`parse_matrix`].
///
/// # Errors
///
/// As there, or the file cannot be read or is longer than a descriptor may be.
pub fn read_matrix(path: &Path, usable: &[&Nic]) -> Result<Topology, MatrixError> {
    let failed = |error| MatrixError::File { path: path.display().to_string(), error };
    let limit = DecodeLimits::default().max_bytes as u64;
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(limit + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > limit {
        return Err(MatrixError::TooLong { limit });
    }
    parse_matrix(&text, usable)
}
