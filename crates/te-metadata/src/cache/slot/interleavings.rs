//! Every interleaving of whoever changes what is known of a name: a fetch, the owner's own word, doubts, trust.
//!
//! Each change is one exchange of a pointer (`rcu` runs its closure until nobody came in between) or happens under the
//! lock of `install`, so an interleaving is an order of whole changes, and all orders are tried on the real slot.

use te_segment::{DescriptorVersion, Identity, SegmentDescriptor};

use super::*;
use crate::directory::Source;

/// A life, and the version of its descriptor.
type Said = (u128, u64);

#[derive(Clone, Copy, Debug)]
enum Act {
    /// The owner publishes, or begins a new life: the directory says this from now on.
    Publish(Said),
    /// The owner tells us itself.
    Tell(Said),
    /// A fetch begins: it remembers the doubts.
    Begin,
    /// The directory answers what it says now.
    Look,
    /// The fetch ends with that.
    End,
    Doubt,
    /// The owner answered that it is the life we know.
    Confirm,
    /// A reader, at any time.
    Read,
}

struct World {
    slot: Slot,
    directory: Said,
    /// What the fetch under way knows.
    begun: Option<Begun>,
    looked: Option<Said>,
    /// What the slot must have heard of by now: a doubt asks for what the directory said then.
    doubted: Option<Said>,
    /// All lives a reader ever held, with the life they are.
    held: Vec<(Arc<Life>, Said)>,
}

fn said((life, version): Said) -> Resolved {
    let descriptor = SegmentDescriptor::builder(SegmentName::new("b").unwrap())
        .identity(Identity::Te { incarnation: Incarnation::from_bits(life), control: None })
        .version(DescriptorVersion::new(version))
        .build()
        .unwrap();
    Resolved::new(descriptor, Source::Store { scheme: "memory" })
}

fn view_of(life: &Life) -> (Said, SegmentState) {
    let view = life.view();
    let descriptor = &view.snapshot.descriptor;
    let said = (descriptor.incarnation().unwrap().bits(), descriptor.version().unwrap().value());
    (said, view.state.clone())
}

impl World {
    fn new() -> Self {
        let slot = Slot::new(SegmentName::new("b").unwrap(), Weak::new());
        slot.install(said((1, 1)), None);
        Self { slot, directory: (1, 1), begun: None, looked: None, doubted: None, held: Vec::new() }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Publish(what) => self.directory = what,
            Act::Tell(what) => drop(self.slot.install(said(what), None)),
            Act::Begin => self.begun = Some(self.slot.begun()),
            Act::Look => self.looked = Some(self.directory),
            Act::End => {
                let (Some(begun), Some(looked)) = (self.begun.take(), self.looked.take()) else { return };
                self.slot.install(said(looked), Some(begun));
            }
            Act::Doubt => {
                self.slot.life().unwrap().doubt(Cause::Announced);
                self.doubted = Some(self.directory);
            }
            Act::Confirm => self.slot.life().unwrap().trust(),
            Act::Read => {
                let life = self.slot.life().unwrap();
                let (said, _) = view_of(&life);
                self.held.push((life, said));
            }
        }
    }

    /// What holds after each change.
    fn check(&mut self) -> Result<(), String> {
        let current = self.slot.life().unwrap();
        for (life, (known, version)) in &mut self.held {
            let ((now, newer), state) = view_of(life);
            if now != *known {
                return Err(format!("a handle of life {known} is given an address of life {now}"));
            }
            if newer < *version {
                return Err(format!("version {version} becomes version {newer}"));
            }
            *version = newer;
            let is_current = Arc::ptr_eq(life, &current);
            if is_current == matches!(state, SegmentState::Replaced { .. }) {
                return Err(format!("life {known} is {state:?}, and current: {is_current}"));
            }
        }
        Ok(())
    }
}

/// All orders in which the scripts can be played, each script in its own order.
fn interleavings(scripts: &[&[Act]], played: &mut Vec<Act>, each: &mut impl FnMut(&[Act])) {
    if scripts.iter().all(|script| script.is_empty()) {
        return each(played);
    }
    for number in 0..scripts.len() {
        let Some((first, rest)) = scripts[number].split_first() else { continue };
        let mut left = scripts.to_vec();
        left[number] = rest;
        played.push(*first);
        interleavings(&left, played, each);
        played.pop();
    }
}

/// Plays every order; `at_end` sees what is left.
fn all(scripts: &[&[Act]], at_end: impl Fn(&World) -> Result<(), String>) -> usize {
    let mut orders = 0;
    interleavings(scripts, &mut Vec::new(), &mut |order| {
        orders += 1;
        let mut world = World::new();
        for (count, act) in (1..).zip(order) {
            world.act(*act);
            world.check().unwrap_or_else(|why| panic!("{why}\n  after {:?}", &order[..count]));
        }
        at_end(&world).unwrap_or_else(|why| panic!("{why}\n  at the end of {order:?}"));
    });
    orders
}

fn is_trusted_only_if(world: &World, right: impl Fn(Said) -> bool) -> Result<(), String> {
    let (said, state) = view_of(&world.slot.life().unwrap());
    let wrong = state == SegmentState::Fresh && !right(said);
    if wrong { Err(format!("{said:?} is believed")) } else { Ok(()) }
}

/// META-01: who published and then had it announced is never believed to be what it was before.
#[test]
fn a_fetch_that_began_before_a_doubt_does_not_end_it() {
    let owner = [Act::Publish((1, 2)), Act::Doubt];
    let fetch = [Act::Begin, Act::Look, Act::End];
    let orders = all(&[&owner, &fetch, &[Act::Read, Act::Read]], |world| {
        is_trusted_only_if(world, |said| said == (1, 2))
    });
    assert_eq!(orders, 210);
}

/// META-01
#[test]
fn a_slow_fetch_does_not_take_back_what_the_owner_said() {
    let owner = [Act::Publish((1, 2)), Act::Tell((1, 2)), Act::Publish((1, 3)), Act::Tell((1, 3))];
    let fetch = [Act::Begin, Act::Look, Act::End];
    let orders = all(&[&owner, &fetch, &[Act::Read, Act::Read]], |world| {
        is_trusted_only_if(world, |said| said == (1, 3))
    });
    assert_eq!(orders, 1_260);
}

/// META-02: a fetch that read the earlier life does not bring it back.
#[test]
fn a_slow_fetch_does_not_bring_back_an_earlier_life() {
    let owner = [Act::Publish((2, 1)), Act::Tell((2, 1))];
    let fetch = [Act::Begin, Act::Look, Act::End];
    let orders = all(&[&owner, &fetch, &[Act::Read, Act::Read], &[Act::Doubt]], |world| {
        is_trusted_only_if(world, |said| said == (2, 1))
    });
    assert_eq!(orders, 1_680);
}

/// META-02: handles of a life keep it, whatever else begins meanwhile.
#[test]
fn handles_of_a_life_never_see_another() {
    let owner = [Act::Publish((1, 2)), Act::Publish((2, 1)), Act::Tell((2, 1))];
    let fetch = [Act::Begin, Act::Look, Act::End, Act::Begin, Act::Look, Act::End];
    let orders = all(&[&owner, &fetch, &[Act::Read, Act::Confirm, Act::Read]], |_| Ok(()));
    assert_eq!(orders, 18_480);
}
