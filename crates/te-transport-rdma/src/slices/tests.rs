use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use te_segment::AddressRange;

use super::*;
use crate::error::WorkError;

fn range(start: u64, len: u64) -> AddressRange {
    AddressRange::new(start, len).unwrap()
}

/// Consecutive registrations of these lengths from `start` on.
fn parts(start: u64, lengths: &[u64]) -> Vec<AddressRange> {
    let mut next = start;
    let part = |len: &u64| {
        next += len;
        range(next - len, *len)
    };
    lengths.iter().map(part).collect()
}

proptest! {
    #[test]
    fn pieces_tile_the_request_within_the_registrations(
        local in proptest::collection::vec(1_u64..500, 1..8),
        remote in proptest::collection::vec(1_u64..500, 1..8),
        (skip_here, skip_there, want) in (0_u64..200, 0_u64..200, 1_u64..2_000),
        size in 1_u64..700,
    ) {
        let (here, there) = (parts(10_000, &local), parts(50_000, &remote));
        let room = |lengths: &[u64], skip: u64| lengths.iter().sum::<u64>().saturating_sub(skip);
        let len = want.min(room(&local, skip_here)).min(room(&remote, skip_there));
        prop_assume!(len > 0);
        let (mine, theirs) = (range(10_000 + skip_here, len), range(50_000 + skip_there, len));
        let size = size.try_into().unwrap();
        let (mut done, mut count) = (0, 0);
        for piece in Cut::new(mine, &here, theirs, &there, size).unwrap() {
            prop_assert_eq!((piece.local.start(), piece.remote.start()), (mine.start() + done, theirs.start() + done));
            prop_assert_eq!(piece.local.len(), piece.remote.len());
            prop_assert!(piece.local.len() <= size.get());
            prop_assert!(here[piece.local_part].contains_range(&piece.local));
            prop_assert!(there[piece.remote_part].contains_range(&piece.remote));
            (done, count) = (done + piece.local.len(), count + 1);
        }
        prop_assert_eq!(done, len);
        prop_assert!(count <= len.div_ceil(size.get()) + local.len() as u64 + remote.len() as u64);
    }

    /// Each piece gets exactly one outcome, and never a better one than the device's, whatever is posted, refused,
    /// completed in batches, doubled, broken and destroyed.
    #[test]
    fn each_piece_ends_exactly_once(acts in proptest::collection::vec(act(), 1..120), depth in 1_u32..40, every in 1_u32..20) {
        let mut rig = Rig::new(QueueSettings { depth, signal_every: every, max_inline: 8 });
        for act in acts {
            rig.act(act);
            prop_assert!(rig.queue.outstanding() <= depth as usize);
        }
        rig.finish();
        prop_assert_eq!(rig.ended.len(), rig.drafted as usize);
        for (number, (times, status)) in &rig.ended {
            prop_assert_eq!(*times, 1, "{}", number);
            prop_assert_eq!(*status == Some(Status::Done), rig.executed.contains(number), "{} {:?}", number, status);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Post(u8),
    /// The device does so many, and reports them.
    Execute(u8),
    /// It refuses the last so many of the next list.
    Refuse(u8),
    Fail,
    Double,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => (1_u8..30).prop_map(Act::Post),
        5 => (1_u8..30).prop_map(Act::Execute),
        1 => (1_u8..5).prop_map(Act::Refuse),
        1 => Just(Act::Fail),
        1 => Just(Act::Double),
    ]
}

/// A queue, and a device that completes in order and reports what is signalled, or fails.
struct Rig {
    queue: SendQueue<u32>,
    device: VecDeque<(WorkRequest, u32)>,
    broken: bool,
    refuse: usize,
    last: Option<WorkId>,
    drafted: u32,
    executed: std::collections::BTreeSet<u32>,
    ended: BTreeMap<u32, (u32, Option<Status>)>,
}

impl Rig {
    fn new(settings: QueueSettings) -> Self {
        Self {
            queue: SendQueue::new(settings),
            device: VecDeque::new(),
            broken: false,
            refuse: 0,
            last: None,
            drafted: 0,
            executed: std::collections::BTreeSet::new(),
            ended: BTreeMap::new(),
        }
    }

    fn end(&mut self, number: u32, status: Option<Status>) {
        let entry = self.ended.entry(number).or_insert((0, status));
        *entry = (entry.0 + 1, status);
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Post(count) => self.post(count),
            Act::Execute(count) => (0..count).for_each(|_| self.execute()),
            Act::Refuse(count) => self.refuse = count.into(),
            Act::Fail => {
                if let Some((request, _)) = self.device.pop_front().filter(|_| !self.broken) {
                    self.broken = true;
                    self.report(request.id, Status::Failed(WorkError::NoAnswer));
                    self.flush();
                }
            }
            Act::Double => {
                if let Some(id) = self.last {
                    let before = self.queue.stale();
                    self.report(id, Status::Done);
                    assert_eq!(self.queue.stale(), before + 1);
                }
            }
        }
    }

    fn post(&mut self, count: u8) {
        if self.broken {
            return;
        }
        let numbers: Vec<_> = (self.drafted..).take(count.into()).collect();
        let mut drafts = numbers.iter().map(|number| draft(*number)).collect();
        let mut list = Vec::new();
        let posted = self.queue.post(&mut drafts, usize::MAX, &mut list);
        assert!(list.last().is_none_or(|last| last.signalled));
        // What finds no room is not drafted at all here.
        let numbers = &numbers[..posted];
        self.drafted += u32::try_from(posted).unwrap();
        let refused = self.refuse.min(posted);
        self.refuse = 0;
        let taken = posted - refused;
        self.device.extend(list.into_iter().zip(numbers.iter().copied()).take(taken));
        if refused > 0 {
            let Refused { owners, must_flush } = self.queue.refused(refused);
            assert_eq!(owners, numbers[taken..]);
            owners.into_iter().for_each(|owner| self.end(owner, None));
            if must_flush {
                self.broken = true;
                self.flush();
            }
        }
    }

    fn execute(&mut self) {
        let Some((request, number)) = self.device.pop_front().filter(|_| !self.broken) else { return };
        self.executed.insert(number);
        if request.signalled {
            self.report(request.id, Status::Done);
        }
    }

    fn flush(&mut self) {
        while let Some((request, _)) = self.device.pop_front() {
            self.report(request.id, Status::Failed(WorkError::Flushed));
        }
    }

    fn report(&mut self, id: WorkId, status: Status) {
        self.last = Some(id);
        let mut outcomes = Vec::new();
        self.queue.complete(id, status, &mut outcomes);
        outcomes.into_iter().for_each(|(owner, status)| self.end(owner, Some(status)));
    }

    /// What the device has not done is flushed, except for what is executed and was not reported: it ends with the
    /// destruction, and nobody knows that it was done.
    fn finish(&mut self) {
        self.flush();
        let mut rest = Vec::new();
        self.queue.forfeit(&mut rest);
        for (owner, status) in rest {
            self.executed.remove(&owner);
            self.end(owner, Some(status));
        }
        assert_eq!(self.queue.outstanding(), 0);
    }
}

