//! Who holds a name: decided from what the store says and what the holder answers, without I/O.

use te_segment::{Endpoint, Incarnation};

/// What the records under a name say about their owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Claimed {
    /// There is no record.
    Nobody,
    /// This engine, this life.
    Us,
    /// Another life of a te engine. Without a control endpoint nobody can be asked.
    Te { incarnation: Incarnation, control: Option<Endpoint> },
    /// An engine that states no incarnation, or nothing readable. Asked at its RPC location, if there is one.
    Unstated { location: Option<Endpoint> },
}

/// Who wrote a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub(super) incarnation: Option<Incarnation>,
    pub(super) control: Option<Endpoint>,
}

/// Sorts what was found: the place, and the owner of the descriptor, which may be unreadable. `incarnation` and `at`
/// are ours.
pub(super) fn sort(
    place: Option<Endpoint>,
    record: Option<Option<Owner>>,
    incarnation: Option<Incarnation>,
    at: &Endpoint,
) -> Claimed {
    match record {
        None => match place {
            None => Claimed::Nobody,
            Some(place) if place == *at => Claimed::Us,
            location => Claimed::Unstated { location },
        },
        Some(None) => Claimed::Unstated { location: place },
        Some(Some(owner)) => match (owner.incarnation, incarnation) {
            (Some(found), Some(own)) if found == own => Claimed::Us,
            (Some(incarnation), _) => Claimed::Te { incarnation, control: owner.control.or(place) },
            (None, None) if place.as_ref() == Some(at) => Claimed::Us,
            (None, _) => Claimed::Unstated { location: place },
        },
    }
}

/// What a holder answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HolderAnswer {
    /// It is alive; te engines say which life they are.
    Alive {
        /// The life that answered.
        incarnation: Option<Incarnation>,
    },
    /// Nobody listens there, or whoever does closed the connection.
    Refused,
    /// No answer in time: it may be stopped, or cut off.
    Silent,
}

/// What to do about a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Write.
    Take,
    /// Ask this endpoint, then decide with the answer.
    Ask(Endpoint),
    /// Leave it: its holder is alive, or cannot be told from a living one.
    Leave,
    /// Look again later: the holder's lease will tell.
    Wait,
}

/// Decides from the records alone.
pub(super) fn first(claimed: &Claimed) -> Decision {
    match claimed {
        Claimed::Nobody | Claimed::Us => Decision::Take,
        Claimed::Te { control: Some(endpoint), .. } | Claimed::Unstated { location: Some(endpoint) } => {
            Decision::Ask(endpoint.clone())
        }
        // Nobody can be asked, so nobody could ever free the name either.
        Claimed::Te { control: None, .. } | Claimed::Unstated { location: None } => Decision::Take,
    }
}

/// Decides with the holder's answer. `expires` says whether the record goes away by itself when its owner is dead.
pub(super) fn answered(claimed: &Claimed, answer: HolderAnswer, expires: bool) -> Decision {
    match (claimed, answer) {
        (Claimed::Nobody | Claimed::Us, _) | (_, HolderAnswer::Refused) => Decision::Take,
        // Whoever answers at that endpoint now is not the owner of the record.
        (Claimed::Te { incarnation, .. }, HolderAnswer::Alive { incarnation: Some(other) })
            if other != *incarnation =>
        {
            Decision::Take
        }
        // A te engine at the place of one that states no life: the port was reused, and its record is elsewhere.
        (Claimed::Unstated { .. }, HolderAnswer::Alive { incarnation: Some(_) }) => Decision::Take,
        (_, HolderAnswer::Alive { .. }) => Decision::Leave,
        (_, HolderAnswer::Silent) if expires => Decision::Wait,
        (_, HolderAnswer::Silent) => Decision::Leave,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at() -> Endpoint {
        "10.0.0.7:15000".parse().unwrap()
    }

    fn te(life: u128) -> Claimed {
        Claimed::Te { incarnation: Incarnation::from_bits(life), control: Some(at()) }
    }

    fn alive(life: u128) -> HolderAnswer {
        HolderAnswer::Alive { incarnation: Some(Incarnation::from_bits(life)) }
    }

    #[test]
    fn free_names_and_our_own_are_taken_without_asking() {
        assert_eq!(first(&Claimed::Nobody), Decision::Take);
        assert_eq!(first(&Claimed::Us), Decision::Take);
    }

    #[test]
    fn whoever_can_be_asked_is_asked() {
        assert_eq!(first(&te(1)), Decision::Ask(at()));
        assert_eq!(first(&Claimed::Unstated { location: Some(at()) }), Decision::Ask(at()));
        assert_eq!(first(&Claimed::Unstated { location: None }), Decision::Take);
    }

    /// META-03: a name is blocked only while its holder answers.
    #[test]
    fn living_holder_keeps_its_name_and_a_dead_one_loses_it() {
        for expires in [false, true] {
            assert_eq!(answered(&te(1), alive(1), expires), Decision::Leave);
            assert_eq!(answered(&te(1), alive(2), expires), Decision::Take);
            assert_eq!(answered(&te(1), HolderAnswer::Refused, expires), Decision::Take);
            let reference = Claimed::Unstated { location: Some(at()) };
            assert_eq!(
                answered(&reference, HolderAnswer::Alive { incarnation: None }, expires),
                Decision::Leave
            );
            assert_eq!(answered(&reference, HolderAnswer::Refused, expires), Decision::Take);
            assert_eq!(answered(&reference, alive(3), expires), Decision::Take);
        }
    }

    #[test]
    fn silence_waits_for_the_lease_where_there_is_one() {
        assert_eq!(answered(&te(1), HolderAnswer::Silent, true), Decision::Wait);
        assert_eq!(answered(&te(1), HolderAnswer::Silent, false), Decision::Leave);
    }

    /// An older te engine that does not say which life it is still keeps its name.
    #[test]
    fn te_record_with_a_wordless_answer_is_left_alone() {
        assert_eq!(answered(&te(1), HolderAnswer::Alive { incarnation: None }, true), Decision::Leave);
    }
}
