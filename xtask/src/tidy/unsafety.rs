//! Unsafe code only where it belongs, and nowhere without the reason why it is sound.

use std::fs;
use std::path::Path;

use super::scan::Line;
use crate::Result;
use crate::workspace::Package;

/// The crates that touch memory others write to, system calls on it, and libraries of vendors.
const MAY_BE_UNSAFE: [&str; 5] =
    ["te-memory", "te-sys-verbs", "te-transport-rdma", "te-transport-shm", "te-transport-tcp"];

const FORBID: &str = "#![forbid(unsafe_code)]";

/// Crate roots that do not forbid unsafe code although they should.
pub(super) fn not_forbidden<'a>(
    root: &Path,
    packages: impl Iterator<Item = &'a Package>,
) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for package in packages.filter(|p| !MAY_BE_UNSAFE.contains(&p.name.as_str())) {
        for file in ["src/lib.rs", "src/main.rs"] {
            let path = package.dir.join(file);
            if path.exists() && !fs::read_to_string(&path)?.lines().any(|line| line.trim() == FORBID) {
                let shown = path.strip_prefix(root).unwrap_or(&path);
                complaints.push(format!("{} does not say {FORBID}", shown.display()));
            }
        }
    }
    Ok(complaints)
}

/// Unsafe blocks and implementations without a `SAFETY:` comment at or directly above their statement.
pub(super) fn without_note(path: &Path, lines: &[Line]) -> Vec<String> {
    (0..lines.len())
        .filter(|&at| has_unsafe(lines, at) && !has_note(lines, at))
        .map(|at| format!("{}:{} has unsafe code without a `// SAFETY:` note", path.display(), at + 1))
        .collect()
}

/// An unsafe block, implementation or foreign block begins here. Unsafe functions state their contract in docs
/// instead, which clippy checks.
fn has_unsafe(lines: &[Line], at: usize) -> bool {
    let code = &lines[at].code;
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices("unsafe").any(|(start, word)| {
        let (before, after) = (&code[..start], &code[start + word.len()..]);
        if before.ends_with(is_name) || after.starts_with(is_name) {
            return false;
        }
        let next = if after.trim().is_empty() { lines.get(at + 1).map_or("", |l| &l.code) } else { after };
        let next = next.trim_start();
        let foreign = next.strip_prefix("extern").is_some_and(|rest| !rest.contains("fn"));
        next.starts_with('{') || next.starts_with("impl") || foreign
    })
}

/// Looks at this line, then up through the statement it belongs to and the comments above that.
fn has_note(lines: &[Line], at: usize) -> bool {
    if lines[at].comment.contains("SAFETY:") {
        return true;
    }
    for line in lines[..at].iter().rev() {
        if line.comment.contains("SAFETY:") {
            return true;
        }
        let code = line.code.trim_end();
        let blank = code.is_empty() && line.comment.is_empty();
        if blank || (!line.is_prelude() && code.ends_with([';', '{', '}', ','])) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::scan::scan;
    use super::*;

    fn found(source: &str) -> usize {
        without_note(Path::new("a.rs"), &scan(source)).len()
    }

    #[test]
    fn a_block_without_a_note_is_refused() {
        assert_eq!(found("let x = unsafe { f() };"), 1);
        assert_eq!(found("// Fast.\nlet x = unsafe { f() };"), 1);
        assert_eq!(found("// SAFETY: another.\nlet y = 1;\nlet x = unsafe { f() };"), 1);
    }

    #[test]
    fn a_block_with_a_note_is_fine() {
        assert_eq!(found("// SAFETY: f has no contract.\nlet x = unsafe { f() };"), 0);
        assert_eq!(found("// SAFETY: long\n// reason.\nlet x =\n    unsafe { f() };"), 0);
        assert_eq!(found("let x = unsafe { f() }; // SAFETY: f has no contract."), 0);
    }

    #[test]
    fn implementations_need_a_note_too() {
        assert_eq!(found("unsafe impl Send for X {}"), 1);
        assert_eq!(found("// SAFETY: X is plain data.\n#[cfg(x)]\nunsafe impl Send for X {}"), 0);
        assert_eq!(found("let x = unsafe\n{ f() };"), 1);
    }

    #[test]
    fn text_and_function_types_are_no_unsafe_code() {
        assert_eq!(found("let x = \"unsafe { }\"; // unsafe { }"), 0);
        assert_eq!(found("pub unsafe fn f() {}\ntype F = unsafe extern \"C\" fn(i32);"), 0);
        assert_eq!(found("#![forbid(unsafe_code)]"), 0);
    }

    #[test]
    fn a_crate_root_that_does_not_forbid_is_refused() {
        let dir = std::env::temp_dir().join(format!("te-xtask-unsafety-{}", std::process::id()));
        fs::create_dir_all(dir.join("src")).unwrap();
        fs::write(dir.join("src/lib.rs"), "//! Docs\n").unwrap();
        let package = |name: &str| Package { name: name.into(), dir: dir.clone(), ..Package::default() };
        assert_eq!(not_forbidden(&dir, [package("te-rpc")].iter()).unwrap().len(), 1);
        assert_eq!(not_forbidden(&dir, [package("te-memory")].iter()).unwrap().len(), 0);
        fs::write(dir.join("src/lib.rs"), "//! Docs\n\n#![forbid(unsafe_code)]\n").unwrap();
        assert_eq!(not_forbidden(&dir, [package("te-rpc")].iter()).unwrap().len(), 0);
        fs::remove_dir_all(&dir).unwrap();
    }
}
