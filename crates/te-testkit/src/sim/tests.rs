use super::*;

/// Sends numbers to the other, one each 100 ms, until it has sent ten in this life.
#[derive(Default)]
struct Counter {
    next: u64,
    wake: Option<Instant>,
    seen: Vec<u64>,
    starts: u32,
    last: Option<Instant>,
}

const PAUSE: Duration = Duration::from_millis(100);

impl Process for Counter {
    type Message = u64;

    fn start(&mut self, post: &mut Post<'_, u64>) {
        assert_eq!(post.life(), self.starts);
        self.starts += 1;
        self.next = 0;
        self.wake = Some(post.now());
    }

    fn receive(&mut self, from: usize, message: u64, post: &mut Post<'_, u64>) {
        assert_ne!(from, post.me());
        self.seen.push(message);
        self.last = Some(post.now());
    }

    fn wake_at(&self) -> Option<Instant> {
        self.wake
    }

    fn wake(&mut self, post: &mut Post<'_, u64>) {
        post.send(1 - post.me(), self.next);
        self.next += 1;
        self.wake = (self.next < 10).then(|| post.now() + PAUSE);
    }
}

fn run(seed: u64, weather: Weather) -> (Sim<Counter>, Ran) {
    let mut sim = Sim::new(seed, weather, vec![Counter::default(), Counter::default()]);
    let ran = sim.run(|_, _| Ok(())).unwrap();
    (sim, ran)
}

#[test]
fn calm_weather_delivers_everything_once_in_its_order() {
    let (sim, ran) = run(1, Weather::calm());
    assert_eq!((ran.delivered, ran.lost, ran.wakes, ran.restarts), (20, 0, 20, 0));
    assert_eq!(sim.processes()[0].seen, (0..10).collect::<Vec<_>>());
}

#[test]
fn a_seed_decides_everything() {
    for seed in 0..50 {
        let (one, ran) = run(seed, Weather::stormy().lasting(Duration::from_secs(4)));
        let (two, again) = run(seed, Weather::stormy().lasting(Duration::from_secs(4)));
        assert_eq!((ran, one.mishap("")), (again, two.mishap("")));
    }
    let differ = (0..50).map(|seed| run(seed, Weather::stormy()).1.delivered);
    assert!(differ.collect::<std::collections::BTreeSet<_>>().len() > 3);
}

#[test]
fn stormy_weather_has_every_fault() {
    let (mut lost, mut doubled, mut restarts, mut overtaken) = (0, 0, 0, 0);
    for seed in 0..50 {
        let (sim, ran) = run(seed, Weather::stormy().lasting(Duration::from_secs(2)));
        lost += ran.lost;
        restarts += ran.restarts;
        for counter in sim.processes() {
            doubled += counter.seen.windows(2).filter(|pair| pair[0] == pair[1]).count();
            overtaken += counter.seen.windows(2).filter(|pair| pair[0] > pair[1]).count();
        }
    }
    assert!(lost > 10 && restarts > 10 && doubled > 3 && overtaken > 3);
}

#[test]
fn a_frozen_process_gets_its_messages_later() {
    let mut weather = Weather::calm().lasting(Duration::from_secs(2));
    (weather.freezes, weather.outage) = (4, Duration::from_secs(1));
    let mut late = 0;
    for seed in 0..50 {
        let (sim, ran) = run(seed, weather.clone());
        assert_eq!((ran.delivered, ran.lost), (20, 0), "seed {seed}");
        let last = sim.processes()[0].last.unwrap() - sim.origin;
        late += usize::from(last > Duration::from_millis(950));
    }
    assert!(late > 10, "only {late} of 50");
}

#[test]
fn a_partition_loses_what_crosses_it() {
    let mut weather = Weather::calm().lasting(Duration::from_secs(2));
    (weather.partitions, weather.outage) = (4, Duration::from_secs(1));
    let lost: usize = (0..50).map(|seed| run(seed, weather.clone()).1.lost).sum();
    assert!(lost > 100);
}

#[test]
fn a_failed_run_names_its_seed_and_the_last_events() {
    let mut sim = Sim::new(3, Weather::calm(), vec![Counter::default(), Counter::default()]);
    let full = |processes: &[Counter]| processes[1].seen.len() == 5;
    let mishap = sim.run(|p, _| if full(p) { Err("five".into()) } else { Ok(()) }).unwrap_err();
    let text = mishap.to_string();
    assert!(text.contains("five") && text.contains("TE_SEED=3") && text.contains("0 -> 1 4"), "{text}");
}

#[test]
fn a_process_that_never_rests_is_found() {
    struct Restless;
    impl Process for Restless {
        type Message = ();
        fn receive(&mut self, _: usize, (): (), _: &mut Post<'_, ()>) {}
        fn start(&mut self, post: &mut Post<'_, ()>) {
            post.send(post.me(), ());
        }
        fn wake_at(&self) -> Option<Instant> {
            Some(Instant::now())
        }
    }
    // Its clock is behind the virtual one: it is always due.
    let mut sim = Sim::new(0, Weather::calm(), vec![Restless]);
    assert!(sim.run(|_, _| Ok(())).unwrap_err().why.contains("not at rest"));
}
