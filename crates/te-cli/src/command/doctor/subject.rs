//! Whom the checks look at: a file tree, what `te-topology` found in it, and the settings.

use std::path::Path;

use te::settings::Settings;
use te_topology::{Host, NicFilter, Root};

use crate::failure::{Failure, Result};

/// A host and the settings of an engine on it.
pub(super) struct Subject<'a> {
    pub(super) root: Root,
    /// Whether it is this host, so that it can be asked by more than its files.
    pub(super) is_here: bool,
    pub(super) settings: &'a Settings,
    pub(super) host: Host,
}

/// Capabilities of a process, by their number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Capability {
    NetBindService = 10,
    IpcLock = 14,
    SysPtrace = 19,
}

/// A limit of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Unlimited,
    Of(u64),
}

impl<'a> Subject<'a> {
    pub(super) fn new(path: &Path, settings: &'a Settings) -> Result<Self> {
        let root = Root::at(path);
        let host =
            Host::discover(&root, &NicFilter::all()).map_err(|error| Failure::Other(error.to_string()))?;
        Ok(Self { is_here: path == Path::new("/"), root, settings, host })
    }

    /// A file's text, or nothing.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        self.root.text(path).ok()
    }

    /// A file's number, or nothing.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Whether this process has it; the doctor's own right is taken for that of an engine.
    pub(super) fn may(&self, capability: Capability) -> bool {
        let mask = self.text("proc/self/status").and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
            u64::from_str_radix(line.trim(), 16).ok()
        });
        mask.is_some_and(|mask| mask >> capability as u32 & 1 == 1)
    }

    /// The soft limit of that name, such as `Max locked memory`.
    pub(super) fn limit(&self, name: &str) -> Option<Limit> {
        let limits = self.text("proc/self/limits")?;
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        match line.split_whitespace().next()? {
            "unlimited" => Some(Limit::Unlimited),
            number => number.parse().ok().map(Limit::Of),
        }
    }

    /// Version and patch level of the kernel.
    pub(super) fn kernel(&self) -> Option<(u32, u32)> {
        let release = self.text("proc/sys/kernel/osrelease")?;
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }

    /// The kernel's release as it calls itself.
    pub(super) fn release(&self) -> String {
        self.text("proc/sys/kernel/osrelease").unwrap_or_else(|| "of unknown version".to_owned())
    }
}
