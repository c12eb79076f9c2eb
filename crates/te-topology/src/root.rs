//! Reading a file tree that looks like `/`: bounded, and whatever is wrong is a value.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::natural;

/// What a host says, or why that is not known.
pub type Fact<T> = Result<T, Unknown>;

/// Why something about a host is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {cause}")]
pub struct Unknown {
    /// The file or folder that should have said it, from the root of the tree.
    pub path: String,
    /// What is the matter with it.
    pub cause: Cause,
}

impl Unknown {
    pub(crate) fn new(path: &str, cause: Cause) -> Self {
        Self { path: path.to_owned(), cause }
    }

    /// The file is there and says `found`, which is not what is due.
    pub(crate) fn malformed(path: &str, found: &str, expected: &'static str) -> Self {
        let found = found.chars().take(SHOWN_CHARS).collect();
        Self::new(path, Cause::Malformed { found, expected })
    }

    /// Whether there is no such file, or nothing in it: the device or the kernel does not have it.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self.cause, Cause::Absent | Cause::Empty)
    }
}

/// What is the matter with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// It does not exist.
    #[error("not there")]
    Absent,
    /// Nothing is in it.
    #[error("empty")]
    Empty,
    /// The system refuses to read it.
    #[error("cannot be read: {0}")]
    Refused(String),
    /// It is not a file, or a link that leaves the tree.
    #[error("not a file of this tree")]
    Foreign,
    /// It is longer than such a file can be.
    #[error("longer than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: u64,
    },
    /// It says something else than it should.
    #[error("says {found:?}, not {expected}")]
    Malformed {
        /// The beginning of what it says.
        found: String,
        /// What should be there.
        expected: &'static str,
    },
}

impl Cause {
    fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Absent,
            _ => Self::Refused(error.to_string()),
        }
    }
}

/// How much of a malformed file is quoted.
const SHOWN_CHARS: usize = 40;

/// The longest file that is read. Files of sysfs have at most a page; tables of procfs are longer.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The most entries of a folder that are looked at. The largest real one is a GID table.
const MAX_ENTRIES: usize = 65_536;

/// A file tree that looks like `/`, as far as this crate is concerned: `sys`, `proc`, `dev`.
///
/// Paths are relative to it, without a slash at the beginning. Nothing is written, no device is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    path: PathBuf,
}

impl Root {
    /// This host.
    #[must_use]
    pub fn system() -> Self {
        Self::at("/")
    }

    /// A copy of another host's files, or a made-up host.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where the tree is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What a file says, white space at both ends left out. Bytes that are not text become U+FFFD.
    ///
    /// # Errors
    ///
    /// There is no such file, it is a folder or a device, it cannot be read, or it is longer than 1 MiB.
    pub fn text(&self, path: &str) -> Fact<String> {
        let unknown = |cause| Unknown::new(path, cause);
        let full = self.path.join(path);
        let refused = |error: io::Error| unknown(Cause::of(&error));
        // A pipe or a device in a made-up tree would block.
        if !fs::metadata(&full).map_err(refused)?.is_file() {
            return Err(unknown(Cause::Foreign));
        }
        let mut bytes = Vec::new();
        let file = File::open(&full).map_err(refused)?;
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(refused)?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(unknown(Cause::TooLong { limit: MAX_FILE_BYTES }));
        }
        Ok(String::from_utf8_lossy(&bytes).trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned())
    }

    /// What a file says, if that is anything.
    ///
    /// # Errors
    ///
    /// As [`Root::text`], or there is nothing in it.
    pub fn stated(&self, path: &str) -> Fact<String> {
        let text = self.text(path)?;
        if text.is_empty() { Err(Unknown::new(path, Cause::Empty)) } else { Ok(text) }
    }

    /// What a file says, read by `read`; `expected` says what should be there.
    ///
    /// # Errors
    ///
    /// As [`Root::text`], or `read` makes nothing of it.
    pub fn read<T>(
        &self,
        path: &str,
        expected: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Fact<T> {
        let text = self.text(path)?;
        read(&text).ok_or_else(|| Unknown::malformed(path, &text, expected))
    }

    /// What a file says, parsed.
    ///
    /// # Errors
    ///
    /// As [`Root::read`].
    pub fn parsed<T: FromStr>(&self, path: &str, expected: &'static str) -> Fact<T> {
        self.read(path, expected, |text| text.parse().ok())
    }

    /// The names in a folder, numbers in them in order of their value. Names that are not text are left out.
    ///
    /// # Errors
    ///
    /// There is no such folder, or it cannot be read.
    pub fn entries(&self, path: &str) -> Fact<Vec<String>> {
        let folder =
            fs::read_dir(self.path.join(path)).map_err(|error| Unknown::new(path, Cause::of(&error)))?;
        let names = folder.take(MAX_ENTRIES).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort_by(|a, b| natural::compare(a, b));
        Ok(names)
    }

    /// Where a path leads once all links are followed, from the root of the tree.
    ///
    /// # Errors
    ///
    /// It leads nowhere, or out of the tree.
    pub fn target(&self, path: &str) -> Fact<String> {
        let refused = |error: io::Error| Unknown::new(path, Cause::of(&error));
        let root = fs::canonicalize(&self.path).map_err(refused)?;
        let full = fs::canonicalize(self.path.join(path)).map_err(refused)?;
        let inside = full.strip_prefix(&root).ok().and_then(Path::to_str);
        inside.map(str::to_owned).ok_or_else(|| Unknown::new(path, Cause::Foreign))
    }

    /// The last name of where a link leads, such as the driver of a device.
    ///
    /// # Errors
    ///
    /// As [`Root::target`].
    pub fn target_name(&self, path: &str) -> Fact<String> {
        let target = self.target(path)?;
        Ok(target.rsplit('/').next().unwrap_or_default().to_owned())
    }

    /// Whether something has this path, whatever it is.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        fs::metadata(self.path.join(path)).is_ok()
    }
}

/// A number of sysfs: decimal, or hexadecimal after `0x`.
pub(crate) fn uint(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The node in a `numa_node` file, where −1 means none.
pub(crate) fn numa_node(root: &Root, path: &str) -> Fact<Option<u32>> {
    root.read(path, "a node, or -1", |text| {
        let node: i64 = text.parse().ok()?;
        if node < 0 { Some(None) } else { u32::try_from(node).ok().map(Some) }
    })
}
