//! The rules by which keys change hands.

use super::*;

const A: Option<u128> = Some(1);
const B: Option<u128> = Some(2);
const SECOND: Duration = Duration::from_secs(1);

struct Ledger {
    contents: Contents,
    bounds: Bounds,
    now: Instant,
}

impl Ledger {
    fn new() -> Self {
        let contents = Contents::new([], 0, History::new(0, 100, 1 << 20));
        Self { contents, bounds: Bounds { keys: 3, bytes: 100 }, now: Instant::now() }
    }

    fn run(&mut self, command: Command) -> Result<u64, Refusal> {
        let mut plan = Plan::new(&self.contents, self.bounds, self.now, 0);
        let outcome = plan.decide(command);
        let changes = plan.changes;
        changes.into_iter().for_each(|change| self.contents.apply(change));
        outcome
    }

    fn put(
        &mut self,
        value: &str,
        condition: Condition,
        lease: Option<Duration>,
        holder: Option<u128>,
    ) -> Result<u64, Refusal> {
        self.run(Command::Put { key: "k".into(), value: value.into(), condition, lease, holder })
    }

    fn delete(&mut self, condition: Condition, holder: Option<u128>) -> Result<u64, Refusal> {
        self.run(Command::Delete { key: "k".into(), condition, holder })
    }

    fn renew(&mut self, revision: u64, holder: Option<u128>) -> Result<u64, Refusal> {
        self.run(Command::Renew { key: "k".into(), revision, lease: SECOND, holder })
    }

    fn value(&self) -> Option<&str> {
        self.contents.get("k", self.now).map(|record| &*record.value)
    }
}

use Condition::{Absent, Always, Revision};

/// META-03: publishing again is no conflict, and no change.
#[test]
fn plain_put_of_what_is_there_changes_nothing() {
    let mut ledger = Ledger::new();
    let first = ledger.put("v", Always, None, None);
    assert_eq!(ledger.put("v", Always, None, None), first);
    assert_eq!(ledger.contents.revision, first.unwrap());
}

#[test]
fn plain_put_of_what_is_there_ends_no_lease() {
    let mut ledger = Ledger::new();
    ledger.put("v", Always, Some(SECOND), A).unwrap();
    assert_eq!(ledger.put("v", Always, None, None), Ok(1));
    assert_eq!(ledger.put("v", Always, None, B), Err(Refusal::Held(1)), "an engine is no reference engine");
    ledger.now += SECOND;
    assert_eq!(ledger.value(), None);
}

/// META-03: another value under a key that nobody holds.
#[test]
fn unleased_key_is_overwritten_by_anybody() {
    let mut ledger = Ledger::new();
    ledger.put("a", Always, None, None).unwrap();
    assert_eq!(ledger.put("b", Always, None, B), Ok(2));
    assert_eq!(ledger.put("c", Always, None, None), Ok(3));
}

/// Contract 14: a name has one live holder.
#[test]
fn held_key_is_changed_by_its_holder_only() {
    let mut ledger = Ledger::new();
    ledger.put("a", Always, Some(SECOND), A).unwrap();
    assert_eq!(ledger.put("b", Always, Some(SECOND), B), Err(Refusal::Held(1)));
    assert_eq!(ledger.put("b", Always, None, None), Err(Refusal::Held(1)));
    assert_eq!(ledger.delete(Always, None), Err(Refusal::Held(1)));
    assert_eq!(ledger.delete(Always, B), Err(Refusal::Held(1)));
    assert_eq!(ledger.renew(1, B), Err(Refusal::Conflict(Some(1))));
    assert_eq!(ledger.value(), Some("a"));
    assert_eq!(ledger.put("b", Always, Some(SECOND), A), Ok(2));
    assert_eq!(ledger.delete(Always, A), Ok(3));
}

/// Contract 14: a te engine that found the holder dead takes the name over by compare-and-set.
#[test]
fn compare_and_set_takes_a_held_key_over() {
    let mut ledger = Ledger::new();
    ledger.put("a", Always, Some(SECOND), A).unwrap();
    assert_eq!(ledger.put("b", Revision(9), Some(SECOND), B), Err(Refusal::Conflict(Some(1))));
    assert_eq!(ledger.put("b", Revision(1), Some(SECOND), B), Ok(2));
    assert_eq!(ledger.put("a", Always, Some(SECOND), A), Err(Refusal::Held(2)));
}

/// META-03: the holder's lease has ended.
#[test]
fn ended_lease_frees_the_key() {
    let mut ledger = Ledger::new();
    ledger.put("a", Always, Some(SECOND), A).unwrap();
    ledger.now += SECOND;
    assert_eq!(ledger.value(), None, "before anything removed it");
    assert_eq!(ledger.put("b", Absent, Some(SECOND), B), Ok(3), "the deletion is revision 2");
    assert_eq!(ledger.value(), Some("b"));
}

