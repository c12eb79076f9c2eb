//! Rules on Rust files: module docs, size, nothing unfinished, nothing switched off without a reason.

use std::path::Path;

use super::scan::Line;

/// A file this long wants to be two.
const LONG: usize = 500;
/// A file this long is refused.
const TOO_LONG: usize = 900;

/// Macros that stand for work not done. `dbg!` is a tool that was left lying about.
const UNFINISHED: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];

/// The file begins with the docs of its module. A module of unit tests says what it is by its name.
pub(super) fn without_docs(path: &Path, text: &str) -> Vec<String> {
    if path.ends_with("tests.rs") {
        return Vec::new();
    }
    // A README that is compiled is documentation too.
    if text.starts_with("//!") || text.starts_with("#![doc = include_str!(") {
        vec![]
    } else {
        vec![format!("{} does not begin with `//!`", path.display())]
    }
}

pub(super) fn too_long(path: &Path, text: &str) -> Vec<String> {
    sized(path, text, TOO_LONG + 1..usize::MAX, "at most 900 are allowed")
}

pub(super) fn long(path: &Path, text: &str) -> Vec<String> {
    sized(path, text, LONG + 1..TOO_LONG + 1, "consider to split it")
}

fn sized(path: &Path, text: &str, range: std::ops::Range<usize>, advice: &str) -> Vec<String> {
    let lines = text.lines().count();
    if range.contains(&lines) {
        vec![format!("{} has {lines} lines, {advice}", path.display())]
    } else {
        vec![]
    }
}

/// Unfinished code and tests that are ignored without saying why.
pub(super) fn leftovers(path: &Path, lines: &[Line]) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in (1..).zip(lines) {
        let place = format!("{}:{number}", path.display());
        for name in UNFINISHED {
            if has_word(&line.code, name) {
                complaints.push(format!("{place} has `{name}`"));
            }
        }
        let compact: String = line.code.split_whitespace().collect();
        let ignored = ["#[ignore]", "#[ignore=\"\"]", ",ignore)]"].iter().any(|form| compact.contains(form));
        if ignored {
            complaints.push(format!("{place} ignores a test without a reason"));
        }
    }
    complaints
}

/// Whether the word is in the code and is not the end of a longer one.
fn has_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::super::scan::scan;
    use super::*;

    fn leftovers_in(source: &str) -> usize {
        leftovers(Path::new("a.rs"), &scan(source)).len()
    }

    #[test]
    fn a_file_without_docs_is_refused() {
        assert_eq!(without_docs(Path::new("a.rs"), "use std::io;\n").len(), 1);
        assert_eq!(without_docs(Path::new("a.rs"), "// Comment\n").len(), 1);
        assert_eq!(without_docs(Path::new("a.rs"), "//! Docs\n").len(), 0);
        assert_eq!(without_docs(Path::new("a/tests.rs"), "use super::*;\n").len(), 0);
    }

    #[test]
    fn sizes_are_judged_at_their_limits() {
        let of = |lines: usize| "x\n".repeat(lines);
        let path = Path::new("a.rs");
        assert_eq!((long(path, &of(500)).len(), too_long(path, &of(500)).len()), (0, 0));
        assert_eq!((long(path, &of(501)).len(), too_long(path, &of(501)).len()), (1, 0));
        assert_eq!((long(path, &of(900)).len(), too_long(path, &of(900)).len()), (1, 0));
        assert_eq!((long(path, &of(901)).len(), too_long(path, &of(901)).len()), (0, 1));
    }

    #[test]
    fn unfinished_code_is_found_outside_of_text_only() {
        assert_eq!(leftovers_in("fn f() { todo!() }"), 1);
        assert_eq!(leftovers_in("unimplemented!(\"x\"); dbg!(3);"), 2);
        assert_eq!(leftovers_in("let s = \"todo!\"; // todo!\nmy_todo!()"), 0);
    }

    #[test]
    fn an_ignored_test_needs_a_reason() {
        assert_eq!(leftovers_in("#[ignore]\nfn t() {}"), 1);
        assert_eq!(leftovers_in("#[ignore = \"\"]\nfn t() {}"), 1);
        assert_eq!(leftovers_in("#[cfg_attr(x, ignore)]\nfn t() {}"), 1);
        assert_eq!(leftovers_in("#[ignore = \"needs two NUMA nodes\"]\nfn t() {}"), 0);
    }
}
