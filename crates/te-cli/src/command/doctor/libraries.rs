//! Where shared libraries are, without loading one.

use te_topology::Root;

/// Folders that the loader looks at by itself, on any distribution, and where AMD puts its own.
const FOLDERS: [&str; 9] = [
    "lib",
    "lib64",
    "usr/lib",
    "usr/lib64",
    "usr/local/lib",
    "usr/local/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "opt/rocm/lib",
];

/// The path of a library by its name, such as `libibverbs.so.1`: as the loader's cache has it, or in its usual folders.
pub(super) fn find(root: &Root, name: &str) -> Option<String> {
    let cache = root.text("etc/ld.so.cache").unwrap_or_default();
    let ending = format!("/{name}");
    // The cache ends in all its names and paths.
    let cached = cache.split('\0').filter_map(|path| path.strip_prefix('/'));
    let cached = cached.filter(|path| path.ends_with(&ending)).find(|path| root.has(path)).map(str::to_owned);
    cached.or_else(|| FOLDERS.iter().map(|folder| format!("{folder}/{name}")).find(|path| root.has(path)))
}

/// The part of `libibverbs` for a kind of device, such as `mlx5`: a library in the folder `libibverbs` beside it.
pub(super) fn find_provider(root: &Root, verbs: &str, provider: &str) -> Option<String> {
    let beside = verbs.rsplit_once('/').map_or("", |(folder, _)| folder);
    let prefix = format!("lib{provider}-rdmav");
    [beside].into_iter().chain(FOLDERS).find_map(|folder| {
        let folder = format!("{folder}/libibverbs");
        let names = root.entries(&folder).ok()?;
        let name = names.iter().find(|name| name.starts_with(&prefix) && name.ends_with(".so"))?;
        Some(format!("{folder}/{name}"))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn libraries_are_found_by_cache_and_by_folder() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        let file = |path: &str, content: &[u8]| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        assert_eq!(find(&root, "libibverbs.so.1"), None);
        file("usr/lib64/libibverbs.so.1", b"");
        assert_eq!(find(&root, "libibverbs.so.1").as_deref(), Some("usr/lib64/libibverbs.so.1"));
        file("opt/v/libibverbs.so.1", b"");
        // Stale entries and parts of names do not count.
        file(
            "etc/ld.so.cache",
            b"\x01\xffglibc\0/gone/libibverbs.so.1\0libibverbs.so.1\0/opt/v/libibverbs.so.1\0",
        );
        assert_eq!(find(&root, "libibverbs.so.1").as_deref(), Some("opt/v/libibverbs.so.1"));
        file("opt/v/libibverbs/libmlx5-rdmav34.so", b"");
        file("usr/lib64/libibverbs/librxe-rdmav34.so", b"");
        let provider = |name| find_provider(&root, "opt/v/libibverbs.so.1", name);
        assert_eq!(provider("mlx5").as_deref(), Some("opt/v/libibverbs/libmlx5-rdmav34.so"));
        assert_eq!(provider("rxe").as_deref(), Some("usr/lib64/libibverbs/librxe-rdmav34.so"));
        assert_eq!(provider("mlx"), None);
    }
}
