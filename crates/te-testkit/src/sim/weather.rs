//! How bad a simulated network is, and which faults a seed draws from that.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;

/// How bad it is out there. Chances are from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Weather {
    /// Virtual time of a run. Faults end at three quarters of it.
    pub length: Duration,
    /// The least time a message takes.
    pub delay_min: Duration,
    /// The most time a message takes; messages overtake each other.
    pub delay_max: Duration,
    /// The chance of a message to be lost.
    pub loss: f64,
    /// The chance of a message to arrive twice.
    pub duplicate: f64,
    /// At most so many times one process is cut off from all others.
    pub partitions: u32,
    /// At most so many times one process stands still: messages wait for it and its clock does not wake it.
    pub freezes: u32,
    /// At most so many times one process begins a new life.
    pub restarts: u32,
    /// At most so long takes one partition or freeze.
    pub outage: Duration,
}

impl Weather {
    /// No faults: one minute, messages take up to a millisecond.
    #[must_use]
    pub fn calm() -> Self {
        Self {
            length: Duration::from_secs(60),
            delay_min: Duration::from_micros(20),
            delay_max: Duration::from_millis(1),
            loss: 0.0,
            duplicate: 0.0,
            partitions: 0,
            freezes: 0,
            restarts: 0,
            outage: Duration::from_secs(5),
        }
    }

    /// Some of everything.
    #[must_use]
    pub fn stormy() -> Self {
        Self {
            loss: 0.05,
            duplicate: 0.05,
            delay_max: Duration::from_millis(300),
            partitions: 3,
            freezes: 3,
            restarts: 2,
            ..Self::calm()
        }
    }

    /// The same for another time.
    #[must_use]
    pub fn lasting(mut self, length: Duration) -> Self {
        self.length = length;
        self
    }

    /// The same without doubled messages, for what a stream carries.
    #[must_use]
    pub fn without_duplicates(mut self) -> Self {
        self.duplicate = 0.0;
        self
    }

    /// From here on there are no faults.
    pub(super) fn fair_from(&self) -> Duration {
        self.length / 4 * 3
    }

    /// Most messages are fast; one in four takes any time up to the most.
    pub(super) fn draw_delay(&self, chance: &mut StdRng) -> Duration {
        let most = if chance.random_bool(0.25) { self.delay_max } else { self.delay_min * 4 };
        draw(chance, self.delay_min, most.min(self.delay_max))
    }
}

fn draw(chance: &mut StdRng, least: Duration, most: Duration) -> Duration {
    if least < most { chance.random_range(least..most) } else { least }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Restart(usize),
}

/// One process, from and until when.
#[derive(Clone, Copy, Debug)]
struct Outage {
    process: usize,
    from: Duration,
    until: Duration,
}

/// The faults of one run, drawn before it begins.
#[derive(Debug, Default)]
pub(super) struct Faults {
    partitions: Vec<Outage>,
    freezes: Vec<Outage>,
    pub(super) restarts: Vec<(Duration, Fault)>,
}

impl Faults {
    pub(super) fn draw(weather: &Weather, processes: usize, chance: &mut StdRng) -> Self {
        let mut faults = Self::default();
        if processes == 0 {
            return faults;
        }
        let end = weather.fair_from();
        let outages = |most: u32, chance: &mut StdRng| -> Vec<_> {
            let count = if most == 0 { 0 } else { chance.random_range(0..=most) };
            (0..count)
                .map(|_| {
                    let process = chance.random_range(0..processes);
                    let from = draw(chance, Duration::ZERO, end);
                    let until = from + draw(chance, Duration::ZERO, weather.outage.min(end - from));
                    Outage { process, from, until }
                })
                .collect()
        };
        faults.partitions = outages(weather.partitions, chance);
        faults.freezes = outages(weather.freezes, chance);
        let restarts = outages(weather.restarts, chance);
        faults.restarts = restarts.iter().map(|o| (o.from, Fault::Restart(o.process))).collect();
        faults
    }

    /// Whether a partition separates the two.
    pub(super) fn parts(&self, one: usize, other: usize, now: Duration) -> bool {
        let cut_off =
            |o: &Outage| o.from <= now && now < o.until && (o.process == one) != (o.process == other);
        self.partitions.iter().any(cut_off)
    }

    /// When a process can next do something: `at`, or the end of the freezes around it.
    pub(super) fn thaws(&self, process: usize, at: Duration) -> Duration {
        let mut thawed = at;
        while let Some(freeze) =
            self.freezes.iter().find(|o| o.process == process && o.from <= thawed && thawed < o.until)
        {
            thawed = freeze.until;
        }
        thawed
    }
}
