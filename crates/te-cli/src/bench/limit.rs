//! How fast the links of a path are beside what was reached, and what stood in the way: from counters, never from a guess.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use te_topology::{Host, NicFilter, Root};

/// From this share of its capacity on, something is taken for used up.
const FULL: f64 = 0.85;
/// What carried a smaller share of the payload carried something else.
const CARRIED: f64 = 0.1;

/// What of this host can be asked at any time: bytes through each link, and CPU time of each thread.
pub(super) struct Reading {
    links: BTreeMap<String, Link>,
    /// Time on a core by thread, with its name.
    threads: BTreeMap<String, (String, Duration)>,
    /// Ticks of all cores: those that did something, and all.
    cores: Option<(u64, u64)>,
}

#[derive(Clone, Debug, PartialEq)]
struct Link {
    received: u64,
    sent: u64,
    /// Gigabytes (1e9 bytes) per second in one direction, if it says so.
    speed: Option<f64>,
}

/// What happened between two readings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// Gigabytes (1e9 bytes) per second of payload.
    pub(super) rate: f64,
    /// The links that carried it, with their speed.
    pub(super) links: Vec<(String, Option<f64>)>,
    /// The thread of this process that was busiest, and its share of a core.
    pub(super) busiest: Option<(String, f64)>,
    /// Share of all cores of this host that was used, by whomever.
    pub(super) cores: Option<f64>,
}

/// What stood in the way.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Limit {
    /// The links are full.
    Links { share: f64 },
    /// One thread here that does all it can, copying between processes of this host.
    Copy { thread: String, share: f64 },
    /// One thread here that does all it can.
    Thread { thread: String, share: f64 },
    /// All cores of this host.
    Cores { share: f64 },
    /// Nothing of this host: the peer, the fabric, or too little under way at a time.
    Elsewhere,
    /// The system does not say enough.
    Unknown,
}

impl Seen {
    /// The speed of all links together; none if one does not say its own, or if there are none.
    pub(super) fn line(&self) -> Option<f64> {
        if self.links.is_empty() {
            return None;
        }
        self.links.iter().map(|(_, speed)| *speed).sum()
    }

    /// Judges it. The first that applies: a full link explains busy threads, and a busy thread a busy host.
    pub(super) fn limit(&self) -> Limit {
        let within_host = self.links.is_empty();
        if let Some(line) = self.line().filter(|line| *line > 0.0)
            && self.rate / line >= FULL
        {
            return Limit::Links { share: self.rate / line };
        }
        match (&self.busiest, self.cores) {
            (Some((thread, share)), _) if *share >= FULL => {
                let (thread, share) = (thread.clone(), *share);
                if within_host { Limit::Copy { thread, share } } else { Limit::Thread { thread, share } }
            }
            (_, Some(share)) if share >= FULL => Limit::Cores { share },
            (Some(_), Some(_)) => Limit::Elsewhere,
            _ => Limit::Unknown,
        }
    }

    /// Takes in how busy a thread was that has ended.
    pub(super) fn ended(&mut self, name: &str, share: f64) {
        if self.busiest.as_ref().is_none_or(|(_, busiest)| share > *busiest) {
            self.busiest = Some((name.to_owned(), share.min(1.0)));
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let links: Vec<Value> = self
            .links
            .iter()
            .map(|(name, speed)| json!({ "name": name, "gigabytes_per_second": speed }))
            .collect();
        json!({
            "links": links, "gigabytes_per_second": self.line(), "limit": self.limit().to_string(),
            "busiest_thread": self.busiest.as_ref().map(|(thread, share)| json!({ "name": thread, "share": share })),
            "cores_used": self.cores,
        })
    }

    /// Whether links carried the bytes, rather than memory.
    pub(super) fn has_links(&self) -> bool {
        !self.links.is_empty()
    }
}

impl fmt::Display for Seen {
    /// What limits, and the links with their speed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limited by {}", self.limit())?;
        for (place, (name, speed)) in self.links.iter().enumerate() {
            f.write_str(if place == 0 { "; over " } else { ", " })?;
            match speed {
                Some(speed) => write!(f, "{name} ({speed:.2} GB/s)")?,
                None => write!(f, "{name} (speed unknown)")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        match self {
            Self::Links { share } => write!(f, "the links, at {} of line rate", percent(*share)),
            Self::Copy { thread, share } => {
                write!(f, "copying in memory: a thread ({thread}) is busy {} of the time", percent(*share))
            }
            Self::Thread { thread, share } => {
                write!(f, "one core: a thread ({thread}) is busy {} of the time", percent(*share))
            }
            Self::Cores { share } => write!(f, "all cores of this host, {} busy", percent(*share)),
            Self::Elsewhere => {
                f.write_str("nothing of this host: the peer, the fabric, or too little under way at a time")
            }
            Self::Unknown => f.write_str("unknown: the system does not say how busy it is"),
        }
    }
}

impl Reading {
    /// Reads what there is now. What cannot be read is left out.
    pub(super) fn take() -> Self {
        let cores = fs::read_to_string("/proc/stat").ok().as_deref().and_then(ticks_of_cores);
        Self { links: links(), threads: threads(), cores }
    }

