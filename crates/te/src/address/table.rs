//! The interface table of this host.

use std::fs;
use std::io;

use super::{Interface, InterfaceFilter};

/// Bits of `/sys/class/net/NAME/flags`.
const UP: u32 = 0x1;
const LOOPBACK: u32 = 0x8;

/// The interfaces of this host that have an address and count by the filter, in the order of the system.
///
/// # Errors
///
/// What the system says.
pub fn interfaces(filter: &InterfaceFilter) -> io::Result<Vec<Interface>> {
    let mut table: Vec<Interface> = Vec::new();
    for found in if_addrs::get_if_addrs()? {
        let address = found.ip();
        if let Some(known) = table.iter_mut().find(|known| known.name == found.name) {
            known.addresses.push(address);
            continue;
        }
        let flags = flags(&found.name);
        table.push(Interface {
            up: flags.map_or_else(|| found.is_oper_up(), |flags| flags & UP != 0),
            running: has_link(&found.name).unwrap_or_else(|| found.is_oper_up()),
            loopback: flags.map_or_else(|| found.is_loopback(), |flags| flags & LOOPBACK != 0),
            name: found.name,
            addresses: vec![address],
        });
    }
    Ok(filter.apply(table))
}

fn flags(name: &str) -> Option<u32> {
    let text = fs::read_to_string(format!("/sys/class/net/{name}/flags")).ok()?;
    u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// `unknown` is what interfaces say that do not follow their link, such as tunnels and loopback.
fn has_link(name: &str) -> Option<bool> {
    let text = fs::read_to_string(format!("/sys/class/net/{name}/operstate")).ok()?;
    Some(matches!(text.trim(), "up" | "unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_in_the_table_and_known_as_such() {
        let table = interfaces(&InterfaceFilter::default()).unwrap();
        let loopback = table.iter().find(|interface| interface.addresses.iter().any(|a| a.is_loopback()));
        assert!(loopback.unwrap().loopback);
    }

    /// SEL-09: before anybody sees it.
    #[test]
    fn what_is_excluded_is_not_in_the_table() {
        // Other tests create interfaces meanwhile, so that two readings may differ by more than what is excluded.
        let alike = (0..1000).any(|_| {
            let all = interfaces(&InterfaceFilter::default()).unwrap();
            let first = &all.first().unwrap().name;
            let without = interfaces(&format!("!{first}").parse().unwrap()).unwrap();
            assert!(without.iter().all(|interface| interface.name != *first));
            let only = interfaces(&first.parse().unwrap()).unwrap();
            without == all[1..] && only == all[..1]
        });
        assert!(alike);
    }
}
