//! The failure handbook is rendered from the engine's catalogue of errors; `cargo xtask tidy --bless` writes it.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::Result;

#[path = "../../../crates/te-engine/src/catalogue.rs"]
#[allow(dead_code, unreachable_pub, reason = "the engine's module; entries are used by their list here")]
mod catalogue;

const PAGE: &str = "docs/failures.md";
const HEAD: &str = "\
# Failures

Every error of the engine has one of the kinds below: `Error::kind`, and the first words of what `te` prints. The error itself
names the operation, the peer, the path, the cause, what may have happened to the remote bytes and whether a retry can help;
`{:#}` prints all of it with the steps of this page.

This page is generated from `crates/te-engine/src/catalogue.rs` by `cargo xtask tidy --bless`.
";

pub(super) fn complaints(root: &Path) -> Result<Vec<String>> {
    let page = fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    let stale = page != render()?;
    Ok(stale
        .then(|| format!("{PAGE} differs from the catalogue of errors: run `cargo xtask tidy --bless`"))
        .into_iter()
        .collect())
}

pub(super) fn bless(root: &Path) -> Result<()> {
    fs::write(root.join(PAGE), render()?)?;
    Ok(())
}

fn render() -> Result<String> {
    let mut page = String::from(HEAD);
    for entry in catalogue::ENTRIES {
        let mut title: Vec<char> = entry.name.chars().collect();
        title[..1].iter_mut().for_each(|first| *first = first.to_ascii_uppercase());
        writeln!(page, "\n## {}\n\n{}\n", title.iter().collect::<String>(), entry.meaning)?;
        writeln!(page, "Likely causes:\n")?;
        entry.causes.iter().try_for_each(|cause| writeln!(page, "* {cause}"))?;
        writeln!(page, "\nWhat to do next:\n")?;
        (1..).zip(entry.next).try_for_each(|(number, step)| writeln!(page, "{number}. {step}"))?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_was_edited_by_hand_is_a_complaint() {
        let root = std::env::temp_dir().join(format!("te-xtask-failures-{}", std::process::id()));
        fs::create_dir_all(root.join("docs")).unwrap();
        assert_eq!(complaints(&root).unwrap().len(), 1);
        bless(&root).unwrap();
        assert!(complaints(&root).unwrap().is_empty());
        let page = root.join(PAGE);
        fs::write(&page, fs::read_to_string(&page).unwrap().replace("Cancelled", "Canceled")).unwrap();
        assert_eq!(complaints(&root).unwrap().len(), 1);
        fs::remove_dir_all(root).unwrap();
    }
}
