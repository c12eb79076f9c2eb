//! Ties each source file that defines bytes on the wire to the page that describes them.
//!
//! The page carries `<!-- source: PATH fnv1a64 HEX -->`. Whoever edits the source makes this rule fail, reads the
//! page, edits it where needed, and records the new hash with `cargo xtask tidy --bless`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;

const PAGES: &str = "docs/wire";

/// Sources of the wire format: a file, or the folder of the same name without `.rs`, or both.
const SOURCES: [&str; 8] = [
    "crates/te-segment/src/wire",
    "crates/te-rpc/src/frame",
    "crates/te-rpc/src/message",
    "crates/te-transport-rdma/src/wire",
    "crates/te-transport-shm/src/frame",
    "crates/te-transport-shm/src/page",
    "crates/te-transport-tcp/src/frame",
    "crates/te-transport-tcp/src/native",
];

const BEGIN: &str = "<!-- source: ";
const ALGORITHM: &str = "fnv1a64";
const END: &str = " -->";

/// A tie as a page states it.
#[derive(Debug, PartialEq, Eq)]
struct Tie<'a> {
    source: &'a str,
    hash: &'a str,
}

/// Sources no page names, pages that name nothing, and hashes that are not current.
pub(super) fn complaints(root: &Path) -> Result<Vec<String>> {
    let pages = pages(root)?;
    let mut complaints = Vec::new();
    let mut named = Vec::new();
    for (page, text) in &pages {
        for line in text.lines().filter(|l| l.contains(BEGIN)) {
            let page = page.display();
            let Some(tie) = tie(line) else {
                complaints.push(format!("{page} has an unreadable tie: {line}"));
                continue;
            };
            named.push(tie.source.to_owned());
            match fs::read(root.join(tie.source)) {
                Err(_) => complaints.push(format!("{page} names {}, which does not exist", tie.source)),
                Ok(bytes) if hash(&bytes) == tie.hash => {}
                Ok(_) => complaints.push(format!(
                    "{} changed: bring {page} up to date, then run `cargo xtask tidy --bless`",
                    tie.source
                )),
            }
        }
    }
    for stem in SOURCES {
        let sources = sources(root, stem)?;
        if sources.is_empty() {
            complaints.push(format!("{stem}.rs does not exist: where is this format defined now?"));
        }
        let unnamed = sources.into_iter().filter(|s| !named.contains(s));
        complaints.extend(
            unnamed.map(|s| format!("no page in {PAGES} names {s}: add `{BEGIN}{s} {ALGORITHM} 0{END}`")),
        );
    }
    Ok(complaints)
}

/// Rewrites the hashes of all ties.
pub(super) fn bless(root: &Path) -> Result<()> {
    for (page, text) in pages(root)? {
        let mut blessed = String::with_capacity(text.len());
        for line in text.lines() {
            match tie(line).map(|tie| (tie.source, fs::read(root.join(tie.source)))) {
                Some((source, Ok(bytes))) => {
                    writeln!(blessed, "{BEGIN}{source} {ALGORITHM} {}{END}", hash(&bytes))?;
                }
                _ => writeln!(blessed, "{line}")?,
            }
        }
        if blessed != text {
            fs::write(root.join(&page), blessed)?;
            println!("blessed {}", page.display());
        }
    }
    Ok(())
}

fn tie(line: &str) -> Option<Tie<'_>> {
    let inner = line.trim().strip_prefix(BEGIN)?.strip_suffix(END)?;
    let mut words = inner.split_whitespace();
    let source = words.next()?;
    if words.next()? != ALGORITHM {
        return None;
    }
    let hash = words.next()?;
    words.next().is_none().then_some(Tie { source, hash })
}

/// The pages, by path relative to the root.
fn pages(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut pages = Vec::new();
    for path in files(&root.join(PAGES))? {
        if path.extension().is_some_and(|e| e == "md") {
            let text = fs::read_to_string(&path)?;
            pages.push((path.strip_prefix(root).unwrap_or(&path).to_owned(), text));
        }
    }
    Ok(pages)
}

/// The source files of one stem, tests aside, as paths relative to the root.
fn sources(root: &Path, stem: &str) -> Result<Vec<String>> {
    let mut found = files(&root.join(stem))?;
    found.push(root.join(format!("{stem}.rs")));
    let is_source = |path: &PathBuf| {
        path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") && path.is_file()
    };
    let relative = |path: PathBuf| Some(path.strip_prefix(root).ok()?.to_str()?.to_owned());
    Ok(found.into_iter().filter(is_source).filter_map(relative).collect())
}

/// The files directly in a folder, sorted; none if there is no such folder.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let mut files: Vec<_> = fs::read_dir(dir)?.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
    files.retain(|path| path.is_file());
    files.sort();
    Ok(files)
}

/// FNV-1a with 64 bits: not for secrets, good for noticing an edit.
fn hash(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root with one source per stem, one page that names them all, and hashes yet to be recorded.
    fn root(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("te-xtask-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join(PAGES)).unwrap();
        let mut page = String::from("# Page\n\n");
        for stem in SOURCES {
            let path = root.join(format!("{stem}.rs"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "//! Wire\n").unwrap();
            page.push_str(&format!("{BEGIN}{stem}.rs {ALGORITHM} 0{END}\n"));
        }
        fs::write(root.join(PAGES).join("page.md"), page).unwrap();
        root
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(hash(b""), "cbf29ce484222325");
        assert_eq!(hash(b"a"), "af63dc4c8601ec8c");
        assert_eq!(hash(b"foobar"), "85944171f73967e8");
    }

    #[test]
    fn an_edit_is_noticed_until_it_is_blessed() {
        let root = root("wire-edit");
        assert_eq!(complaints(&root).unwrap().len(), SOURCES.len());
        bless(&root).unwrap();
        assert_eq!(complaints(&root).unwrap(), [""; 0]);
        fs::write(root.join("crates/te-rpc/src/frame.rs"), "//! Wire, changed\n").unwrap();
        assert_eq!(complaints(&root).unwrap().len(), 1);
        bless(&root).unwrap();
        assert_eq!(complaints(&root).unwrap(), [""; 0]);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_source_that_no_page_names_is_refused() {
        let root = root("wire-unnamed");
        bless(&root).unwrap();
        fs::create_dir_all(root.join("crates/te-segment/src/wire")).unwrap();
        fs::write(root.join("crates/te-segment/src/wire/array.rs"), "//! Wire\n").unwrap();
        fs::write(root.join("crates/te-segment/src/wire/tests.rs"), "//! Tests\n").unwrap();
        assert_eq!(complaints(&root).unwrap().len(), 1);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_source_that_is_gone_is_refused() {
        let root = root("wire-gone");
        bless(&root).unwrap();
        fs::remove_file(root.join("crates/te-rpc/src/frame.rs")).unwrap();
        assert_eq!(complaints(&root).unwrap().len(), 2);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_tie_that_cannot_be_read_is_none() {
        assert!(tie("<!-- source: a.rs sha1 00 -->").is_none());
        assert!(tie("<!-- source: a.rs fnv1a64 -->").is_none());
        assert_eq!(tie(" <!-- source: a.rs fnv1a64 00 -->"), Some(Tie { source: "a.rs", hash: "00" }));
    }
}
