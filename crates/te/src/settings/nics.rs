//! Values that are about NICs: which ones, which of them reach each other, numbers that a device can choose itself.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use te_segment::NicName;
use thiserror::Error;

use super::value::{Value, digits};

/// Which NICs are used; an empty list means every one that works.
impl Value for Vec<NicName> {
    type Range = ();

    fn parse(text: &str) -> Option<Self> {
        if text == ALL {
            return Some(Self::new());
        }
        // As the reference engine reads such lists: an empty one names none, and so leaves none out.
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.map(|name| name.parse().ok()).collect()
    }

    fn is_within(&self, (): &()) -> bool {
        true
    }

    fn show(&self) -> String {
        if self.is_empty() {
            return ALL.to_owned();
        }
        self.iter().map(NicName::as_str).collect::<Vec<_>>().join(",")
    }

    fn expected((): &()) -> String {
        "all, or names of NICs separated by commas, such as mlx5_0".to_owned()
    }
}

/// A number that the device or the port has one of its own for.
impl Value for Option<u8> {
    type Range = RangeInclusive<u8>;

    fn parse(text: &str) -> Option<Self> {
        if text == AUTO { Some(None) } else { digits(text)?.try_into().ok().map(Some) }
    }

    fn is_within(&self, range: &Self::Range) -> bool {
        self.is_none_or(|number| range.contains(&number))
    }

    fn show(&self) -> String {
        self.map_or_else(|| AUTO.to_owned(), |number| number.to_string())
    }

    fn expected(range: &Self::Range) -> String {
        format!("auto, or a number from {} to {}", range.start(), range.end())
    }
}

const ALL: &str = "all";
const AUTO: &str = "auto";

/// Which NICs here reach which NICs of a peer. Without the feature `rdma` there is `all` and nothing else.
///
/// ```
/// use te::settings::RailMap;
/// assert_eq!("all".parse::<RailMap>()?.to_string(), "all");
/// assert!("mlx5_0".parse::<RailMap>().is_err());
/// # Ok::<(), te::settings::RailMapError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailMap {
    text: String,
    #[cfg(feature = "rdma")]
    pub(crate) connectivity: te_transport_rdma::route::Connectivity,
}

/// A text is no rail map.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is not {EXPECTED}")]
pub struct RailMapError {
    /// The beginning of the text.
    pub text: String,
}

const EXPECTED: &str = "all, prefer_same_name, same_name or LOCAL=REMOTE,REMOTE;LOCAL=REMOTE";

impl Default for RailMap {
    /// `all`.
    fn default() -> Self {
        Self {
            text: ALL.to_owned(),
            #[cfg(feature = "rdma")]
            connectivity: te_transport_rdma::route::Connectivity::All,
        }
    }
}

impl FromStr for RailMap {
    type Err = RailMapError;

    fn from_str(text: &str) -> Result<Self, RailMapError> {
        let refused = || RailMapError { text: text.chars().take(80).collect() };
        #[cfg(feature = "rdma")]
        return match text.parse() {
            Ok(connectivity) => Ok(Self { text: text.to_owned(), connectivity }),
            Err(_) => Err(refused()),
        };
        #[cfg(not(feature = "rdma"))]
        return if text == ALL { Ok(Self::default()) } else { Err(refused()) };
    }
}

impl fmt::Display for RailMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl Value for RailMap {
    type Range = ();

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn is_within(&self, (): &()) -> bool {
        true
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn expected((): &()) -> String {
        EXPECTED.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_nics_are_read_as_they_are_shown() {
        let nics = Vec::<NicName>::parse(" mlx5_0, mlx5_1,").unwrap();
        assert_eq!(nics.show(), "mlx5_0,mlx5_1");
        assert_eq!(Vec::<NicName>::parse("all"), Some(Vec::new()));
        assert_eq!(Vec::<NicName>::parse(""), Some(Vec::new()));
        assert_eq!(Vec::<NicName>::parse("mlx5@0"), None);
    }

    #[test]
    fn a_number_is_within_its_range_or_auto() {
        assert_eq!(Option::<u8>::parse("auto"), Some(None));
        assert_eq!(Option::<u8>::parse("3"), Some(Some(3)));
        for text in ["-1", "256", "", "+1"] {
            assert_eq!(Option::<u8>::parse(text), None, "{text}");
        }
        let is_within = |number: Option<u8>| number.is_within(&(0..=15));
        assert!(is_within(Some(15)) && !is_within(Some(16)) && is_within(None));
    }

    #[cfg(feature = "rdma")]
    #[test]
    fn a_rail_map_is_read_as_the_transport_reads_it() {
        for text in ["all", "prefer_same_name", "same_name", "mlx5_0=mlx5_0,mlx5_2;mlx5_1=mlx5_1"] {
            let map: RailMap = text.parse().unwrap();
            assert_eq!((map.to_string(), Ok(map.connectivity)), (text.to_owned(), text.parse()));
        }
    }
}