    /// What has happened since, while so many bytes of payload were moved in that time.
    pub(super) fn since(self, before: &Self, bytes: u64, time: Duration) -> Seen {
        let seconds = time.as_secs_f64();
        if seconds <= 0.0 {
            return Seen::default();
        }
        let busy = |(thread, (name, ran)): (&String, &(String, Duration))| {
            let earlier = before.threads.get(thread).map_or(Duration::ZERO, |(_, ran)| *ran);
            (name.clone(), (ran.saturating_sub(earlier).as_secs_f64() / seconds).min(1.0))
        };
        let busiest = self.threads.iter().map(busy).max_by(|a, b| a.1.total_cmp(&b.1));
        let cores = self.cores.zip(before.cores).and_then(|((used, all), (used_before, all_before))| {
            let all = all.checked_sub(all_before).filter(|all| *all > 0)?;
            Some(used.saturating_sub(used_before) as f64 / all as f64)
        });
        let links = carrying(&self.links, &before.links, bytes);
        Seen { rate: bytes as f64 / 1e9 / seconds, links, busiest, cores }
    }
}

/// The links that carried a good part of so many bytes, in either direction.
fn carrying(
    now: &BTreeMap<String, Link>,
    before: &BTreeMap<String, Link>,
    bytes: u64,
) -> Vec<(String, Option<f64>)> {
    let carried = |(name, link): &(&String, &Link)| {
        let Some(earlier) = before.get(*name) else { return false };
        let received = link.received.saturating_sub(earlier.received);
        let sent = link.sent.saturating_sub(earlier.sent);
        bytes > 0 && received.max(sent) as f64 >= bytes as f64 * CARRIED
    };
    now.iter().filter(carried).map(|(name, link)| (name.clone(), link.speed)).collect()
}

/// Ports of NICs that count what they carry past the kernel, and network interfaces other than loopback, over which software
/// NICs go too.
fn links() -> BTreeMap<String, Link> {
    let number = |path: String| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let mut links = BTreeMap::new();
    let Ok(host) = Host::discover(&Root::system(), &NicFilter::all()) else { return links };
    for netdev in host.netdevs.iter().map(|netdev| &netdev.name).filter(|name| *name != "lo") {
        let at = format!("/sys/class/net/{netdev}");
        // One on top of others, as a bond is: what it carries, they count.
        let below = |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with("lower_");
        if fs::read_dir(&at).is_ok_and(|entries| entries.flatten().any(below)) {
            continue;
        }
        let counter = |way: &str| number(format!("{at}/statistics/{way}_bytes"));
        let (Some(received), Some(sent)) = (counter("rx"), counter("tx")) else { continue };
        // Megabits per second; an interface that has none says -1 or refuses.
        let speed = number(format!("{at}/speed")).filter(|speed| *speed > 0);
        let speed = speed.map(|megabits| megabits as f64 / 8e3);
        links.insert(netdev.clone(), Link { received, sent, speed });
    }
    for nic in &host.nics {
        for port in &nic.ports {
            let at = format!("/sys/class/infiniband/{}/ports/{}/counters", nic.name, port.number);
            // In words of four bytes. Software devices have no such counters.
            let counter = |way: &str| Some(number(format!("{at}/port_{way}_data"))?.saturating_mul(4));
            let (Some(received), Some(sent)) = (counter("rcv"), counter("xmit")) else { continue };
            let speed = port.rate.as_ref().ok().map(|rate| rate.megabits as f64 / 8e3);
            links.insert(format!("{}/{}", nic.name, port.number), Link { received, sent, speed });
        }
    }
    links
}

fn threads() -> BTreeMap<String, (String, Duration)> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return BTreeMap::new() };
    let thread = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let ran = time_on_a_core(&fs::read_to_string(task.path().join("schedstat")).ok()?)?;
        Some((task.file_name().to_string_lossy().into_owned(), (name.trim().to_owned(), ran)))
    };
    tasks.flatten().filter_map(thread).collect()
}

