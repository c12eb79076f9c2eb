//! What both sides use: CPU time and allocations; and where they run.

use std::cell::RefCell;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::child::JsonChild;
use crate::failure::{Failure, Result};

/// Within this time the other side says what it has used.
const ANSWER: Duration = Duration::from_secs(5);

/// Reads what this process and one other on this host have used.
pub(crate) struct Meter {
    other: RefCell<JsonChild>,
}

/// What both sides have used.
#[derive(Clone, Copy)]
pub(crate) struct Used {
    /// User and system time, to a hundredth of a second.
    pub(crate) cpu: Duration,
    /// Allocations on the heap.
    pub(crate) allocations: u64,
}

impl Used {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(before.cpu),
            allocations: self.allocations.saturating_sub(before.allocations),
        }
    }
}

impl Meter {
    /// For this process and a child that serves.
    pub(crate) fn with(other: JsonChild) -> Self {
        Self { other: RefCell::new(other) }
    }

    /// What both have used so far; `None` if the other one is gone.
    pub(crate) fn used(&self) -> Option<Used> {
        let mut other = self.other.try_borrow_mut().ok()?;
        let cpu = used_by(std::process::id())? + used_by(other.id())?;
        let theirs = other.ask("allocations", ANSWER).ok()?["allocations"].as_u64()?;
        Some(Used { cpu, allocations: crate::ALLOCATOR.allocations() + theirs })
    }
}

fn used_by(process: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let ticks = ticks_in(&stat)?;
    Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// User and system time in `/proc/PID/stat`: two numbers behind the name, which is in brackets and may hold any character.
fn ticks_in(stat: &str) -> Option<u64> {
    let mut rest = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let mut next = || rest.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// Two cores, one for each side.
pub(crate) struct Cores {
    first: usize,
    last: usize,
}

impl Cores {
    /// The first and the last of those this thread may use.
    pub(crate) fn allowed() -> Result<Self> {
        let allowed = sched_getaffinity(None).map_err(failed)?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        let first = cores.next().unwrap_or(0);
        Ok(Self { first, last: cores.next_back().unwrap_or(first) })
    }

    /// Keeps this thread, and what it starts from now on, on the initiator's core or on the target's.
    pub(crate) fn pin(&self, initiator: bool) -> Result<()> {
        let mut chosen = CpuSet::new();
        chosen.set(if initiator { self.first } else { self.last });
        sched_setaffinity(None, &chosen).map_err(failed)
    }
}

fn failed(error: rustix::io::Errno) -> Failure {
    Failure::io("cannot choose a core", &error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_behind_a_name_with_anything_in_it() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 12 30 0 0 20 0 1 0 100 1000 1";
        assert_eq!(ticks_in(stat), Some(42));
        assert_eq!(ticks_in("7 (cut"), None);
    }

    #[test]
    fn time_of_a_busy_process_grows() {
        let before = used_by(std::process::id()).unwrap();
        while used_by(std::process::id()).unwrap() == before {
            std::hint::spin_loop();
        }
        assert_eq!(used_by(u32::MAX), None);
    }
}
