//! NUMA nodes: processors, memory, and how far they are from each other.

use std::fmt;
use std::str::FromStr;

use crate::root::{Fact, Root};

/// Processors, or other numbered things, as the kernel writes them: `0-27,56-83`; may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList {
    ranges: Vec<(u32, u32)>,
}

impl CpuList {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.ranges.iter().map(|(first, last)| u64::from(last - first) + 1).sum()
    }

    /// Whether this one is among them.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&cpu))
    }
}

/// A text is no list of processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a list of processors is written 0-27,56-83, in ascending order")]
pub struct ParseCpuListError;

impl FromStr for CpuList {
    type Err = ParseCpuListError;

    fn from_str(text: &str) -> Result<Self, ParseCpuListError> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) else {
                return Err(ParseCpuListError);
            };
            if last < first || ranges.last().is_some_and(|(_, before)| first <= *before) {
                return Err(ParseCpuListError);
            }
            ranges.push((first, last));
        }
        Ok(Self { ranges })
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |(first, last): &(u32, u32)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        f.pad(&self.ranges.iter().map(range).collect::<Vec<_>>().join(","))
    }
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NumaNode {
    /// Its number; numbers may have gaps.
    pub number: u32,
    /// Its processors; none on a node that is memory only, such as CXL memory.
    pub cpus: Fact<CpuList>,
    /// Its memory in bytes.
    pub memory: Fact<u64>,
    /// What of it is free, in bytes.
    pub free: Fact<u64>,
    /// Distance to each node in the order of their numbers; 10 is here.
    pub distances: Fact<Vec<u32>>,
}

const NODES: &str = "sys/devices/system/node";

pub(crate) fn nodes(root: &Root) -> Fact<Vec<NumaNode>> {
    let numbers = root.entries(NODES)?;
    let numbers = numbers.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok());
    Ok(numbers.map(|number| node(root, number)).collect())
}

fn node(root: &Root, number: u32) -> NumaNode {
    let at = |file: &str| format!("{NODES}/node{number}/{file}");
    let amount = |key: &str| {
        root.read(&at("meminfo"), "an amount in kB for every kind of memory", |text| memory(text, key))
    };
    NumaNode {
        number,
        cpus: root.parsed(&at("cpulist"), "a list of processors"),
        memory: amount("MemTotal:"),
        free: amount("MemFree:"),
        distances: root.read(&at("distance"), "a distance to every node", |text| {
            text.split_whitespace().map(|word| word.parse().ok()).collect()
        }),
    }
}

/// Bytes of one line of `meminfo`, such as `Node 0 MemTotal: 131900260 kB`.
fn memory(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split_whitespace().any(|word| word == key))?;
    let mut words = line.split_whitespace().skip_while(|word| *word != key).skip(1);
    let amount: u64 = words.next()?.parse().ok()?;
    (words.next() == Some("kB")).then(|| amount.checked_mul(1024)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_survive() {
        for (text, count) in [("", 0), ("0", 1), ("0-27,56-83", 56), ("1,3,5-6", 4)] {
            let list: CpuList = text.parse().unwrap();
            assert_eq!((list.to_string().as_str(), list.count()), (text, count));
        }
        let list: CpuList = "0-3,8".parse().unwrap();
        assert!(list.contains(3) && list.contains(8) && !list.contains(4));
        for text in ["-", "3-1", "0,0", "a", "1,", "0-99999999999"] {
            assert!(text.parse::<CpuList>().is_err(), "{text}");
        }
    }

    #[test]
    fn memory_is_found_by_its_key() {
        let text = "Node 0 MemTotal:       64 kB\nNode 0 MemFree:        3 kB";
        assert_eq!((memory(text, "MemTotal:"), memory(text, "MemFree:")), (Some(65536), Some(3072)));
        assert_eq!((memory(text, "MemUsed:"), memory("Node 0 MemTotal: 5 MB", "MemTotal:")), (None, None));
        assert_eq!(memory("Node 0 MemTotal: 99999999999999999999 kB", "MemTotal:"), None);
    }
}
