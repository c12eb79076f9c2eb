//! The table against a model that knows, for each byte of a small arena, which registration it belongs to.

use proptest::prelude::*;

use super::*;
use crate::{Keep, region::RegionState, testing::Arena};

const ARENA: usize = 48;

#[derive(Clone, Debug)]
enum Step {
    Reserve { at: usize, len: usize, access: Access },
    Commit(prop::sample::Index),
    Abort(prop::sample::Index),
    Block(prop::sample::Index),
    Release(prop::sample::Index),
    TakeRemote { at: usize, len: usize, op: RemoteOp },
    TakeLocal { which: prop::sample::Index, at: u64, len: u64 },
    DropHold(prop::sample::Index),
    Keep(prop::sample::Index),
    DropKeep(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let any_index = any::<prop::sample::Index>;
    let access =
        prop::sample::select(vec![Access::LOCAL, Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE]);
    let op = prop::sample::select(vec![RemoteOp::Read, RemoteOp::Write]);
    prop_oneof![
        4 => (0..ARENA, 1..12_usize, access).prop_map(|(at, len, access)| Step::Reserve { at, len, access }),
        3 => any_index().prop_map(Step::Commit),
        1 => any_index().prop_map(Step::Abort),
        2 => any_index().prop_map(Step::Block),
        2 => any_index().prop_map(Step::Release),
        4 => (0..ARENA, 0..12_usize, op).prop_map(|(at, len, op)| Step::TakeRemote { at, len, op }),
        2 => (any_index(), 0..12_u64, 0..12_u64)
            .prop_map(|(which, at, len)| Step::TakeLocal { which, at, len }),
        3 => any_index().prop_map(Step::DropHold),
        1 => any_index().prop_map(Step::Keep),
        1 => any_index().prop_map(Step::DropKeep),
    ]
}

/// One registration as the model sees it, with the real thing beside it.
struct Entry {
    at: usize,
    len: usize,
    access: Access,
    region: Region,
    reservation: Option<Reservation>,
    blocked: bool,
    released: bool,
    holds: u32,
    keeps: u32,
}

impl Entry {
    fn covers(&self, byte: usize) -> bool {
        !self.released && self.at <= byte && byte < self.at + self.len
    }

    fn is_served(&self) -> bool {
        self.reservation.is_none()
    }

    fn state(&self) -> RegionState {
        match (self.released, self.blocked, self.is_served()) {
            (true, ..) => RegionState::Released,
            (_, true, _) => RegionState::Blocked,
            (_, _, true) => RegionState::Active,
            _ => RegionState::Reserved,
        }
    }
}

struct Model {
    arena: Arena,
    table: RegionTable,
    entries: Vec<Entry>,
    /// Each with the index of its entry.
    holds: Vec<(Hold, usize)>,
    /// Likewise.
    keeps: Vec<(Keep, usize)>,
    generations: HashSet<u64>,
}

impl Model {
    fn new() -> Self {
        Self {
            arena: Arena::new(ARENA + 16),
            table: RegionTable::default(),
            entries: Vec::new(),
            holds: Vec::new(),
            keeps: Vec::new(),
            generations: Default::default(),
        }
    }

    fn pick(&mut self, index: prop::sample::Index) -> Option<(usize, &mut Entry)> {
        let len = self.entries.len();
        if len == 0 {
            return None;
        }
        let i = index.index(len);
        self.entries.get_mut(i).map(|entry| (i, entry))
    }

    /// The entry that has `byte`, if it is served to peers.
    fn served_at(&self, byte: usize) -> Option<usize> {
        self.entries.iter().position(|entry| entry.covers(byte) && entry.is_served())
    }

