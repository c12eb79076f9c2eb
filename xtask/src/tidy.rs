//! House rules that no compiler checks. Each rule is one verdict; each complaint names a file and a line.

mod arrows;
mod failures;
mod layout;
mod scan;
mod sources;
mod text;
mod unsafety;
mod wire;

use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::args::Args;
use crate::outcome::Outcome;
use crate::shell::Cmd;
use crate::workspace::Workspace;

pub(crate) fn command(mut args: Args) -> Result<Outcome> {
    let bless = args.flag("--bless");
    args.finish()?;
    let workspace = Workspace::load()?;
    if bless {
        wire::bless(&workspace.root)?;
        failures::bless(&workspace.root)?;
    }
    let outcome = check(&workspace)?;
    outcome.print();
    Ok(outcome)
}

pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    let files = files(&workspace.root)?;
    let mut outcome = Outcome::default();
    outcome.verdict("arrows", arrows::complaints(workspace.members.values()));
    outcome.verdict("layout", layout::complaints(workspace.members.values()));
    outcome.verdict("wire pages", wire::complaints(&workspace.root)?);
    outcome.verdict("failure handbook", failures::complaints(&workspace.root)?);
    let rust: Vec<_> = files.iter().filter(|f| is_ours_to_read(&f.path)).collect();
    if rust.is_empty() {
        return Err("no Rust file found".into());
    }
    let scanned: Vec<_> = rust.iter().map(|f| (f.path.as_path(), scan::scan(&f.text))).collect();
    outcome.verdict("module docs", over(&rust, |f| sources::without_docs(&f.path, &f.text)));
    outcome.verdict("file sizes", over(&rust, |f| sources::too_long(&f.path, &f.text)));
    outcome.notes.extend(over(&rust, |f| sources::long(&f.path, &f.text)));
    outcome.verdict("leftovers", over(&scanned, |(path, lines)| sources::leftovers(path, lines)));
    outcome.verdict("safety notes", over(&scanned, |(path, lines)| unsafety::without_note(path, lines)));
    outcome.verdict("unsafe crates", unsafety::not_forbidden(&workspace.root, workspace.members.values())?);
    outcome.verdict("text", over(&files, |f| text::complaints(&f.path, &f.text)));
    Ok(outcome)
}

/// A file that git knows or would add, as text. Its path is relative to the root.
struct File {
    path: PathBuf,
    text: String,
}

fn files(root: &Path) -> Result<Vec<File>> {
    let list = Cmd::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .dir(root)
        .read()?;
    let mut files = Vec::new();
    for path in list.split('\0').filter(|p| !p.is_empty()) {
        // Deleted but not yet committed, or not text: nothing to check.
        let Ok(bytes) = fs::read(root.join(path)) else { continue };
        let Ok(text) = String::from_utf8(bytes) else { continue };
        files.push(File { path: path.into(), text });
    }
    Ok(files)
}

/// Rust files, but not the programs that prove that a misuse does not compile: their expected errors name lines, and
/// what is wrong with them is their point.
fn is_ours_to_read(path: &Path) -> bool {
    let is_proof = path.components().any(|c| c.as_os_str() == "compile_fail");
    path.extension().is_some_and(|e| e == "rs") && !is_proof
}

fn over<T>(items: &[T], rule: impl Fn(&T) -> Vec<String>) -> Vec<String> {
    items.iter().flat_map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_that_do_not_compile_are_not_judged() {
        assert!(is_ours_to_read(Path::new("crates/te/src/lib.rs")));
        assert!(!is_ours_to_read(Path::new("crates/te/tests/compile_fail/twice.rs")));
        assert!(!is_ours_to_read(Path::new("README.md")));
    }
}
