//! Where a device is on PCI, and how far two devices are from each other.

use std::fmt;
use std::str::FromStr;

use crate::root::{Cause, Fact, Root, Unknown};

/// A PCI function: `domain:bus:device.function`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// The domain; more than 16 bits wide behind some storage controllers.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device, up to 31.
    pub device: u8,
    /// The function, up to 7.
    pub function: u8,
}

/// A text is no PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a PCI address is written domain:bus:device.function in hexadecimal, as in 0000:3b:00.0")]
pub struct ParsePciAddressError;

impl FromStr for PciAddress {
    type Err = ParsePciAddressError;

    fn from_str(text: &str) -> Result<Self, ParsePciAddressError> {
        let parse = || {
            let (slot, function) = text.split_once('.')?;
            let mut parts = slot.split(':');
            let (domain, bus, device) = (parts.next()?, parts.next()?, parts.next()?);
            let widths_fit = (4..=8).contains(&domain.len()) && bus.len() == 2 && device.len() == 2;
            let is_hex = slot.bytes().all(|b| b == b':' || b.is_ascii_hexdigit());
            if parts.next().is_some() || !widths_fit || !is_hex || function.len() != 1 {
                return None;
            }
            let address = Self {
                domain: u32::from_str_radix(domain, 16).ok()?,
                bus: u8::from_str_radix(bus, 16).ok()?,
                device: u8::from_str_radix(device, 16).ok()?,
                function: u8::from_str_radix(function, 16).ok()?,
            };
            (address.device < 32 && address.function < 8).then_some(address)
        };
        parse().ok_or(ParsePciAddressError)
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        f.pad(&format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
    }
}

/// The way from a PCI host bridge down to a function.
///
/// ```
/// use te_topology::PciPath;
/// let gpu: PciPath = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0".parse()?;
/// let nic: PciPath = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0".parse()?;
/// assert_eq!(gpu.distance(&nic), 4);
/// assert_eq!(gpu.address().to_string(), "0000:18:00.0");
/// # Ok::<(), te_topology::ParsePciAddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciPath {
    components: Vec<String>,
    address: PciAddress,
}

impl PciPath {
    /// The function itself.
    #[must_use]
    pub fn address(&self) -> PciAddress {
        self.address
    }

    /// The host bridge, every bridge below it and the function, as sysfs names them; never empty.
    #[must_use]
    pub fn components(&self) -> &[String] {
        &self.components
    }

    /// How far two functions are from each other: the steps up from one to where both ways meet, and down to the other.
    #[must_use]
    pub fn distance(&self, other: &Self) -> usize {
        let (a, b) = (&self.components, &other.components);
        let common = a.iter().zip(b).take_while(|(x, y)| x == y).count();
        a.len() + b.len() - 2 * common
    }

    /// The function a link of sysfs leads to, or the one above what it leads to.
    pub(crate) fn of(root: &Root, link: &str) -> Fact<Self> {
        let target = root.target(link)?;
        target.parse().map_err(|_| {
            Unknown::new(link, Cause::Malformed { found: target, expected: "below a PCI function" })
        })
    }
}

impl FromStr for PciPath {
    type Err = ParsePciAddressError;

    /// Takes any path in which a host bridge occurs; what is below the last function is left out.
    fn from_str(text: &str) -> Result<Self, ParsePciAddressError> {
        let is_bridge =
            |part: &str| part.strip_prefix("pci").is_some_and(|rest| rest.contains(':') && rest.len() >= 7);
        let below = text.split('/').skip_while(|part| !is_bridge(part));
        // Some storage controllers have a host bridge of their own below them.
        let is_step = |part: &&str| is_bridge(part) || part.parse::<PciAddress>().is_ok();
        let components: Vec<String> = below.take_while(is_step).map(str::to_owned).collect();
        let address = components.last().ok_or(ParsePciAddressError)?.parse()?;
        Ok(Self { components, address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> PciPath {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_read_strictly() {
        for text in ["0000:3b:00.0", "10000:01:1f.7"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
        }
        for text in ["", "3b:00.0", "0000:3b:20.0", "0000:3b:00.8", "0000:3b:00", "0000:+b:00.0", "0:0:0.0"] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_around_the_way_is_left_out() {
        let path = path("sys/devices/platform/x/pci0000:00/0000:00:01.0/0000:01:00.0/infiniband/mlx5_0");
        assert_eq!(path.components(), ["pci0000:00", "0000:00:01.0", "0000:01:00.0"]);
        assert!("sys/devices/virtual/infiniband/rxe0".parse::<PciPath>().is_err());
        assert!("sys/devices/pci0000:00".parse::<PciPath>().is_err());
    }

    #[test]
    fn a_host_bridge_below_a_controller_is_a_step() {
        let path = path("pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0");
        assert_eq!(path.address().domain, 0x10000);
        assert_eq!(path.components().len(), 5);
    }

    #[test]
    fn distance_counts_steps_and_is_symmetric() {
        let switch = "pci0000:15/0000:15:01.0/0000:16:00.0";
        let gpu = path(&format!("{switch}/0000:17:00.0/0000:18:00.0"));
        let near = path(&format!("{switch}/0000:17:01.0/0000:19:00.0"));
        let far = path("pci0000:80/0000:80:01.0/0000:81:00.0");
        assert_eq!(gpu.distance(&gpu), 0);
        assert_eq!((gpu.distance(&near), near.distance(&gpu)), (4, 4));
        assert_eq!((gpu.distance(&far), far.distance(&gpu)), (8, 8));
    }
}
