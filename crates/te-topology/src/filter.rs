//! Which RDMA devices may be used at all.

use std::collections::BTreeSet;

use te_segment::{NameError, NicName};

/// Which RDMA devices may be used. What it refuses is not read, let alone shown or published.
///
/// ```
/// use te_topology::NicFilter;
/// let filter = NicFilter::all().only("mlx5_0, mlx5_1")?.without("mlx5_1")?;
/// assert!(filter.admits(&"mlx5_0".parse()?) && !filter.admits(&"mlx5_1".parse()?));
/// # Ok::<(), te_segment::NameError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicFilter {
    /// Lists that each admit nothing else.
    only: Vec<BTreeSet<NicName>>,
    without: BTreeSet<NicName>,
}

/// A list names a device that this host does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no RDMA device {name} on this host; {}", devices(.present))]
pub struct NoSuchNic {
    /// The name.
    pub name: NicName,
    /// What there is.
    pub present: Vec<NicName>,
}

fn devices(present: &[NicName]) -> String {
    match present {
        [] => "it has none".to_owned(),
        _ => format!("it has {}", present.iter().map(NicName::as_str).collect::<Vec<_>>().join(", ")),
    }
}

impl NicFilter {
    /// Every device.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// None but those of a list with commas, and of them only those that were admitted before. An empty list admits
    /// what it was.
    ///
    /// # Errors
    ///
    /// A name that no device can have.
    pub fn only(mut self, list: &str) -> Result<Self, NameError> {
        let names = names(list)?;
        if !names.is_empty() {
            self.only.push(names);
        }
        Ok(self)
    }

    /// Without those of a list with commas.
    ///
    /// # Errors
    ///
    /// A name that no device can have.
    pub fn without(mut self, list: &str) -> Result<Self, NameError> {
        self.without.extend(names(list)?);
        Ok(self)
    }

    /// Whether a device may be used.
    #[must_use]
    pub fn admits(&self, name: &NicName) -> bool {
        self.only.iter().all(|only| only.contains(name)) && !self.without.contains(name)
    }

    /// Those of a host's devices that may be used, in their order.
    ///
    /// # Errors
    ///
    /// A list names a device that is not among them: a slip of the pen would otherwise leave a host without RDMA, or
    /// use the very device that was to be left alone.
    pub fn apply(&self, present: &[NicName]) -> Result<Vec<NicName>, NoSuchNic> {
        let mut named = self.only.iter().flatten().chain(&self.without);
        if let Some(name) = named.find(|name| !present.contains(name)) {
            return Err(NoSuchNic { name: name.clone(), present: present.to_vec() });
        }
        Ok(present.iter().filter(|name| self.admits(name)).cloned().collect())
    }
}

fn names(list: &str) -> Result<BTreeSet<NicName>, NameError> {
    list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(NicName::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present() -> Vec<NicName> {
        ["mlx5_0", "mlx5_1", "mlx5_2"].map(|name| NicName::new(name).unwrap()).to_vec()
    }

    fn applied(filter: &NicFilter) -> Vec<String> {
        filter.apply(&present()).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn lists_narrow_each_other() {
        assert_eq!(applied(&NicFilter::all()).len(), 3);
        let two = NicFilter::all().only(" mlx5_2 ,mlx5_0,").unwrap();
        assert_eq!(applied(&two), ["mlx5_0", "mlx5_2"]);
        assert_eq!(applied(&two.clone().only("mlx5_1,mlx5_2").unwrap()), ["mlx5_2"]);
        assert_eq!(applied(&two.without("mlx5_0").unwrap()), ["mlx5_2"]);
        assert_eq!(applied(&NicFilter::all().only(" , ").unwrap()).len(), 3);
    }

    #[test]
    fn unknown_names_are_errors_that_say_what_there_is() {
        let error = NicFilter::all().only("mlx5_0,mlx5_9").unwrap().apply(&present()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no RDMA device mlx5_9 on this host; it has mlx5_0, mlx5_1, mlx5_2"
        );
        assert!(NicFilter::all().without("mlx5_9").unwrap().apply(&present()).is_err());
        assert!(NicFilter::all().only("a@b").is_err());
        let error = NicFilter::all().only("mlx5_0").unwrap().apply(&[]).unwrap_err();
        assert!(error.to_string().ends_with("it has none"));
    }
}
