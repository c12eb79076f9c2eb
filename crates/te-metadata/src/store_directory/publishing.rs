//! Writing under a name, as a machine without I/O: see whose it is, ask, write, look into what was in the way.
//!
//! The record decides whose the name is. The place is written first, so of two that take a name over at once the one
//! that is too late for the record may have overwritten the place of the other; its holder puts it right when it looks
//! after its name.

use te_segment::Endpoint;

use super::claim::{self, Claimed, Decision, HolderAnswer};
use crate::store::PutCondition;

/// The two records of a name, in the order in which they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Which {
    Place,
    Record,
}

/// A record as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Found {
    pub(super) revision: u64,
    pub(super) ours: bool,
}

/// What the store can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Abilities {
    /// It compares by itself.
    pub(super) conditional: bool,
    /// Records of te engines go away when their owner is dead.
    pub(super) leases: bool,
}

/// What to do; each answered by one [`Event`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// Read both records.
    Read,
    /// Ask the holder at this endpoint.
    Ask(Endpoint),
    /// Wait a little, if there is time.
    Wait,
    /// Read one record, to see whose it is.
    Look(Which),
    /// Write one record.
    Put(Which, PutCondition),
    /// Delete one record, whatever it holds.
    Delete(Which),
    /// It is over: the revisions of what was written, or why nothing is ours.
    Finish(Result<[u64; 2], Refusal>),
}

/// Why a name is not ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Refusal {
    /// It has a holder, who may be alive.
    Taken { holder: Option<Endpoint> },
    /// Somebody else wrote meanwhile.
    Lost,
}

/// What came of an [`Action`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Event {
    Read { claimed: Claimed, revisions: [Option<u64>; 2] },
    Answered(HolderAnswer),
    Waited,
    OutOfTime,
    Found(Option<Found>),
    Written { revision: u64 },
    Conflict,
    Deleted,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Reading,
    Asking {
        claimed: Claimed,
        revisions: [Option<u64>; 2],
    },
    Waiting {
        claimed: Claimed,
    },
    /// Comparing for a store that cannot.
    Comparing(Which),
    Putting(Which),
    Conflicted(Which),
    /// Somebody else wrote our place, in this revision: is the record still ours?
    Displaced {
        revision: u64,
    },
    Deleting(Which),
}

/// Each turn needs somebody who changes the key in between; three are more than chance.
const TURNS: u8 = 3;

/// One publishing of both records.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Publishing {
    abilities: Abilities,
    /// The name was ours before.
    known: bool,
    stage: Stage,
    conditions: [PutCondition; 2],
    revisions: [u64; 2],
    /// Puts of the present record that met a conflict.
    turns: u8,
}

impl Publishing {
    /// Begins. `known` are the revisions of what this life wrote under the name before; without them the name is
    /// claimed first.
    pub(super) fn begin(abilities: Abilities, known: Option<[u64; 2]>) -> (Self, Action) {
        let mut machine = Self {
            abilities,
            known: known.is_some(),
            stage: Stage::Reading,
            conditions: known.unwrap_or_default().map(PutCondition::Revision),
            revisions: known.unwrap_or_default(),
            turns: 0,
        };
        let action = if known.is_some() { machine.write(Which::Place) } else { Action::Read };
        (machine, action)
    }

    /// What to do next.
    pub(super) fn on(&mut self, event: Event) -> Action {
        match (self.stage.clone(), event) {
            (Stage::Reading, Event::Read { claimed, revisions }) => {
                let decision = claim::first(&claimed);
                self.decided(decision, claimed, revisions)
            }
            (Stage::Asking { claimed, revisions }, Event::Answered(answer)) => {
                let expires = self.abilities.leases && matches!(claimed, Claimed::Te { .. });
                let decision = claim::answered(&claimed, answer, expires);
                self.decided(decision, claimed, revisions)
            }
            (Stage::Waiting { .. }, Event::Waited) => {
                self.stage = Stage::Reading;
                Action::Read
            }
            (Stage::Waiting { claimed }, Event::OutOfTime) => taken(&claimed),
            (Stage::Comparing(_), Event::Found(Some(Found { ours: false, .. }))) => lost(),
            (Stage::Comparing(which), Event::Found(_)) => self.put(which, PutCondition::Always),
            (Stage::Putting(which), Event::Written { revision }) => self.written(which, revision),
            (Stage::Putting(which), Event::Conflict) => {
                self.turns += 1;
                self.stage = Stage::Conflicted(which);
                Action::Look(which)
            }
            (Stage::Conflicted(which), Event::Found(found)) => self.conflicted(which, found),
            (Stage::Displaced { revision }, Event::Found(Some(Found { ours: true, .. }))) => {
                self.put(Which::Place, PutCondition::Revision(revision))
            }
            (Stage::Displaced { .. }, Event::Found(_)) => lost(),
            (Stage::Deleting(which), Event::Deleted) => self.put(which, PutCondition::Always),
            // An answer to something that was not asked says nothing about whose the name is.
            _ => lost(),
        }
    }