    fn expected_remote(&self, at: usize, len: usize, op: RemoteOp) -> Result<usize, Refusal> {
        if len == 0 {
            return Err(Refusal::EmptyRange);
        }
        let i = self.served_at(at).ok_or(Refusal::OutsideAnyRegion)?;
        let entry = &self.entries[i];
        if !(at..at + len).all(|byte| entry.covers(byte)) {
            let next = self.served_at(entry.at + entry.len);
            return Err(next.map_or(Refusal::OutsideAnyRegion, |_| Refusal::CrossesRegions));
        }
        if !op.permitted_by(entry.access) {
            return Err(Refusal::PermissionDenied);
        }
        if entry.blocked { Err(Refusal::Withdrawn) } else { Ok(i) }
    }

    fn apply(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Reserve { at, len, access } => self.reserve(at, len, access)?,
            Step::Commit(index) => {
                if let Some((_, entry)) = self.pick(index)
                    && !entry.released
                    && let Some(reservation) = entry.reservation.take()
                {
                    reservation.commit();
                }
            }
            Step::Abort(index) => {
                // While it is held or kept, abort leaves the end to the last hold or keep: tests of their own.
                if let Some((_, entry)) = self.pick(index)
                    && entry.holds == 0
                    && entry.keeps == 0
                    && !entry.released
                    && let Some(reservation) = entry.reservation.take()
                {
                    let memory = reservation.abort();
                    prop_assert_eq!(memory.map(|memory| memory.len()), Ok(entry.len));
                    (entry.blocked, entry.released) = (true, true);
                }
            }
            Step::Block(index) => {
                if let Some((_, entry)) = self.pick(index) {
                    entry.region.block();
                    entry.blocked = true;
                }
            }
            Step::Release(index) => self.release(index)?,
            Step::TakeRemote { at, len, op } => {
                let addr = self.arena.base() + at as u64;
                let result = self.table.remote(addr, len as u64, op);
                let expected = self.expected_remote(at, len, op);
                let granted =
                    result.as_ref().map(|hold| (hold.address(), hold.len())).map_err(|error| *error);
                prop_assert_eq!(granted, expected.map(|_| (addr, len as u64)));
                if let (Ok(hold), Ok(i)) = (result, expected) {
                    prop_assert_eq!(hold.region(), &self.entries[i].region);
                    self.entries[i].holds += 1;
                    self.holds.push((hold, i));
                }
            }
            Step::TakeLocal { which, at, len } => {
                if let Some((i, entry)) = self.pick(which) {
                    let result = entry.region.hold(at, len);
                    let expected = match () {
                        () if len == 0 => Err(Refusal::EmptyRange),
                        () if at + len > entry.len as u64 => Err(Refusal::OutsideRange),
                        () if entry.blocked => Err(Refusal::Withdrawn),
                        () => Ok(()),
                    };
                    prop_assert_eq!(result.as_ref().map(|_| ()).map_err(|e| *e), expected);
                    if let Ok(hold) = result {
                        entry.holds += 1;
                        self.holds.push((hold, i));
                    }
                }
            }
            Step::DropHold(index) => {
                if !self.holds.is_empty() {
                    let (hold, i) = self.holds.swap_remove(index.index(self.holds.len()));
                    drop(hold);
                    self.entries[i].holds -= 1;
                }
            }
            Step::Keep(index) => {
                if let Some((i, entry)) = self.pick(index) {
                    let keep = entry.region.keep();
                    prop_assert_eq!(keep.is_some(), !entry.released);
                    entry.keeps += u32::from(keep.is_some());
                    self.keeps.extend(keep.map(|keep| (keep, i)));
                }
            }
            Step::DropKeep(index) => {
                if !self.keeps.is_empty() {
                    let (keep, i) = self.keeps.swap_remove(index.index(self.keeps.len()));
                    drop(keep);
                    self.entries[i].keeps -= 1;
                }
            }
        }
        self.check()
    }