#[test]
fn renewal_moves_the_end_of_the_lease() {
    let mut ledger = Ledger::new();
    ledger.put("a", Always, Some(SECOND), A).unwrap();
    ledger.now += SECOND / 2;
    assert_eq!(ledger.renew(1, A), Ok(1));
    assert_eq!(ledger.renew(1, None), Ok(1), "who knows the revision may renew");
    ledger.now += SECOND * 3 / 4;
    assert_eq!(ledger.value(), Some("a"));
    ledger.now += SECOND;
    assert_eq!(ledger.renew(1, A), Err(Refusal::Missing));
}

#[test]
fn conditions_hold_or_nothing_changes() {
    let mut ledger = Ledger::new();
    assert_eq!(ledger.put("a", Revision(1), None, None), Err(Refusal::Conflict(None)));
    assert_eq!(ledger.put("a", Absent, None, None), Ok(1));
    assert_eq!(ledger.put("a", Absent, None, None), Err(Refusal::Conflict(Some(1))));
    assert_eq!(ledger.delete(Revision(2), None), Err(Refusal::Conflict(Some(1))));
    assert_eq!(ledger.delete(Revision(1), None), Ok(2));
    assert_eq!(ledger.delete(Always, None), Err(Refusal::Missing));
}

#[test]
fn keys_and_bytes_are_bounded() {
    let mut ledger = Ledger::new();
    let put = |ledger: &mut Ledger, key: &str, size: usize| {
        let (key, value) = (key.into(), "x".repeat(size).into());
        ledger.run(Command::Put { key, value, condition: Always, lease: None, holder: None })
    };
    assert_eq!(put(&mut ledger, "1", 101), Err(Refusal::Full));
    assert_eq!(put(&mut ledger, "1", 100), Ok(1));
    assert_eq!(put(&mut ledger, "1", 60), Ok(2), "only the difference counts");
    assert_eq!(put(&mut ledger, "2", 41), Err(Refusal::Full));
    put(&mut ledger, "2", 1).unwrap();
    put(&mut ledger, "3", 1).unwrap();
    assert_eq!(put(&mut ledger, "4", 1), Err(Refusal::TooManyKeys));
    assert_eq!(put(&mut ledger, "3", 2), Ok(5));
    assert_eq!((ledger.contents.len(), ledger.contents.bytes()), (3, 63));
}

/// Commands of one batch see each other's effects though none is visible yet.
#[test]
fn commands_of_one_plan_follow_each_other() {
    let mut ledger = Ledger::new();
    ledger.put("a", Always, Some(SECOND), A).unwrap();
    ledger.now += SECOND;
    let mut plan = Plan::new(&ledger.contents, ledger.bounds, ledger.now, 0);
    let put = |value: &str, condition| Command::Put {
        key: "k".into(),
        value: value.into(),
        condition,
        lease: None,
        holder: None,
    };
    assert_eq!(plan.decide(put("b", Absent)), Ok(3));
    assert_eq!(plan.decide(put("c", Absent)), Err(Refusal::Conflict(Some(3))));
    assert_eq!(plan.decide(put("c", Revision(3))), Ok(4));
    let delete = Command::Delete { key: "k".into(), condition: Revision(4), holder: None };
    assert_eq!(plan.decide(delete), Ok(5));
    assert_eq!((plan.keys, plan.bytes, plan.changes.len()), (0, 0, 4));
    let changes = plan.changes;
    changes.into_iter().for_each(|change| ledger.contents.apply(change));
    assert_eq!((ledger.value(), ledger.contents.revision, ledger.contents.next_expiry()), (None, 5, None));
}

#[test]
fn range_goes_on_after_a_key() {
    let mut ledger = Ledger::new();
    ledger.bounds.keys = 9;
    for key in ["a", "p/1", "p/2", "p/3", "q"] {
        let command =
            Command::Put { key: key.into(), value: "".into(), condition: Always, lease: None, holder: None };
        ledger.run(command).unwrap();
    }
    let keys = |prefix, after| -> Vec<&str> {
        ledger.contents.range(prefix, after, ledger.now).map(|(key, _)| &**key).collect()
    };
    assert_eq!(keys("p/", None), ["p/1", "p/2", "p/3"]);
    assert_eq!(keys("p/", Some("p/1")), ["p/2", "p/3"]);
    assert_eq!(keys("p/", Some("a")), ["p/1", "p/2", "p/3"]);
    assert_eq!(keys("p/", Some("q")), [""; 0]);
    assert_eq!(keys("", Some("p/3")), ["q"]);
}
