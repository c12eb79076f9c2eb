//! Recovery from every way in which a file can end.

use super::*;
use crate::server::history::History;

fn put(key: &str, revision: u64, value: &str) -> Change {
    let lease = Some(Lease { ttl: Duration::from_millis(1500), renewed: Instant::now() });
    let record = Record { value: value.into(), revision, lease, holder: Some(7), changed_ms: 9 };
    Change::Put { key: key.into(), record }
}

fn gone(key: &str, revision: u64) -> Change {
    Change::Delete { key: key.into(), revision }
}

fn values(recovered: &Recovered) -> Vec<(&str, &str)> {
    recovered.records.iter().map(|(key, record)| (&**key, &*record.value)).collect()
}

fn reopen(path: &Path) -> (Journal, Recovered) {
    Journal::open(path, Instant::now()).unwrap()
}

#[test]
fn what_was_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let (mut journal, recovered) = reopen(&path);
    assert_eq!((recovered.records.len(), recovered.revision, recovered.torn), (0, 0, 0));
    journal.append(&[put("a", 1, "x"), put("b", 2, "y\n\u{e9}")]).unwrap();
    journal.append(&[gone("a", 3)]).unwrap();
    drop(journal);
    let (_, recovered) = reopen(&path);
    assert_eq!(values(&recovered), [("b", "y\n\u{e9}")]);
    assert_eq!((recovered.revision, recovered.torn), (3, 0));
    let record = &recovered.records["b"];
    assert_eq!((record.revision, record.holder, record.changed_ms), (2, Some(7), 9));
    assert_eq!(record.lease.map(|lease| lease.ttl), Some(Duration::from_millis(1500)));
}

#[test]
fn file_that_ends_anywhere_keeps_its_whole_frames() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let (mut journal, _) = reopen(&path);
    journal.append(&[put("a", 1, "x")]).unwrap();
    let first = journal.bytes() as usize;
    journal.append(&[put("b", 2, "[{\"y\":1}]"), put("c", 3, "z")]).unwrap();
    drop(journal);
    let whole = fs::read(&path).unwrap();
    for end in 0..=whole.len() {
        fs::write(&path, &whole[..end]).unwrap();
        let (mut journal, recovered) = reopen(&path);
        let expected = if end == whole.len() { 3 } else { usize::from(end >= first) };
        assert_eq!(recovered.records.len(), expected, "cut at {end}");
        journal.append(&[put("d", 9, "after")]).unwrap();
        drop(journal);
        let (_, recovered) = reopen(&path);
        assert_eq!((recovered.records.len(), recovered.torn), (expected + 1, 0), "cut at {end}");
    }
}

#[test]
fn unwritten_blocks_at_the_end_are_a_torn_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let (mut journal, _) = reopen(&path);
    journal.append(&[put("a", 1, "x")]).unwrap();
    drop(journal);
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend([0; 4096]);
    fs::write(&path, &bytes).unwrap();
    let (_, recovered) = reopen(&path);
    assert_eq!((recovered.records.len(), recovered.torn), (1, 4096));
}

#[test]
fn damage_before_the_end_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let (mut journal, _) = reopen(&path);
    journal.append(&[put("a", 1, "x")]).unwrap();
    journal.append(&[put("b", 2, "y")]).unwrap();
    drop(journal);
    let whole = fs::read(&path).unwrap();
    // In the length, in the sum, in the payload of the first frame.
    for at in [MAGIC.len() + 2, MAGIC.len() + 5, MAGIC.len() + HEAD + 3] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = Journal::open(&path, Instant::now()).unwrap_err();
        assert!(matches!(error, JournalError::Damaged { offset: 19, .. }), "{at}: {error}");
        assert_eq!(fs::read(&path).unwrap(), bytes, "nothing is cut off");
    }
}

#[test]
fn other_files_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    fs::write(&path, "precious, and longer than the first line").unwrap();
    assert!(matches!(Journal::open(&path, Instant::now()), Err(JournalError::Foreign { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious, and longer than the first line");
}

#[test]
fn second_server_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let (journal, _) = reopen(&path);
    assert!(matches!(Journal::open(&path, Instant::now()), Err(JournalError::InUse { .. })));
    drop(journal);
    reopen(&path);
}

#[test]
fn compaction_keeps_what_is_live_and_the_revision() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let (mut journal, _) = reopen(&path);
    let mut contents = Contents::new([], 0, History::new(0, 10, 1 << 20));
    let big = "x".repeat(300_000);
    for revision in 1..=9 {
        for change in
            [put("a", revision * 3, &big), put("b", revision * 3 + 1, "y"), gone("b", revision * 3 + 2)]
        {
            journal.append(std::slice::from_ref(&change)).unwrap();
            contents.apply(change);
        }
    }
    assert!(journal.wants_compaction(&contents));
    let before = journal.bytes();
    journal.compact(&contents, Instant::now()).unwrap();
    assert!(journal.bytes() < before / 8);
    assert!(!journal.wants_compaction(&contents));
    journal.append(&[put("c", 40, "z")]).unwrap();
    drop(journal);
    assert!(!beside(&path, "new").exists());
    let (_, recovered) = reopen(&path);
    assert_eq!(values(&recovered), [("a", big.as_str()), ("c", "z")]);
    assert_eq!(recovered.revision, 40);
}

#[test]
fn compaction_remembers_the_revision_of_a_deletion() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let (mut journal, _) = reopen(&path);
    let mut contents = Contents::new([], 0, History::new(0, 10, 1 << 20));
    contents.apply(put("a", 1, "x"));
    contents.apply(gone("a", 2));
    journal.compact(&contents, Instant::now()).unwrap();
    drop(journal);
    let (_, recovered) = reopen(&path);
    assert_eq!((recovered.records.len(), recovered.revision), (0, 2));
}

#[test]
fn left_over_compaction_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    fs::write(beside(&path, "new"), "half").unwrap();
    reopen(&path);
    assert!(!beside(&path, "new").exists());
}

#[test]
fn renewals_are_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let (mut journal, _) = reopen(&path);
    let lease = Lease { ttl: Duration::from_secs(1), renewed: Instant::now() };
    let before = journal.bytes();
    journal.append(&[Change::Renew { key: "a".into(), lease }]).unwrap();
    assert_eq!(journal.bytes(), before);
}

#[test]
fn sum_is_crc_32() {
    assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    assert_eq!(crc32(b""), 0);
}
