//! CPU time of both sides, and where they run.

use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::failure::{Failure, Result};

/// Reads how much CPU time processes have used.
pub(crate) struct Meter {
    processes: Vec<u32>,
}

impl Meter {
    /// For this process and one other on this host.
    pub(crate) fn with(other: u32) -> Self {
        Self { processes: vec![std::process::id(), other] }
    }

    /// User and system time of all of them so far, to a hundredth of a second; `None` if one is gone.
    pub(crate) fn used(&self) -> Option<Duration> {
        self.processes.iter().map(|process| used_by(*process)).sum()
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
        let meter = Meter { processes: vec![std::process::id()] };
        let before = meter.used().unwrap();
        while meter.used().unwrap() == before {
            std::hint::spin_loop();
        }
        assert_eq!(Meter::with(u32::MAX).used(), None);
    }
}