    fn reserve(&mut self, at: usize, len: usize, access: Access) -> Result<(), TestCaseError> {
        let free = (at..at + len).all(|byte| !self.entries.iter().any(|entry| entry.covers(byte)));
        match self.table.reserve(self.arena.part(at, len), access, Location::Any) {
            Ok(reservation) => {
                prop_assert!(free);
                let region = reservation.region().clone();
                prop_assert!(self.generations.insert(region.generation().value()));
                let reservation = Some(reservation);
                self.entries.push(Entry {
                    at,
                    len,
                    access,
                    region,
                    reservation,
                    blocked: false,
                    released: false,
                    holds: 0,
                    keeps: 0,
                });
            }
            Err(rejected) => {
                prop_assert!(!free);
                let RegisterError::Overlaps { range, existing } = rejected.error else {
                    return Err(TestCaseError::fail(rejected.to_string()));
                };
                prop_assert!(existing.overlaps(&range));
                prop_assert!(self.entries.iter().any(|e| !e.released && e.region.range() == existing));
            }
        }
        Ok(())
    }

    fn release(&mut self, index: prop::sample::Index) -> Result<(), TestCaseError> {
        let Some((_, entry)) = self.pick(index) else { return Ok(()) };
        let result = entry.region.release().map(|memory| memory.len());
        let expected = match entry.state() {
            RegionState::Released => Err(ReleaseError::Released),
            RegionState::Blocked if entry.holds == 0 && entry.keeps == 0 => Ok(entry.len),
            RegionState::Blocked if entry.holds == 0 => Err(ReleaseError::Kept),
            RegionState::Blocked => {
                let count = entry.region.holds();
                prop_assert_eq!(count.local + count.remote, entry.holds);
                Err(ReleaseError::StillHeld { local: count.local, remote: count.remote })
            }
            _ => Err(ReleaseError::NotBlocked),
        };
        prop_assert_eq!(result, expected);
        entry.released |= result.is_ok();
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for entry in &self.entries {
            prop_assert_eq!(entry.region.state(), entry.state());
        }
        let mut served: Vec<_> = self.entries.iter().filter(|e| !e.released && e.is_served()).collect();
        served.sort_by_key(|entry| entry.at);
        let served: Vec<_> = served.into_iter().map(|entry| entry.region.clone()).collect();
        prop_assert_eq!(self.table.regions(), served);
        prop_assert_eq!(self.table.len(), self.entries.iter().filter(|entry| !entry.released).count());
        Ok(())
    }
}

proptest! {
    /// MR-13, MR-07, SEC-01: every answer of the table is the model's, and a granted range lies inside one region that
    /// is live and permits the operation.
    #[test]
    fn table_agrees_with_the_model(steps in proptest::collection::vec(step(), 0..80)) {
        let mut model = Model::new();
        for step in steps {
            model.apply(step)?;
        }
    }

    /// SEC-01: addresses from anywhere, most of them near the arena.
    #[test]
    fn granted_ranges_lie_inside_one_permitted_region(
        addr in prop_oneof![any::<u64>(), 0..400_u64],
        len in prop_oneof![any::<u64>(), 0..400_u64],
        near in any::<bool>(),
    ) {
        let (arena, table) = (Arena::new(256), RegionTable::default());
        let parts = [(0, 64, Access::REMOTE), (64, 64, Access::REMOTE_READ), (160, 64, Access::LOCAL)];
        for (at, len, access) in parts {
            table.reserve(arena.part(at, len), access, Location::Any).unwrap().commit();
        }
        let addr = if near { arena.base().wrapping_add(addr) } else { addr };
        let inside = |at: usize, part: usize| {
            let start = u128::from(arena.base()) + at as u128;
            let (first, end) = (u128::from(addr), u128::from(addr) + u128::from(len));
            len > 0 && first >= start && end <= start + part as u128
        };
        for op in [RemoteOp::Read, RemoteOp::Write] {
            let permitted = parts.iter().any(|&(at, len, access)| inside(at, len) && op.permitted_by(access));
            prop_assert_eq!(table.remote(addr, len, op).is_ok(), permitted);
        }
    }
}
