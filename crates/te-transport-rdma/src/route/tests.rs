use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use te_segment::DeviceKind;

use super::*;
use crate::slices::SliceSize;

const MIB: u64 = 1 << 20;

fn nic(number: usize) -> NicName {
    format!("mlx5_{number}").parse().unwrap()
}

fn rail(local: usize, remote: usize) -> Rail {
    Rail { local: nic(local), remote: nic(remote) }
}

fn gpu() -> Location {
    Location::device(DeviceKind::Cuda, 0)
}

/// The NICs of a host, each with a key that says whose it is.
struct Host {
    topology: Topology,
    keys: BTreeMap<NicName, MemoryKey>,
}

impl Host {
    /// NICs `0..nics`, of which the first `close` are close to the buffer.
    fn new(nics: usize, close: usize, salt: u64) -> Self {
        let mut topology = Topology::new();
        topology.insert(&gpu(), (0..close).map(nic), (close..nics).map(nic));
        let keys = (0..nics).map(|at| (nic(at), key(salt, at))).collect();
        Self { topology, keys }
    }

    fn side<'a>(&'a self, location: &'a Location) -> Side<'a> {
        Side { location, topology: &self.topology, keys: &self.keys }
    }
}

fn key(salt: u64, at: usize) -> MemoryKey {
    MemoryKey::new(salt + at as u64)
}

struct Rig {
    hosts: [Host; 2],
    connectivity: Connectivity,
    health: Health,
    reach: Reach,
    now: Instant,
}

impl Rig {
    fn new(here: Host, there: Host) -> Self {
        Self {
            hosts: [here, there],
            connectivity: Connectivity::All,
            health: Health::default(),
            reach: Reach::default(),
            now: Instant::now(),
        }
    }

    fn plan(&self, tried: &[Rail]) -> Result<Plan, NoRoute> {
        let place = gpu();
        let query = Query {
            local: self.hosts[0].side(&place),
            remote: self.hosts[1].side(&place),
            peer: "b",
            connectivity: &self.connectivity,
            tried,
        };
        plan(&query, &self.health, &self.reach, self.now)
    }

    fn rails(&self) -> BTreeSet<Rail> {
        self.plan(&[]).unwrap().rails.into_iter().map(|candidate| candidate.rail).collect()
    }
}

#[test]
fn rails_of_one_name_are_preferred_and_every_close_nic_is_used() {
    let rig = Rig::new(Host::new(8, 4, 100), Host::new(8, 4, 200));
    assert_eq!(rig.rails(), (0..4).map(|at| rail(at, at)).collect());
    let plan = rig.plan(&[]).unwrap();
    assert_eq!((plan.rails.len() + plan.spare.len(), plan.left_out.len()), (64, 0));
    assert_eq!(plan.rails[0].standing.to_string(), "close to both buffers");
    assert!(plan.spare.is_sorted_by_key(|candidate| candidate.standing));
}

#[test]
fn a_host_with_fewer_nics_uses_each_of_the_others() {
    let rig = Rig::new(Host::new(2, 2, 100), Host::new(4, 4, 200));
    let rails = rig.rails();
    let here = |at| rails.iter().filter(|rail| rail.local == nic(at)).count();
    assert_eq!((rails.len(), here(0), here(1)), (4, 2, 2));
}

