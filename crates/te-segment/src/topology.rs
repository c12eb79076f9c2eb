//! Which network devices are close to which memory.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{
    error::{DescriptorError, FieldError, FieldProblem, Path},
    ids::NicName,
    json::Node,
    location::Location,
    wire::Matrix,
};

/// The devices for one location, best first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rails {
    /// Devices close to the memory.
    pub preferred: Vec<NicName>,
    /// Devices that also reach it.
    pub available: Vec<NicName>,
}

impl Rails {
    /// All devices, the preferred ones first.
    pub fn iter(&self) -> impl Iterator<Item = &NicName> {
        self.preferred.iter().chain(&self.available)
    }
}

/// For each location the network devices that reach it, by *name*.
///
/// There are no device numbers: two readers of one matrix may number its devices differently (META-11), so a choice is
/// a name and is looked up among the devices of the descriptor.
///
/// ```
/// use te_segment::{Location, Topology};
/// let matrix = serde_json::json!({"cpu:0": [["mlx5_0"], ["mlx5_1"]]});
/// let topology = Topology::from_matrix(&matrix)?;
/// let rails = topology.rails(&Location::cpu(0)).unwrap();
/// assert_eq!(rails.preferred[0].as_str(), "mlx5_0");
/// assert_eq!(topology.to_matrix(), matrix);
/// # Ok::<(), te_segment::DescriptorError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    entries: BTreeMap<Location, Rails>,
}

impl Topology {
    /// A topology that knows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says which devices reach `location`, replacing what was said before. A device named twice counts once, where it
    /// is named first.
    pub fn insert(
        &mut self,
        location: &Location,
        preferred: impl IntoIterator<Item = NicName>,
        available: impl IntoIterator<Item = NicName>,
    ) {
        let mut seen = BTreeSet::new();
        let mut once =
            |names: &mut dyn Iterator<Item = NicName>| names.filter(|n| seen.insert(n.clone())).collect();
        let preferred = once(&mut preferred.into_iter());
        let available = once(&mut available.into_iter());
        self.entries.insert(location.canonical(), Rails { preferred, available });
    }

    /// The devices listed for exactly this location.
    pub fn rails(&self, location: &Location) -> Option<&Rails> {
        self.entries.get(location)
    }

    /// The devices for a buffer at `location`: those listed for it, or for `*`, or every device as equally preferred.
    pub fn resolve(&self, location: &Location) -> Rails {
        self.rails(location).or_else(|| self.rails(&Location::Any)).cloned().unwrap_or_else(|| Rails {
            preferred: self.nics().into_iter().cloned().collect(),
            available: vec![],
        })
    }

    /// Every location with its devices, in order of location.
    pub fn iter(&self) -> impl Iterator<Item = (&Location, &Rails)> {
        self.entries.iter()
    }

    /// Every device that is named anywhere.
    pub fn nics(&self) -> BTreeSet<&NicName> {
        self.entries.values().flat_map(Rails::iter).collect()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes every device that `keep` refuses.
    pub fn retain_nics(&mut self, keep: impl Fn(&NicName) -> bool) {
        for rails in self.entries.values_mut() {
            rails.preferred.retain(&keep);
            rails.available.retain(&keep);
        }
    }

    /// Reads a priority matrix (reference engine, wire spec: topology); null is an empty one.
    pub fn from_matrix(matrix: &Value) -> Result<Self, DescriptorError> {
        if matrix.is_null() {
            return Ok(Self::new());
        }
        let text = matrix.to_string();
        crate::json::check_document(text.as_bytes(), &crate::DecodeLimits::default())?;
        let raw: &serde_json::value::RawValue = serde_json::from_str(&text)
            .map_err(|e| DescriptorError::Syntax { line: e.line(), column: e.column() })?;
        let at = Path::Root.member("priority_matrix");
        Ok(Self::from_wire(&crate::wire::read_matrix(raw, &at)?, &at)?)
    }

    /// The priority matrix; null if empty.
    pub fn to_matrix(&self) -> Value {
        if self.is_empty() {
            return Value::Null;
        }
        let names =
            |names: &[NicName]| names.iter().map(|name| Value::from(name.as_str())).collect::<Value>();
        let entries = self.iter().map(|(location, rails)| {
            (location.to_string(), Value::from(vec![names(&rails.preferred), names(&rails.available)]))
        });
        Value::Object(entries.collect())
    }

    pub(crate) fn from_wire(matrix: &Matrix, path: &Path<'_>) -> Result<Self, FieldError> {
        let mut topology = Self::new();
        for (location, [preferred, available]) in matrix {
            let at = path.member(location);
            check_location(location).map_err(|problem| at.error(problem))?;
            let read = |list: usize, names: &[String]| {
                let names = names.iter().enumerate().map(|(i, name)| {
                    NicName::new(name).map_err(|e| at.index(list).index(i).error(FieldProblem::Name(e)))
                });
                names.collect::<Result<Vec<_>, _>>()
            };
            topology.insert(&Location::parse(location), read(0, preferred)?, read(1, available)?);
        }
        Ok(topology)
    }

    pub(crate) fn node(&self) -> Node<'_> {
        if self.is_empty() {
            return Node::Null;
        }
        let names = |names: &'_ [NicName]| {
            Node::Array(names.iter().map(|name| Node::text(name.as_str().to_owned())).collect())
        };
        let entries = self.iter().map(|(location, rails)| {
            let lists = vec![names(&rails.preferred), names(&rails.available)];
            (location.to_string().into(), Node::Array(lists))
        });
        Node::Object(entries.collect())
    }
}

/// Refuses a location string that no descriptor may have.
pub(crate) fn check_location(text: &str) -> Result<(), FieldProblem> {
    if text.is_empty() {
        return Err(FieldProblem::Empty);
    }
    if text.len() > crate::MAX_NAME_BYTES {
        return Err(FieldProblem::TooLong { len: text.len(), limit: crate::MAX_NAME_BYTES });
    }
    Ok(())
}