fn draft(number: u32) -> Draft<u32> {
    let piece = Piece {
        local: range(4096, u64::from(number) % 20 + 1),
        remote: range(4096, u64::from(number) % 20 + 1),
        local_part: 0,
        remote_part: 0,
    };
    let op = if number.is_multiple_of(2) { Op::Write } else { Op::Read };
    Draft { op, piece, local_key: MemoryKey::new(1), remote_key: MemoryKey::new(2), owner: number }
}

#[test]
fn what_no_registration_covers_is_named() {
    let whole = range(0x1000, 100);
    let size = 64.try_into().unwrap();
    let cut = |local: &[AddressRange], remote: &[AddressRange]| {
        Cut::new(whole, local, whole, remote, size).unwrap_err()
    };
    assert_eq!(cut(&[], &[whole]), NotCovered::Local { address: 0x1000 });
    assert_eq!(
        cut(&[whole], &[range(0x1000, 50), range(0x1033, 100)]),
        NotCovered::Remote { address: 0x1032 }
    );
    let longer = range(0x1000, 101);
    let lengths = Cut::new(longer, &[longer], whole, &[whole], size).unwrap_err();
    assert_eq!(lengths.to_string(), "101 bytes here against 100 bytes of the peer");
}

#[test]
fn pieces_grow_with_the_request_and_shrink_with_the_lanes() {
    let size = SliceSize::default();
    let of = |len, lanes| size.of(len, lanes).get();
    assert_eq!(of(1, 8), 64 << 10);
    assert_eq!(of(16 << 20, 8), 512 << 10);
    assert_eq!(of(1 << 30, 8), 1 << 20);
    assert_eq!(of(16 << 20, 0), 1 << 20);
    assert_eq!(of(u64::MAX, u64::MAX), 64 << 10);
}

#[test]
fn few_are_signalled_and_small_writes_are_inline() {
    let mut queue = SendQueue::new(QueueSettings { depth: 64, signal_every: 8, max_inline: 10 });
    let mut drafts: VecDeque<_> = (0..100).map(draft).collect();
    let mut list = Vec::new();
    assert_eq!((queue.post(&mut drafts, usize::MAX, &mut list), queue.room(), drafts.len()), (64, 0, 36));
    assert_eq!(list.iter().filter(|request| request.signalled).count(), 8);
    for request in &list {
        assert_eq!(request.inline, request.op == Op::Write && request.piece.local.len() <= 10);
    }
    // The eighth completes: eight are done, and there is room for as many.
    assert_eq!(queue.complete(list[7].id, Status::Done, &mut Vec::new()), 8);
    assert_eq!(queue.room(), 8);
    assert_eq!(queue.complete(list[3].id, Status::Done, &mut Vec::new()), 0);
    assert_eq!(queue.stale(), 1);
    assert_eq!(completion_entries(4, &QueueSettings::default()), 1024);
}

#[test]
fn identifiers_of_the_past_name_nothing() {
    let mut slots = Slots::default();
    let first = slots.insert('a').unwrap();
    assert_eq!(slots.take(first), Some('a'));
    let second = slots.insert('b').unwrap();
    assert_eq!((slots.take(first), slots.peek(second), slots.len()), (None, Some(&'b'), 1));
    assert_eq!(WorkId::from_bits(second.to_bits()), second);
    assert!(!slots.contains(WorkId::from_bits(u64::MAX)) && !slots.contains(WorkId::from_bits(0)));
}
