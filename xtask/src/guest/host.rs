//! What a guest needs from this machine: programs, and a kernel with its modules.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::provision::{self, Need, What};
use crate::shell::{Cmd, is_installed};

/// Where the kernel comes from: it has RoCE between network namespaces, CXL and every NVMe transport.
pub(super) const SUITE: &str = "trixie-backports";

/// An unpacked kernel. Nothing of it is installed on this machine.
pub(super) struct Kernel {
    pub(super) version: String,
    pub(super) image: PathBuf,
    /// The folder above `lib/modules`.
    pub(super) root: PathBuf,
}

/// The guest's user space is this machine's: what its commands use has to be installed here.
pub(super) fn programs(cache: &Path) -> Result<()> {
    let program = |what, package| Need { what: What::Program(what), package };
    provision::debian(&[
        program("busybox", "busybox-static"),
        program("cpio", "cpio"),
        program("depmod", "kmod"),
        program("xz", "xz-utils"),
        program("ip", "iproute2"),
        program("ping", "iputils-ping"),
        program("ibv_devinfo", "ibverbs-utils"),
        program("nvme", "nvme-cli"),
        program("cxl", "ndctl"),
        program("daxctl", "daxctl"),
        Need { what: What::File("/etc/libibverbs.d/rxe.driver"), package: "ibverbs-providers" },
    ])?;
    if is_installed("qemu-system-x86_64") {
        return Ok(());
    }
    if !provision::is_root()? || !is_installed("apt-get") {
        return Err(
            "this machine lacks qemu-system-x86, 8.1 or later for memory behind CXL; install it as root"
                .into(),
        );
    }
    // From the backports where there are any.
    let codename = codename(&fs::read_to_string("/etc/os-release")?)?;
    let backports = format!("{codename}-backports");
    let apt = match Apt::with(cache, &[&codename, &backports]) {
        Ok(apt) => apt,
        Err(_) => Apt::with(cache, &[&codename])?,
    };
    let install =
        apt.get().args(["-o", "DPkg::Lock::Timeout=300", "install", "-qy", "--no-install-recommends"]);
    let install = if apt.has(&backports) { install.args(["-t", &backports]) } else { install };
    if !install.arg("qemu-system-x86").env("DEBIAN_FRONTEND", "noninteractive").run()? {
        return Err("could not install qemu-system-x86, which the guest runs in".into());
    }
    Ok(())
}

/// The kernel of a suite, fetched and unpacked once.
pub(super) fn kernel(cache: &Path, suite: &str) -> Result<Kernel> {
    let home = cache.join("kernel").join(suite);
    if !home.exists() {
        println!("fetching a kernel from {suite}");
        fs::create_dir_all(cache.join("kernel"))?;
        let fresh = Scratch::new(cache)?;
        fetch(cache, suite, &fresh.0)?;
        // Somebody else may have been faster.
        if let Err(error) = fs::rename(fresh.0.join("root"), &home)
            && !home.exists()
        {
            return Err(error.into());
        }
    }
    let root = home.join("usr");
    let modules = root.join("lib/modules");
    let entry = fs::read_dir(&modules)?.next().ok_or("the kernel's packages have no modules in them")??;
    let version = entry.file_name().to_string_lossy().into_owned();
    let places = [home.join(format!("boot/vmlinuz-{version}")), entry.path().join("vmlinuz")];
    let image =
        places.into_iter().find(|p| p.exists()).ok_or("the kernel's packages have no kernel in them")?;
    Ok(Kernel { version, image, root })
}

fn fetch(cache: &Path, suite: &str, into: &Path) -> Result<()> {
    let apt = Apt::with(cache, &[suite])?;
    let image = apt.kernel_parts("linux-image-amd64")?;
    let image =
        image.iter().find(|name| name.starts_with("linux-image-")).ok_or("the suite has no kernel")?;
    // Later images are empty and need their parts.
    let parts = apt.kernel_parts(image)?;
    if !apt.get().args(["-q", "download", image]).args(&parts).dir(into).run()? {
        return Err(format!("could not download {image}").into());
    }
    let root = into.join("root");
    for entry in fs::read_dir(into)? {
        let package = entry?.path();
        if package.extension().is_some_and(|e| e == "deb")
            && !Cmd::new("dpkg").arg("-x").arg(&package).arg(&root).quiet()?.success
        {
            return Err(format!("could not unpack {}", package.display()).into());
        }
    }
    let (usual, old) = (root.join("usr/lib/modules"), root.join("lib/modules"));
    if !usual.exists() {
        fs::create_dir_all(root.join("usr/lib"))?;
        fs::rename(old, usual)?;
    }
    let version = fs::read_dir(root.join("usr/lib/modules"))?.next().ok_or("no modules")??.file_name();
    if !Cmd::new("depmod").arg("-b").arg(root.join("usr")).arg(version).quiet()?.success {
        return Err("depmod could not order the modules".into());
    }
    Ok(())
}

