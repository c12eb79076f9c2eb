//! The group, and what each member lets the others do.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use te_memory::{Hold, Refusal, RegionTable, RemoteOp};
use te_segment::{AddressRange, Generation, Incarnation};

/// A wait for copies that end by themselves looks again after this.
const LOOK: Duration = Duration::from_micros(100);

/// Engines of one process that copy to and from each other's registered memory. Clones are the same group; an engine is in it
/// from its start to its shutdown.
///
/// ```
/// use te_transport_local::LocalGroup;
/// let group = LocalGroup::new();
/// assert!(group.clone().is_empty());
/// ```
#[derive(Clone, Default)]
pub struct LocalGroup {
    members: Arc<Mutex<HashMap<Incarnation, Arc<Member>>>>,
}

impl LocalGroup {
    /// A group without members.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Engines that are in it now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.lock().len()
    }

    /// Whether no engine is in it now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lets a life in; none if it is in already.
    pub(crate) fn join(&self, life: Incarnation, regions: RegionTable) -> Option<Arc<Member>> {
        let open = Mutex::new(Open { regions: Some(regions), ties: Vec::new() });
        let member = Arc::new(Member { life, open });
        let mut members = self.members.lock();
        if members.contains_key(&life) {
            return None;
        }
        members.insert(life, member.clone());
        Some(member)
    }

    pub(crate) fn leave(&self, member: &Arc<Member>) {
        let mut members = self.members.lock();
        if members.get(&member.life).is_some_and(|known| Arc::ptr_eq(known, member)) {
            members.remove(&member.life);
        }
    }

    pub(crate) fn find(&self, life: Incarnation) -> Option<Arc<Member>> {
        self.members.lock().get(&life).cloned()
    }
}

impl fmt::Debug for LocalGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalGroup").field("members", &self.len()).finish()
    }
}

/// One life of an engine, as the others reach it.
pub(crate) struct Member {
    life: Incarnation,
    open: Mutex<Open>,
}

struct Open {
    /// None once it has left: handles of others must not keep the memory of an engine that has ended.
    regions: Option<RegionTable>,
    /// One that is not lost for each life that copies, and lost ones that may not be quiet yet.
    ties: Vec<(Incarnation, Weak<Tie>)>,
}

impl Member {
    pub(crate) fn life(&self) -> Incarnation {
        self.life
    }

    /// What copies of `initiator` are counted by, until they are cut off; none once the member has left.
    pub(crate) fn tie(&self, initiator: Incarnation) -> Option<Arc<Tie>> {
        let mut open = self.open.lock();
        let regions = open.regions.clone()?;
        open.ties.retain(|(_, tie)| tie.strong_count() > 0);
        let known =
            open.ties.iter().filter(|(life, _)| *life == initiator).filter_map(|(_, tie)| tie.upgrade());
        if let Some(tie) = known.into_iter().find(|tie| !tie.is_lost()) {
            return Some(tie);
        }
        let tie = Arc::new(Tie { regions: RwLock::new(Some(regions)), copying: AtomicUsize::new(0) });
        open.ties.push((initiator, Arc::downgrade(&tie)));
        Some(tie)
    }

    /// Ends the copies of one life, or of all; nothing of them is left when this returns. How many are, at the deadline.
    pub(crate) fn cut(&self, of: Option<Incarnation>, deadline: Instant) -> Result<(), usize> {
        let ties: Vec<Arc<Tie>> = {
            let open = self.open.lock();
            let meant = open.ties.iter().filter(|(life, _)| of.is_none_or(|of| of == *life));
            meant.filter_map(|(_, tie)| tie.upgrade()).collect()
        };
        for tie in &ties {
            tie.lose();
        }
        loop {
            let copying: usize = ties.iter().map(|tie| tie.copying()).sum();
            if copying == 0 {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(copying);
            }
            thread::sleep(LOOK);
        }
    }

    /// Lets nobody begin anything any more; [`cut`](Self::cut) waits for what is under way.
    pub(crate) fn close(&self) {
        let mut open = self.open.lock();
        open.regions = None;
        for tie in open.ties.iter().filter_map(|(_, tie)| tie.upgrade()) {
            tie.lose();
        }
    }
}

/// The copies of one life to and from the memory of another.
pub(crate) struct Tie {
    /// The target's; none once cut off.
    regions: RwLock<Option<RegionTable>>,
    copying: AtomicUsize,
}

/// A copy under way.
pub(crate) struct Copying<'a>(&'a Tie);

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        self.0.copying.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Tie {
    /// Holds a range of the target for one copy, if its table permits; none once cut off. The hold must end before the copy
    /// does, which whoever cuts off waits for.
    pub(crate) fn enter(
        &self,
        range: AddressRange,
        op: RemoteOp,
        of: Generation,
    ) -> Option<(Copying<'_>, Result<Hold, Refusal>)> {
        let regions = self.regions.read();
        let regions = regions.as_ref()?;
        // Under the lock, so that whoever has cut off counts it.
        self.copying.fetch_add(1, Ordering::SeqCst);
        Some((Copying(self), regions.remote_of(range.start(), range.len(), op, of)))
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.regions.read().is_none()
    }

    fn lose(&self) {
        let _regions = self.regions.write().take();
    }

    fn copying(&self) -> usize {
        self.copying.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(bits: u128) -> Incarnation {
        Incarnation::from_bits(bits)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn enter(tie: &Tie) -> Option<Copying<'_>> {
        let range = AddressRange::new(4096, 1).unwrap();
        let (copying, hold) = tie.enter(range, RemoteOp::Read, Generation::new(1))?;
        assert!(hold.is_err(), "the table is empty");
        Some(copying)
    }

    #[test]
    fn a_life_is_in_a_group_once() {
        let group = LocalGroup::new();
        let first = group.join(life(1), RegionTable::default()).unwrap();
        assert!(group.join(life(1), RegionTable::default()).is_none());
        group.leave(&first);
        let second = group.join(life(1), RegionTable::default()).unwrap();
        // One that has left takes nobody else along.
        group.leave(&first);
        assert!(Arc::ptr_eq(&group.find(life(1)).unwrap(), &second));
        assert_eq!(group.len(), 1);
    }

    #[test]
    fn a_cut_is_of_one_life_and_waits_for_its_copies() {
        let group = LocalGroup::new();
        let member = group.join(life(1), RegionTable::default()).unwrap();
        let (cut, other) = (member.tie(life(2)).unwrap(), member.tie(life(3)).unwrap());
        let under_way = enter(&cut).unwrap();
        assert_eq!(member.cut(Some(life(2)), Instant::now()), Err(1));
        assert!(enter(&cut).is_none());
        // Repeated, it still knows what is under way, although there is a newer tie.
        let anew = member.tie(life(2)).unwrap();
        assert!(enter(&anew).is_some());
        assert_eq!(member.cut(Some(life(2)), Instant::now()), Err(1));
        drop(under_way);
        assert_eq!(member.cut(Some(life(2)), Instant::now()), Ok(()));
        assert!(enter(&other).is_some());
    }

    #[test]
    fn nobody_begins_anything_with_a_member_that_has_left() {
        let group = LocalGroup::new();
        let member = group.join(life(1), RegionTable::default()).unwrap();
        let tie = member.tie(life(2)).unwrap();
        member.close();
        assert!(enter(&tie).is_none() && member.tie(life(2)).is_none());
        assert_eq!(member.cut(None, soon()), Ok(()));
    }
}
