//! The file in which writes survive the server: appended to, checked by sums, compacted from time to time.
//!
//! After one line that names the format come frames: length and CRC-32 of the payload, each four bytes little endian,
//! then the payload, a JSON array of changes. One frame holds what was acknowledged together, so only the last one
//! can be torn. A damaged frame with anything readable after it is damage, not a torn write, and refused.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::contents::{Change, Contents, Lease, Record};

const MAGIC: &[u8] = b"te-metad journal 1\n";
const HEAD: usize = 8;
/// Largest payload that is believed.
const MAX_FRAME: usize = 256 << 20;
/// Payload at which a compacted file begins another frame.
const FRAME: usize = 1 << 20;
/// Files below this size are not compacted.
const COMPACT_FROM: u64 = 1 << 20;

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file system refuses.
    #[error("journal {} cannot be {doing}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// The system's words.
        source: io::Error,
    },
    /// Another server writes to it.
    #[error("journal {} is in use by another server", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is something else.
    #[error("{} is no journal of this server", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file is damaged before its end: acknowledged writes would be lost by going on.
    #[error("journal {} is damaged at byte {offset}, and readable after it", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the damage begins.
        offset: u64,
    },
}

/// A change as it stands in the file. Short names: they are in every line.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
struct Line {
    #[serde(rename = "k")]
    key: Arc<str>,
    /// Absent: the key is gone.
    #[serde(rename = "v", default, skip_serializing_if = "Option::is_none")]
    value: Option<Arc<str>>,
    #[serde(rename = "r")]
    revision: u64,
    #[serde(rename = "l", default, skip_serializing_if = "Option::is_none")]
    lease_ms: Option<u64>,
    #[serde(rename = "h", default, skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    #[serde(rename = "t", default)]
    changed_ms: u64,
}

impl Line {
    fn put(key: &Arc<str>, record: &Record) -> Self {
        Self {
            key: Arc::clone(key),
            value: Some(Arc::clone(&record.value)),
            revision: record.revision,
            lease_ms: record.lease.map(|lease| u64::try_from(lease.ttl.as_millis()).unwrap_or(u64::MAX)),
            holder: record.holder.map(|bits| format!("{bits:032x}")),
            changed_ms: record.changed_ms,
        }
    }

    fn of(change: &Change) -> Option<Self> {
        match change {
            Change::Put { key, record } => Some(Self::put(key, record)),
            Change::Delete { key, revision } => Some(Self {
                key: Arc::clone(key),
                value: None,
                revision: *revision,
                lease_ms: None,
                holder: None,
                changed_ms: 0,
            }),
            // Leases begin anew when the server does.
            Change::Renew { .. } => None,
        }
    }

    fn record(self, now: Instant) -> Option<Record> {
        Some(Record {
            value: self.value?,
            revision: self.revision,
            lease: self.lease_ms.map(|ms| Lease { ttl: Duration::from_millis(ms), renewed: now }),
            holder: self.holder.and_then(|hex| u128::from_str_radix(&hex, 16).ok()),
            changed_ms: self.changed_ms,
        })
    }
}

/// What a journal held.
#[derive(Debug, Default)]
pub(super) struct Recovered {
    pub(super) records: BTreeMap<Arc<str>, Record>,
    /// The latest revision in it.
    pub(super) revision: u64,
    /// Bytes of a torn write at its end, which were cut off.
    pub(super) torn: u64,
}

/// An open journal.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Size from which compacting is worth it.
    compact_at: u64,
    /// Held for as long as this server uses the journal.
    _lock: File,
}

