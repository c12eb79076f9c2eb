//! Every backend crate has the same files: who has read one has read them all.

use crate::workspace::Package;

/// The files each crate of a kind has, and perhaps more.
const KINDS: [(&str, &[&str]); 2] = [
    ("te-transport-", &["README.md", "src/lib.rs", "src/config.rs", "src/backend.rs", "src/error.rs"]),
    ("te-metadata-", &["README.md", "src/lib.rs"]),
];

pub(super) fn complaints<'a>(packages: impl Iterator<Item = &'a Package>) -> Vec<String> {
    packages.flat_map(missing).collect()
}

fn missing(package: &Package) -> Vec<String> {
    KINDS
        .iter()
        .filter(|(prefix, _)| package.name.starts_with(prefix))
        .flat_map(|(_, files)| files.iter())
        .filter(|file| !package.dir.join(file).is_file())
        .map(|file| format!("{} has no {file}", package.name))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_backend_without_its_files_is_refused() {
        let dir = PathBuf::from("no/such/folder");
        let backend = Package { name: "te-transport-x".into(), dir: dir.clone(), ..Package::default() };
        assert_eq!(missing(&backend).len(), 5);
        let contract = Package { name: "te-transport".into(), dir, ..Package::default() };
        assert_eq!(missing(&contract).len(), 0);
    }
}