    fn decided(&mut self, decision: Decision, claimed: Claimed, revisions: [Option<u64>; 2]) -> Action {
        match decision {
            Decision::Take => {
                self.conditions = revisions.map(|revision| match revision {
                    _ if !self.abilities.conditional => PutCondition::Always,
                    Some(revision) => PutCondition::Revision(revision),
                    None => PutCondition::Absent,
                });
                self.write(Which::Place)
            }
            Decision::Ask(endpoint) => {
                self.stage = Stage::Asking { claimed, revisions };
                Action::Ask(endpoint)
            }
            Decision::Wait => {
                self.stage = Stage::Waiting { claimed };
                Action::Wait
            }
            Decision::Leave => taken(&claimed),
        }
    }

    fn write(&mut self, which: Which) -> Action {
        self.turns = 0;
        let condition = self.conditions[which as usize];
        match condition {
            // The store cannot compare, so we do, as close to the write as we can.
            PutCondition::Revision(_) if !self.abilities.conditional => {
                self.stage = Stage::Comparing(which);
                Action::Look(which)
            }
            _ if !self.abilities.conditional => self.put(which, PutCondition::Always),
            _ => self.put(which, condition),
        }
    }

    fn put(&mut self, which: Which, condition: PutCondition) -> Action {
        if self.turns == TURNS {
            return lost();
        }
        self.stage = Stage::Putting(which);
        self.conditions[which as usize] = condition;
        Action::Put(which, condition)
    }

    fn written(&mut self, which: Which, revision: u64) -> Action {
        self.revisions[which as usize] = revision;
        match which {
            Which::Place => self.write(Which::Record),
            Which::Record => Action::Finish(Ok(self.revisions)),
        }
    }

    /// What vanished is written anew, what is ours after all (a write whose answer was lost) is overwritten, anything
    /// else means that the name is lost.
    fn conflicted(&mut self, which: Which, found: Option<Found>) -> Action {
        let condition = match found {
            None => PutCondition::Absent,
            // A place says the same in every version; some servers refuse to overwrite it even with that.
            Some(Found { ours: true, revision }) if which == Which::Place => {
                return self.written(which, revision);
            }
            Some(Found { ours: true, revision }) => PutCondition::Revision(revision),
            // The holder has been found dead, but the server guards its key from any overwriting.
            Some(_) if self.conditions[which as usize] == PutCondition::Always => {
                self.stage = Stage::Deleting(which);
                return Action::Delete(which);
            }
            Some(Found { revision, .. }) if which == Which::Place && self.known => {
                self.stage = Stage::Displaced { revision };
                return Action::Look(Which::Record);
            }
            Some(_) => return lost(),
        };
        self.put(which, if self.abilities.conditional { condition } else { PutCondition::Always })
    }
}

fn lost() -> Action {
    Action::Finish(Err(Refusal::Lost))
}

fn taken(claimed: &Claimed) -> Action {
    let holder = match claimed {
        Claimed::Te { control, .. } => control.clone(),
        Claimed::Unstated { location } => location.clone(),
        Claimed::Nobody | Claimed::Us => None,
    };
    Action::Finish(Err(Refusal::Taken { holder }))
}

/// What a look at a published record says, where its lease could not be renewed or there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    There,
    /// It is to be published again.
    Missing,
    Lost,
}

/// Judges what was found where a record of ours should be. The record is judged before the place.
pub(super) fn looked_after(which: Which, found: Option<Found>, leased: bool) -> Looked {
    match found {
        None => Looked::Missing,
        // Without leases this is all there is to know; with them, the revision was another one of ours.
        Some(Found { ours: true, .. }) if leased => Looked::Missing,
        Some(Found { ours: true, .. }) => Looked::There,
        // Whoever wrote it came too late for the record.
        Some(_) if which == Which::Place => Looked::Missing,
        Some(_) => Looked::Lost,
    }
}

#[cfg(test)]
mod model;
