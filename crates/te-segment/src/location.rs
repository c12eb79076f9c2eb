//! Where a buffer lies: the location strings of descriptors and topologies.

use std::{convert::Infallible, fmt, str::FromStr};

/// The kind of a device that has memory of its own. The word is the prefix of the location string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DeviceKind {
    /// `cuda`
    Cuda,
    /// `hip`
    Hip,
    /// `musa`
    Musa,
    /// `maca`
    Maca,
    /// `mlu`
    Mlu,
    /// `supa`
    Supa,
    /// `npu`
    Npu,
}

impl DeviceKind {
    /// Every kind.
    pub const ALL: [Self; 7] =
        [Self::Cuda, Self::Hip, Self::Musa, Self::Maca, Self::Mlu, Self::Supa, Self::Npu];

    /// The prefix of its location strings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Hip => "hip",
            Self::Musa => "musa",
            Self::Maca => "maca",
            Self::Mlu => "mlu",
            Self::Supa => "supa",
            Self::Npu => "npu",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Where a buffer lies.
///
/// Parsing never fails: a string with no known meaning is kept as [`Location::Other`], exactly as peers treat it (it
/// misses in the topology). Only the canonical spelling of a form is that form, so every string survives a round trip.
///
/// ```
/// use te_segment::{DeviceKind, Location};
/// let gpu: Location = "cuda:3".parse().unwrap();
/// assert_eq!(gpu, Location::Device { kind: DeviceKind::Cuda, index: 3 });
/// let odd: Location = "cpu:007".parse().unwrap();
/// assert_eq!(odd.to_string(), "cpu:007");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Location {
    /// `*`: not known, or anywhere.
    Any,
    /// `cpu:N`: host memory of NUMA node N.
    Cpu(u32),
    /// `cuda:N` and the like: memory of a device.
    Device {
        /// Which kind of device.
        kind: DeviceKind,
        /// Its ordinal.
        index: u32,
    },
    /// `segments:PAGE:N0,N1,…`: the buffer in equal parts, part i on NUMA node Ni.
    Segments {
        /// Page size in bytes.
        page_size: u64,
        /// The nodes, in the order of the parts; never empty in a parsed location.
        nodes: Vec<u32>,
    },
    /// Any other string.
    Other(String),
}

impl Location {
    /// Host memory of NUMA node `node`.
    pub const fn cpu(node: u32) -> Self {
        Self::Cpu(node)
    }

    /// Memory of device `index`.
    pub const fn device(kind: DeviceKind, index: u32) -> Self {
        Self::Device { kind, index }
    }

    /// The same location in the form that parsing gives: `Other("cpu:0")` becomes `Cpu(0)`.
    #[must_use]
    pub fn canonical(&self) -> Self {
        Self::parse(&self.to_string())
    }

    /// Parses a location string; total.
    pub fn parse(text: &str) -> Self {
        match Self::parse_known(text) {
            // Leading zeros, signs and the like would not survive a round trip.
            Some(known) if known.to_string() == text => known,
            _ => Self::Other(text.to_owned()),
        }
    }

    fn parse_known(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Any);
        }
        let (prefix, rest) = text.split_once(':')?;
        match prefix {
            "cpu" => rest.parse().ok().map(Self::Cpu),
            "segments" => {
                let (page_size, nodes) = rest.split_once(':')?;
                let page_size = page_size.parse().ok()?;
                let nodes = nodes.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>().ok()?;
                Some(Self::Segments { page_size, nodes })
            }
            _ => {
                let kind = DeviceKind::ALL.into_iter().find(|kind| kind.as_str() == prefix)?;
                rest.parse().ok().map(|index| Self::Device { kind, index })
            }
        }
    }
}

impl FromStr for Location {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self::parse(text))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Cpu(node) => write!(f, "cpu:{node}"),
            Self::Device { kind, index } => write!(f, "{kind}:{index}"),
            Self::Segments { page_size, nodes } => {
                write!(f, "segments:{page_size}:")?;
                for (i, node) in nodes.iter().enumerate() {
                    let comma = if i == 0 { "" } else { "," };
                    write!(f, "{comma}{node}")?;
                }
                Ok(())
            }
            Self::Other(text) => f.write_str(text),
        }
    }
}