/// A folder that goes away.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new(cache: &Path) -> Result<Self> {
        let dir = cache.join(format!("scratch-{}", std::process::id()));
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left is found and removed by whoever has the number next.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// apt with package lists of its own, so that this machine's configuration stays as it is.
struct Apt {
    dir: PathBuf,
    suites: Vec<String>,
}

impl Apt {
    /// With the lists of these suites, from the mirror this machine uses.
    fn with(cache: &Path, suites: &[&str]) -> Result<Self> {
        let dir = cache.join(format!("apt-{}", std::process::id()));
        for folder in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        let mirror = mirror()?;
        let line = |suite: &&str| {
            format!("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {suite} main\n")
        };
        fs::write(dir.join("sources.list"), suites.iter().map(line).collect::<String>())?;
        let apt = Self { dir, suites: suites.iter().map(|s| (*s).to_owned()).collect() };
        let update = apt.get().args(["-q", "-o", "APT::Update::Error-Mode=any", "update"]).quiet()?;
        if !update.success {
            return Err(format!("no package lists of {}: {}", suites.join(", "), update.output.trim()).into());
        }
        Ok(apt)
    }

    fn get(&self) -> Cmd {
        self.command("apt-get")
    }

    fn has(&self, suite: &str) -> bool {
        self.suites.iter().any(|s| s == suite)
    }

    fn command(&self, program: &str) -> Cmd {
        let set = |name: &str, value: &Path| format!("{name}={}", value.display());
        let options = [
            set("Dir::Etc::SourceList", &self.dir.join("sources.list")),
            set("Dir::Etc::SourceParts", Path::new("/dev/null")),
            set("Dir::State::Lists", &self.dir.join("lists")),
            set("Dir::Cache", &self.dir.join("cache")),
            "APT::Sandbox::User=root".to_owned(),
        ];
        options.iter().fold(Cmd::new(program), |command, option| command.args(["-o", option]))
    }

    /// The packages that a kernel package is put together from.
    fn kernel_parts(&self, package: &str) -> Result<Vec<String>> {
        let text = self.command("apt-cache").args(["depends", package]).read()?;
        Ok(parts(&text))
    }
}

impl Drop for Apt {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The mirror in this machine's configuration.
fn mirror() -> Result<String> {
    let sites =
        Cmd::new("apt-get").args(["indextargets", "--format", "$(SITE)", "Created-By: Packages"]).read()?;
    let mirror = sites.lines().find(|site| site.trim_end_matches('/').ends_with("/debian"));
    Ok(mirror.ok_or("apt on this machine knows no Debian mirror: run `apt-get update` first")?.to_owned())
}

/// The kernel's packages among the dependencies that `apt-cache depends` lists, with a version in their names.
fn parts(depends: &str) -> Vec<String> {
    let names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let versioned = |name: &&str| {
        ["linux-image-", "linux-base-", "linux-binary-", "linux-modules-"]
            .iter()
            .any(|kind| name.strip_prefix(kind).is_some_and(|v| v.starts_with(|c: char| c.is_ascii_digit())))
    };
    names.filter(versioned).map(str::to_owned).collect()
}

fn codename(os_release: &str) -> Result<String> {
    let line = os_release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(line.ok_or("this machine is no Debian with a code name")?.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_kernel_are_told_from_its_other_dependencies() {
        let depends = "linux-image-7.3.4-amd64\n  Depends: linux-base-7.3.4-amd64\n |Depends: linux-binary\n  \
                       Depends: linux-base\n  Depends: linux-modules-7.3.4\n  Recommends: linux-image-1\n";
        assert_eq!(parts(depends), ["linux-base-7.3.4-amd64", "linux-modules-7.3.4"]);
    }

    #[test]
    fn the_code_name_is_read() {
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=bookworm\n").unwrap(), "bookworm");
        assert!(codename("ID=other\n").is_err());
    }
}
