//! Rules on every text file: no stray white space, nothing that is true on one machine only.

use std::path::Path;

/// Files whose white space is ours to keep clean.
const CLEAN: [&str; 10] = ["rs", "md", "toml", "py", "c", "h", "sh", "txt", "yml", "json"];

/// Folders of one person's or one machine's file system. In pieces, so that this file passes its own rule.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];

/// Where packages come from is the business of a machine's configuration, not of this repository.
const REGISTRY_HOSTS: [&str; 6] = [
    concat!("index.crates", ".io"),
    concat!("static.crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("deb.debian", ".org"),
    concat!("registry.npmjs", ".org"),
];

pub(super) fn complaints(path: &Path, text: &str) -> Vec<String> {
    // Cargo writes the lock file.
    if path.ends_with("Cargo.lock") {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    let clean = path.extension().is_none_or(|e| CLEAN.iter().any(|c| e == *c));
    for (number, line) in (1..).zip(text.split('\n')) {
        let mut complain = |what: &str| complaints.push(format!("{}:{number} {what}", path.display()));
        if clean && line.ends_with([' ', '\t', '\r']) {
            complain("ends in white space");
        }
        if MACHINE_PATHS.iter().any(|p| names_path(line, p)) {
            complain("names a path of one machine");
        }
        if REGISTRY_HOSTS.iter().any(|host| line.contains(host)) {
            complain("names a package registry's host");
        }
    }
    if clean && !text.is_empty() && !text.ends_with('\n') {
        complaints.push(format!("{} does not end with a line break", path.display()));
    }
    complaints
}

/// The folder at the beginning of a path, not in the middle of one.
fn names_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder)
        .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-/*$}~".contains(c)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, text: &str) -> usize {
        complaints(Path::new(name), text).len()
    }

    #[test]
    fn trailing_white_space_is_refused() {
        assert_eq!(found("a.md", "one \ntwo\t\nthree\r\nfour\n"), 3);
        assert_eq!(found("a.md", "one\ntwo\n"), 0);
        assert_eq!(found("a.md", "one"), 1);
        assert_eq!(found("a.bin", "one "), 0);
    }

    #[test]
    fn paths_of_one_machine_are_refused() {
        assert_eq!(found("a.md", concat!("see /ho", "me/me/te\n")), 1);
        assert_eq!(found("a.md", "see docs/home/me and https://x.example/work/y\n"), 0);
    }

    #[test]
    fn registry_hosts_are_refused_outside_of_the_lock_file() {
        let text = concat!("https://static.crates", ".io/x\n");
        assert_eq!(found("a.toml", text), 1);
        assert_eq!(found("Cargo.lock", text), 0);
    }
}
