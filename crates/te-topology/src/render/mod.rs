//! A host as text for people: tables, and a tree of what is below what.

mod table;
mod tree;

use std::fmt::Display;

use crate::host::Host;
use crate::root::Fact;

impl Host {
    /// A table for every kind of device there is.
    #[must_use]
    pub fn table(&self) -> String {
        table::render(self)
    }

    /// What is below what: NUMA nodes, bridges, devices.
    #[must_use]
    pub fn tree(&self) -> String {
        tree::render(self)
    }
}

/// Bytes in the largest unit that leaves less than 1,024 of it, with one decimal where it has one.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0;
    while unit + 1 < UNITS.len() && count >> (10 * (unit + 1)) > 0 {
        unit += 1;
    }
    let size = 1_u64 << (10 * unit);
    let (whole, tenths) = (count / size, count % size * 10 / size);
    match tenths {
        0 => format!("{whole} {}", UNITS[unit]),
        _ => format!("{whole}.{tenths} {}", UNITS[unit]),
    }
}

/// A fact, or `-`.
fn known<T: Display>(fact: &Fact<T>) -> String {
    fact.as_ref().map_or_else(|_| "-".to_owned(), ToString::to_string)
}

/// A number of bytes, or `-`.
fn known_bytes(fact: &Fact<u64>) -> String {
    fact.as_ref().map_or_else(|_| "-".to_owned(), |count| bytes(*count))
}

/// A node, or `-` where there is none or none is known.
fn node(fact: &Fact<Option<u32>>) -> String {
    match fact {
        Ok(Some(node)) => node.to_string(),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_decimal() {
        let cases = [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (80 << 30, "80 GiB")];
        for (count, text) in cases {
            assert_eq!(bytes(count), text);
        }
        assert_eq!(bytes(u64::MAX), "16383.9 PiB");
    }
}
