//! The guest's first file system: a shell, the init script, and the modules with what they need.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::host::{Kernel, Scratch};
use crate::Result;
use crate::shell::Cmd;

const INIT: &str = include_str!("init.sh");

/// What a guest may load. One that this kernel lacks is left out.
const MODULES: [&str; 48] = [
    // to boot
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "configfs",
    // networks
    "veth",
    "dummy",
    "bridge",
    "tun",
    "sch_netem",
    "sch_tbf",
    "sch_fq",
    "cls_u32",
    "nf_tables",
    // RDMA
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "ib_umad",
    "iw_cm",
    "crc32_generic",
    // NVMe, here and over fabrics
    "nvme",
    "nvme-tcp",
    "nvme-loop",
    "nvme-rdma",
    "nvmet",
    "nvmet-tcp",
    "nvmet-rdma",
    "brd",
    "loop",
    "null_blk",
    "ext4",
    "xfs",
    // CXL and persistent memory
    "cxl_acpi",
    "cxl_pci",
    "cxl_mem",
    "cxl_port",
    "cxl_pmem",
    "dax_cxl",
    "dax_hmem",
    "device_dax",
    "kmem",
    "dax_pmem",
    "nd_pmem",
    "nd_btt",
    "nd_e820",
    "fuse",
    "virtio_rng",
];

/// The initramfs for a kernel, made once for what is in it.
pub(super) fn make(cache: &Path, kernel: &Kernel, more: &[String]) -> Result<PathBuf> {
    let wanted: Vec<&str> = MODULES.iter().copied().chain(more.iter().map(String::as_str)).collect();
    let mut hasher = DefaultHasher::new();
    (&kernel.version, &wanted, INIT, include_str!("initrd.rs")).hash(&mut hasher);
    let file = cache.join(format!("initrd-{:016x}", hasher.finish()));
    if file.exists() {
        return Ok(file);
    }
    println!("building the guest's first file system");
    let scratch = Scratch::new(cache)?;
    let tree = scratch.0.join("tree");
    let modules = PathBuf::from("lib/modules").join(&kernel.version);
    fs::create_dir_all(tree.join("bin"))?;
    fs::create_dir_all(tree.join(&modules))?;
    let busybox = Cmd::new("sh").args(["-c", "command -v busybox"]).read()?;
    fs::copy(busybox.trim(), tree.join("bin/busybox"))?;
    fs::write(tree.join("init"), INIT)?;
    fs::set_permissions(tree.join("init"), fs::Permissions::from_mode(0o755))?;
    let from = kernel.root.join(&modules);
    for name in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        if from.join(name).exists() {
            fs::copy(from.join(name), tree.join(&modules).join(name))?;
        }
    }
    copy_modules(kernel, &wanted, &from, &tree.join(&modules))?;
    let whole = scratch.0.join("initrd");
    let pack = Cmd::new("sh").args(["-c", r#"find . | cpio -o -H newc --quiet >"$0""#]).arg(&whole);
    let ordered = Cmd::new("depmod").arg("-b").arg(&tree).arg(&kernel.version).quiet()?;
    if !ordered.success || !pack.dir(&tree).quiet()?.success {
        return Err("could not pack the guest's first file system".into());
    }
    fs::rename(whole, &file)?;
    Ok(file)
}

/// Copies modules and what they need, and unpacks them.
fn copy_modules(kernel: &Kernel, wanted: &[&str], from: &Path, to: &Path) -> Result<()> {
    let mut files = BTreeSet::new();
    for module in wanted {
        // Without the machine's configuration, which may put something else in a module's place.
        let needs = Cmd::new("modprobe")
            .args(["-C", "/dev/null", "-d"])
            .arg(&kernel.root)
            .args(["-S", &kernel.version, "--show-depends", module])
            .quiet()?;
        if needs.success {
            files.extend(module_files(&needs.output));
        }
    }
    if files.is_empty() {
        return Err("modprobe names no file of any module".into());
    }
    let mut packed = Vec::new();
    for file in files {
        let inside = file
            .strip_prefix(from)
            .map_err(|_| format!("{} is not below {}", file.display(), from.display()))?;
        let target = to.join(inside);
        fs::create_dir_all(target.parent().unwrap_or(to))?;
        fs::copy(&file, &target)?;
        if target.extension().is_some_and(|e| e != "ko") {
            packed.push(target);
        }
    }
    for (extension, program) in [("xz", "xz"), ("zst", "zstd")] {
        let ours: Vec<_> = packed.iter().filter(|f| f.extension().is_some_and(|e| e == extension)).collect();
        let unpack = Cmd::new(program).args(["-d", "-q"]);
        let unpack = if program == "zstd" { unpack.arg("--rm") } else { unpack };
        if !ours.is_empty() && !unpack.args(ours).quiet()?.success {
            return Err(format!("{program} could not unpack the modules").into());
        }
    }
    Ok(())
}

/// The files in the lines `insmod FILE [PARAMETER..]`.
fn module_files(lines: &str) -> impl Iterator<Item = PathBuf> {
    let files = lines.lines().filter_map(|line| line.strip_prefix("insmod ")?.split_whitespace().next());
    files.map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_modules_are_read_and_builtins_are_not() {
        let lines = "builtin configfs\ninsmod /m/a.ko.xz \ninsmod /m/b.ko.xz rd_nr=1\n";
        assert_eq!(
            module_files(lines).collect::<Vec<_>>(),
            [Path::new("/m/a.ko.xz"), Path::new("/m/b.ko.xz")]
        );
    }
}