impl Journal {
    /// Opens or makes a journal and reads what it holds. Leases begin `now`.
    pub(super) fn open(path: &Path, now: Instant) -> Result<(Self, Recovered), JournalError> {
        let failed = |doing| move |source| JournalError::Io { path: path.to_owned(), doing, source };
        let lock = options().open(beside(path, "lock")).map_err(failed("locked"))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(|errno| {
            if errno == rustix::io::Errno::WOULDBLOCK {
                JournalError::InUse { path: path.to_owned() }
            } else {
                failed("locked")(errno.into())
            }
        })?;
        // Left over from a compaction that did not end.
        match fs::remove_file(beside(path, "new")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("cleaned up")(error)),
            _ => {}
        }
        let mut file = options().open(path).map_err(failed("opened"))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(failed("read"))?;
        let (recovered, end) = recover(path, &text, now)?;
        let mut journal =
            Self { path: path.to_owned(), file, bytes: 0, compact_at: COMPACT_FROM, _lock: lock };
        if end == 0 {
            journal.begin().map_err(failed("begun"))?;
        } else {
            journal.cut(end).map_err(failed("cut"))?;
        }
        journal.compact_at = COMPACT_FROM.max(journal.bytes);
        Ok((journal, recovered))
    }

    fn begin(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(MAGIC)?;
        self.file.sync_all()?;
        sync_folder(&self.path)?;
        self.bytes = MAGIC.len() as u64;
        Ok(())
    }

    fn cut(&mut self, end: u64) -> io::Result<()> {
        self.file.set_len(end)?;
        self.file.seek(SeekFrom::Start(end))?;
        self.file.sync_all()?;
        self.bytes = end;
        Ok(())
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes changes and returns once they are on the disk. After an error nobody knows what is.
    pub(super) fn append(&mut self, changes: &[Change]) -> io::Result<()> {
        let lines: Vec<Line> = changes.iter().filter_map(Line::of).collect();
        if lines.is_empty() {
            return Ok(());
        }
        let frame = frame(&lines)?;
        self.file.write_all(&frame)?;
        self.file.sync_data()?;
        self.bytes += frame.len() as u64;
        Ok(())
    }

    /// Whether most of the file is history.
    pub(super) fn wants_compaction(&self, contents: &Contents) -> bool {
        let live = contents.bytes() as u64 + contents.len() as u64 * 128;
        self.bytes > self.compact_at && self.bytes > live * 4
    }

    /// Replaces the file by one that holds only what is live, in one step.
    pub(super) fn compact(&mut self, contents: &Contents, now: Instant) -> io::Result<()> {
        let next = beside(&self.path, "new");
        let mut file = options().truncate(true).open(&next)?;
        let mut bytes = MAGIC.len() as u64;
        file.write_all(MAGIC)?;
        let (mut lines, mut size) = (Vec::new(), 0);
        for (key, record) in contents.range("", None, now) {
            size += key.len() + record.value.len();
            lines.push(Line::put(key, record));
            if size > FRAME {
                let frame = frame(&std::mem::take(&mut lines))?;
                file.write_all(&frame)?;
                (bytes, size) = (bytes + frame.len() as u64, 0);
            }
        }
        // The revision goes on from here even if its key is gone: a last line says so.
        lines.push(Line {
            key: "".into(),
            value: None,
            revision: contents.revision,
            lease_ms: None,
            holder: None,
            changed_ms: 0,
        });
        let frame = frame(&lines)?;
        file.write_all(&frame)?;
        file.sync_all()?;
        fs::rename(&next, &self.path)?;
        sync_folder(&self.path)?;
        self.file = file;
        self.bytes = bytes + frame.len() as u64;
        self.compact_at = COMPACT_FROM.max(self.bytes);
        Ok(())
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // Values hold keys to remote memory: nobody else may read them.
    options.read(true).write(true).create(true).mode(0o600);
    options
}

fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    PathBuf::from(name)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

fn frame(lines: &[Line]) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; HEAD];
    serde_json::to_writer(&mut frame, lines)?;
    let payload = frame.len() - HEAD;
    if payload > MAX_FRAME {
        return Err(io::Error::other("a frame is too large"));
    }
    let sum = crc32(&frame[HEAD..]);
    frame[..4].copy_from_slice(&u32::try_from(payload).unwrap_or(u32::MAX).to_le_bytes());
    frame[4..HEAD].copy_from_slice(&sum.to_le_bytes());
    Ok(frame)
}

/// A whole frame at the beginning of `bytes`: its lines and its length.
fn read_frame(bytes: &[u8]) -> Option<(Vec<Line>, usize)> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let (length, sum) = head.split_at_checked(4)?;
    let length = usize::try_from(u32::from_le_bytes(length.try_into().ok()?)).ok()?;
    let payload = rest.get(..length).filter(|_| length <= MAX_FRAME)?;
    if crc32(payload) != u32::from_le_bytes(sum.try_into().ok()?) {
        return None;
    }
    Some((serde_json::from_slice(payload).ok()?, HEAD + length))
}

/// Reads a journal; also where its good part ends, zero if it has not begun.
fn recover(path: &Path, text: &[u8], now: Instant) -> Result<(Recovered, u64), JournalError> {
    let mut recovered = Recovered::default();
    if text.len() < MAGIC.len() && MAGIC.starts_with(text) {
        recovered.torn = text.len() as u64;
        return Ok((recovered, 0));
    }
    if !text.starts_with(MAGIC) {
        return Err(JournalError::Foreign { path: path.to_owned() });
    }
    let mut at = MAGIC.len();
    while let Some((lines, length)) = text.get(at..).and_then(read_frame) {
        for line in lines {
            recovered.revision = recovered.revision.max(line.revision);
            let key = Arc::clone(&line.key);
            match line.record(now) {
                Some(record) => recovered.records.insert(key, record),
                None => recovered.records.remove(&key),
            };
        }
        at += length;
    }
    let rest = text.get(at..).unwrap_or_default();
    // A frame after a bad one was written after the bad one was acknowledged.
    let follows = (1..rest.len()).any(|skip| {
        let after = &rest[skip..];
        after.get(HEAD..HEAD + 2) == Some(b"[{") && read_frame(after).is_some()
    });
    if follows {
        return Err(JournalError::Damaged { path: path.to_owned(), offset: at as u64 });
    }
    recovered.torn = rest.len() as u64;
    Ok((recovered, at as u64))
}

/// CRC-32 with the polynomial of IEEE 802.3.
fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let mut sum = index as u32;
            let mut bit = 0;
            while bit < 8 {
                sum = if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
                bit += 1;
            }
            table[index] = sum;
            index += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |sum, byte| sum >> 8 ^ TABLE[((sum ^ u32::from(*byte)) & 255) as usize])
}

#[cfg(test)]
mod tests;