proptest! {
    /// RDMA-08: whichever NICs of either side are missing, each remaining pair has the keys of its own NICs.
    #[test]
    fn keys_belong_to_their_nics_whichever_are_missing(here in 0_u16..256, there in 0_u16..256, close in 0_usize..=8) {
        let mut rig = Rig::new(Host::new(8, close, 100), Host::new(8, close, 200));
        let left = |mask: u16, at: usize| mask & (1 << at) == 0;
        for (side, mask) in [(0, here), (1, there)] {
            rig.hosts[side].keys.retain(|name, _| (0..8).any(|at| left(mask, at) && *name == nic(at)));
        }
        match rig.plan(&[]) {
            Ok(plan) => {
                prop_assert!(!plan.rails.is_empty());
                for Candidate { rail, local_key, remote_key, .. } in plan.rails.iter().chain(&plan.spare) {
                    let at = |name: &NicName| (0..8).find(|at| nic(*at) == *name).unwrap();
                    prop_assert_eq!(*local_key, key(100, at(&rail.local)));
                    prop_assert_eq!(*remote_key, key(200, at(&rail.remote)));
                    prop_assert!(left(here, at(&rail.local)) && left(there, at(&rail.remote)));
                }
            }
            Err(error) => {
                prop_assert!(here == 255 || there == 255, "{}", error);
                prop_assert!(!error.retryable);
            }
        }
    }

    /// RDMA-04: no pair outside the map is ever planned.
    #[test]
    fn no_pair_outside_the_rail_map_is_planned(pairs in proptest::collection::btree_set((0_usize..8, 0_usize..8), 0..20)) {
        let mut map = BTreeMap::<_, BTreeSet<_>>::new();
        for (here, there) in &pairs {
            map.entry(nic(*here)).or_default().insert(nic(*there));
        }
        let mut rig = Rig::new(Host::new(8, 4, 100), Host::new(8, 4, 200));
        rig.connectivity = Connectivity::Listed(map);
        match rig.plan(&[]) {
            Ok(plan) => {
                for candidate in plan.rails.iter().chain(&plan.spare) {
                    prop_assert!(rig.connectivity.joins(&candidate.rail));
                }
                prop_assert_eq!(plan.rails.len() + plan.spare.len(), pairs.len());
            }
            Err(_) => prop_assert!(pairs.is_empty()),
        }
    }

    /// RDMA-11: one request of 16 MiB in pieces of the size that is chosen for it.
    #[test]
    fn one_request_is_cut_for_its_lanes(rails in 1_usize..=8, queue_pairs in 1_usize..=8, first in any::<usize>()) {
        let lanes = rails * queue_pairs;
        let size = SliceSize::default().of(16 * MIB, lanes as u64).get();
        let mut spread = Spread::new(rails, queue_pairs, first);
        let mut bytes = BTreeMap::<Lane, u64>::new();
        let mut left = 16 * MIB;
        while left > 0 {
            let piece = left.min(size);
            *bytes.entry(spread.next(piece)).or_default() += piece;
            left -= piece;
        }
        let equal = 16.0 * MIB as f64 / lanes as f64;
        prop_assert_eq!(bytes.len(), lanes);
        for share in bytes.values() {
            prop_assert!((*share as f64 - equal).abs() <= equal / 10.0, "{} of {}", share, equal);
        }
    }

    /// RDMA-11: the same in slices of 64 KiB, the reference engine's size.
    #[test]
    fn one_request_uses_every_lane_in_equal_shares(rails in 1_usize..=8, queue_pairs in 1_usize..=3, first in any::<usize>()) {
        let mut spread = Spread::new(rails, queue_pairs, first);
        let mut bytes = BTreeMap::<Lane, u64>::new();
        for _ in 0..256 {
            *bytes.entry(spread.next(MIB / 16)).or_default() += MIB / 16;
        }
        let equal = 16.0 * MIB as f64 / (rails * queue_pairs) as f64;
        prop_assert_eq!(bytes.len(), rails * queue_pairs);
        for share in bytes.values() {
            prop_assert!((*share as f64 - equal).abs() <= equal / 10.0, "{} of {}", share, equal);
        }
    }
}

#[test]
fn a_lane_with_work_under_way_gets_less() {
    let mut spread = Spread::new(2, 1, 0);
    spread.load(Lane { rail: 0, queue_pair: 0 }, 4 * MIB);
    let taken: Vec<_> = (0..6).map(|_| spread.next(MIB).rail).collect();
    assert_eq!(taken, [1, 1, 1, 1, 0, 1]);
    assert_eq!(Spread::new(0, 0, 9).next(1), Lane { rail: 0, queue_pair: 0 });
}

#[test]
fn an_empty_intersection_names_both_sides() {
    let mut rig = Rig::new(Host::new(2, 2, 100), Host::new(2, 2, 200));
    rig.connectivity = "mlx5_0=mlx5_7;mlx5_1=mlx5_7".parse().unwrap();
    assert_eq!(
        rig.plan(&[]).unwrap_err().to_string(),
        "no rail joins the NICs here [mlx5_0, mlx5_1] and at b [mlx5_0, mlx5_1] (mlx5_0 to mlx5_0: the rail map does \
         not join them, mlx5_0 to mlx5_1: the rail map does not join them, mlx5_1 to mlx5_0: the rail map does not join \
         them, mlx5_1 to mlx5_1: the rail map does not join them); a retry cannot help"
    );
    rig.connectivity = Connectivity::SameName;
    assert_eq!(rig.rails(), [rail(0, 0), rail(1, 1)].into());
}

#[test]
fn rail_maps_are_read_or_refused() {
    assert_eq!(" all ".parse(), Ok(Connectivity::All));
    assert_eq!("prefer_same_name".parse(), Ok(Connectivity::PreferSameName));
    for wrong in ["", ";", "a", "a=", "=b", "a=b;c", "a=b,,c", "a@x=b"] {
        assert!(wrong.parse::<Connectivity>().is_err(), "{wrong:?}");
    }
    let mut rig = Rig::new(Host::new(2, 2, 100), Host::new(2, 2, 200));
    rig.hosts[1].keys.remove(&nic(1));
    rig.connectivity = Connectivity::PreferSameName;
    assert_eq!(rig.rails(), [rail(0, 0)].into(), "the NIC without a namesake is spare");
    assert!(rig.plan(&[]).unwrap().spare[0].standing.to_string().contains("names differ"));
}