/// How long the calling thread has been on a core, if the system says so.
pub(super) fn own_time() -> Option<Duration> {
    time_on_a_core(&fs::read_to_string("/proc/thread-self/schedstat").ok()?)
}

/// The first number of a `schedstat`, in nanoseconds.
fn time_on_a_core(stat: &str) -> Option<Duration> {
    stat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Ticks in which some core did something, and all ticks, in `/proc/stat`: of user, nice, system, idle, waiting for devices,
/// and more that is work.
fn ticks_of_cores(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    // The last two are part of the first two.
    let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|ticks| ticks.parse().ok()).collect();
    let idle = ticks.get(3)? + ticks.get(4)?;
    let all: u64 = ticks.iter().sum();
    Some((all.checked_sub(idle)?, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(rate: f64, links: &[(&str, Option<f64>)], busiest: f64, cores: f64) -> Seen {
        Seen {
            rate,
            links: links.iter().map(|(name, speed)| ((*name).to_owned(), *speed)).collect(),
            busiest: Some(("te-rdma-poll".to_owned(), busiest)),
            cores: Some(cores),
        }
    }

    /// RDMA-12: what limits is told from what was measured.
    #[test]
    fn what_limits_is_told_with_the_reason() {
        let rails = [("mlx5_0/1", Some(12.5)), ("mlx5_1/1", Some(12.5))];
        let unknown = [("eth0", None)];
        let table = [
            // Full links, whatever else is busy.
            (seen(23.0, &rails, 0.99, 0.9), "the links, at 92 % of line rate"),
            // Half a bonded NIC: a core, or nothing here.
            (seen(12.0, &rails, 0.97, 0.3), "one core: a thread (te-rdma-poll) is busy 97 % of the time"),
            (
                seen(12.0, &rails, 0.5, 0.3),
                "nothing of this host: the peer, the fabric, or too little under way at a time",
            ),
            (seen(12.0, &rails, 0.5, 0.95), "all cores of this host, 95 % busy"),
            // A speed that nobody states is not made up.
            (seen(100.0, &unknown, 0.9, 0.3), "one core: a thread (te-rdma-poll) is busy 90 % of the time"),
            (
                seen(100.0, &unknown, 0.1, 0.3),
                "nothing of this host: the peer, the fabric, or too little under way at a time",
            ),
            // Within the host no link carries anything.
            (
                seen(9.0, &[], 0.98, 0.6),
                "copying in memory: a thread (te-rdma-poll) is busy 98 % of the time",
            ),
            (
                Seen { busiest: None, cores: None, ..seen(9.0, &rails, 0.0, 0.0) },
                "unknown: the system does not say how busy it is",
            ),
        ];
        for (seen, expected) in table {
            assert_eq!(seen.limit().to_string(), expected, "{seen:?}");
        }
    }

    #[test]
    fn the_line_rate_is_that_of_all_links_or_none() {
        assert_eq!(seen(1.0, &[("a", Some(12.5)), ("b", Some(25.0))], 0.0, 0.0).line(), Some(37.5));
        assert_eq!(seen(1.0, &[("a", Some(12.5)), ("b", None)], 0.0, 0.0).line(), None);
        assert_eq!(seen(1.0, &[], 0.0, 0.0).line(), None);
    }

    #[test]
    fn only_links_that_carried_the_bytes_count() {
        let link = |received, sent| Link { received, sent, speed: Some(1.0) };
        let map = |links: [(&str, Link); 3]| links.map(|(name, link)| (name.to_owned(), link)).into();
        let before = map([("eth0", link(50, 50)), ("rail0", link(0, 0)), ("rail1", link(7, 7))]);
        let now = map([("eth0", link(60, 70)), ("rail0", link(3, 600)), ("rail1", link(507, 9))]);
        let names =
            |bytes| carrying(&now, &before, bytes).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(1000), ["rail0", "rail1"]);
        assert!(names(0).is_empty());
    }

    #[test]
    fn ticks_of_all_cores_leave_out_those_that_idled() {
        let stat = "cpu  10 1 5 80 4 1 2 0 0 0\ncpu0 5 0 2 40 2 0 1 0 0 0\n";
        assert_eq!(ticks_of_cores(stat), Some((19, 103)));
        assert_eq!(ticks_of_cores("cpu0 1"), None);
    }

    #[test]
    fn a_busy_thread_is_found() {
        let (before, began) = (Reading::take(), std::time::Instant::now());
        let busy = || {
            let seen = Reading::take().since(&before, 1, began.elapsed());
            seen.busiest.is_some_and(|(_, share)| share > 0.0)
        };
        while !busy() {
            std::hint::spin_loop();
        }
    }
}