#[test]
fn rails_are_paused_and_resumed() {
    let mut rig = Rig::new(Host::new(2, 2, 100), Host::new(2, 2, 200));
    rig.health.worked(&rail(0, 0));
    let blames: Vec<_> = (0..5).map(|_| rig.health.failed(rig.now, &rail(0, 0))).collect();
    assert_eq!(blames[3..], [Blame::Counted, Blame::Paused]);
    let until = rig.now + Duration::from_secs(30);
    assert_eq!(rig.plan(&[]).unwrap().left_out, [(rail(0, 0), Reason::Paused(until))]);
    rig.now = until;
    assert!(rig.rails().contains(&rail(0, 0)), "tried again");
    rig.now = until - Duration::from_secs(1);
    rig.health.resume(&rail(0, 0));
    assert!(rig.rails().contains(&rail(0, 0)));
    rig.health.set_down(&nic(0), true);
    assert_eq!(rig.plan(&[]).unwrap().left_out.len(), 2);
    rig.health.set_down(&nic(1), true);
    assert!(rig.plan(&[]).unwrap_err().retryable);
    rig.health.set_down(&nic(0), false);
    assert_eq!(rig.rails(), [rail(0, 0), rail(0, 1)].into());
}

/// RDMA-04, learning: a pair that fails three times and never worked is fenced and reported, once.
#[test]
fn a_rail_that_never_worked_is_fenced_after_three_failures() {
    let mut rig = Rig::new(Host::new(2, 2, 100), Host::new(2, 2, 200));
    let blames: Vec<_> = (0..4)
        .map(|_| {
            rig.now += Duration::from_secs(60);
            rig.health.failed(rig.now, &rail(0, 1))
        })
        .collect();
    assert_eq!(blames, [Blame::Counted, Blame::Counted, Blame::Fenced, Blame::Counted]);
    let until = rig.now + Duration::from_secs(300);
    assert_eq!(rig.plan(&[]).unwrap().left_out, [(rail(0, 1), Reason::Fenced(until))]);
    rig.health.worked(&rail(0, 1));
    assert_eq!(rig.plan(&[]).unwrap().left_out, []);
}

/// FO-16: whatever comes in whatever order, a failure never lowers the count and a success never raises it.
#[test]
fn counts_are_monotone() {
    let now = Instant::now();
    let mut health = Health::default();
    for step in 0..1_000_u32 {
        let before = health.state(&rail(0, 0)).failures;
        if step % 3 == 0 {
            health.worked(&rail(0, 0));
            assert!(health.state(&rail(0, 0)).failures <= before);
        } else {
            health.failed(now, &rail(0, 0));
            assert!(health.state(&rail(0, 0)).failures >= before);
        }
    }
}

/// RDMA-09: NICs that register the memory but cannot reach it. The fabric fails what goes over them.
#[test]
fn nics_that_do_not_reach_the_memory_are_avoided_within_three_attempts() {
    for (bad_here, bad_there) in (0..16_u8).flat_map(|a| (0..16_u8).map(move |b| (a, b))) {
        // All but one of one side, or one of each.
        if !matches!((bad_here.count_ones(), bad_there.count_ones()), (0..=3, 0) | (0, 0..=3) | (1, 1)) {
            continue;
        }
        let mut rig = Rig::new(Host::new(4, 4, 100), Host::new(4, 4, 200));
        let works = |rail: &Rail| {
            let is_bad =
                |mask: u8, name: &NicName| (0..4).any(|at| mask & (1 << at) != 0 && nic(at) == *name);
            !is_bad(bad_here, &rail.local) && !is_bad(bad_there, &rail.remote)
        };
        let mut tried: Vec<Rail> = Vec::new();
        // The request is spread over all rails of a plan; what failed goes into the next attempt.
        let mut attempts = 0;
        loop {
            attempts += 1;
            assert!(attempts <= 3, "{bad_here:b} {bad_there:b} {tried:?}");
            let plan = rig.plan(&tried).unwrap();
            let place = gpu();
            for Candidate { rail, .. } in &plan.rails {
                if works(rail) {
                    rig.health.worked(rail);
                    rig.reach.worked(rig.now, "b", rail, &place, &place);
                } else {
                    rig.health.failed(rig.now, rail);
                    rig.reach.failed(rig.now, "b", rail, &place, &place);
                    tried.push(rail.clone());
                }
            }
            if plan.rails.iter().all(|candidate| works(&candidate.rail)) {
                break;
            }
        }
        // The next request begins with what is known to work, and keeps going.
        assert!(rig.plan(&[]).unwrap().rails.iter().all(|candidate| works(&candidate.rail)));
    }
}

#[test]
fn doubts_pass_and_go_with_the_peer() {
    let (now, place) = (Instant::now(), gpu());
    let mut reach = Reach::default();
    reach.worked(now, "b", &rail(0, 0), &place, &place);
    reach.failed(now, "b", &rail(1, 0), &place, &place);
    assert!(reach.doubts_local(now, &nic(1), &place) && !reach.doubts_remote(now, "b", &nic(0), &place));
    assert!(!reach.doubts_local(now + Duration::from_secs(301), &nic(1), &place));
    reach.failed(now, "b", &rail(2, 1), &place, &place);
    assert!(reach.doubts_remote(now, "b", &nic(1), &place));
    // What has worked before is not put in doubt by a link or a device that fails.
    reach.failed(now, "b", &rail(0, 0), &place, &place);
    assert!(!reach.doubts_local(now, &nic(0), &place) && !reach.doubts_remote(now, "b", &nic(0), &place));
    reach.forget("b");
    assert!(!reach.doubts_remote(now, "b", &nic(1), &place));
}
