//! What a guest is to have.

use std::path::PathBuf;

use super::host::SUITE;
use crate::Result;
use crate::args::Args;

/// What a guest is to have. Sizes are in bytes, 0 for none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    /// RoCE rails to the second host.
    pub(crate) rails: u64,
    /// An NVMe-oF target on a RAM disk.
    pub(crate) nvmet: u64,
    /// An NVMe disk of the machine.
    pub(crate) nvme: u64,
    /// Memory behind CXL.
    pub(crate) cxl: u64,
    /// Persistent memory.
    pub(crate) pmem: u64,
    /// Huge pages of 2 MiB.
    pub(crate) huge_pages: u64,
    /// Folders whose changes are kept.
    pub(crate) writable: Vec<PathBuf>,
    /// Variables, as `NAME=VALUE`.
    pub(crate) variables: Vec<String>,
    /// Modules besides the usual ones.
    pub(crate) modules: Vec<String>,
    pub(crate) processors: u64,
    pub(crate) memory: u64,
    /// Processors with nothing to do spin instead of halting.
    pub(crate) awake: bool,
    /// Seconds after which the guest is ended.
    pub(crate) timeout: u64,
    /// Where the kernel's log is kept.
    pub(crate) log: Option<PathBuf>,
    /// Where the kernel comes from.
    pub(crate) suite: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rails: 0,
            nvmet: 0,
            nvme: 0,
            cxl: 0,
            pmem: 0,
            huge_pages: 0,
            writable: Vec::new(),
            variables: Vec::new(),
            modules: Vec::new(),
            processors: 2,
            memory: 2 << 30,
            awake: false,
            timeout: 300,
            log: None,
            suite: SUITE.to_owned(),
        }
    }
}

/// The part of the help that these are in.
pub(crate) const HELP: &str = "\
  --rxe N        rails to a second host, which is network namespace `peer`; `peer COMMAND` runs there.
                 Rail I: rxeI on ethI, 10.77.I.1, here; rxepI on ethI, 10.77.I.2, there.
                 Besides, a link without RDMA: 10.78.0.1 here, 10.78.0.2 there
  --nvmet SIZE   an NVMe-oF target `testbed` on TCP 127.0.0.1:4420, on loop, and on RDMA 10.77.0.1:4420
  --nvme SIZE    an NVMe disk, /dev/nvme0n1
  --cxl SIZE     memory behind CXL, /dev/dax0.0; a multiple of 256M
  --pmem SIZE    persistent memory, up to 1G
  --hugepages N  huge pages of 2 MiB
  --rw DIR       keep what is written in this folder (repeatable)
  --env NAME[=V] set a variable, or pass it on (repeatable)
  --module NAME  take this kernel module along (repeatable)
  --cpus N       processors (2)
  --mem SIZE     memory (2G)
  --awake        processors never halt: waking one takes the emulator as long as much of what is measured
  --timeout S    end the guest after so many seconds (300)
  --log FILE     keep the kernel's log
  --suite NAME   take the kernel from this Debian suite
";

impl Options {
    pub(crate) fn parse(args: &mut Args) -> Result<Self> {
        let usual = Self::default();
        let writable = all(args, "--rw")?.into_iter().map(|dir| Ok(PathBuf::from(dir).canonicalize()?));
        Ok(Self {
            writable: writable.collect::<Result<_>>()?,
            rails: args.number("--rxe", 0)?,
            nvmet: bytes(args, "--nvmet", 0)?,
            nvme: bytes(args, "--nvme", 0)?,
            cxl: bytes(args, "--cxl", 0)?,
            pmem: bytes(args, "--pmem", 0)?,
            huge_pages: args.number("--hugepages", 0)?,
            variables: all(args, "--env")?.into_iter().map(variable).collect::<Result<_>>()?,
            modules: all(args, "--module")?,
            processors: args.number("--cpus", usual.processors)?,
            memory: bytes(args, "--mem", usual.memory)?,
            awake: args.flag("--awake"),
            timeout: args.number("--timeout", usual.timeout)?,
            log: args.value("--log")?.map(PathBuf::from),
            suite: args.value("--suite")?.unwrap_or(usual.suite),
        })
    }

    /// With what the other has besides.
    pub(crate) fn and(mut self, other: &Self) -> Self {
        self.rails = self.rails.max(other.rails);
        self.nvmet = self.nvmet.max(other.nvmet);
        self.nvme = self.nvme.max(other.nvme);
        self.cxl = self.cxl.max(other.cxl);
        self.pmem = self.pmem.max(other.pmem);
        self.huge_pages = self.huge_pages.max(other.huge_pages);
        self.awake |= other.awake;
        self.timeout = self.timeout.max(other.timeout);
        for module in &other.modules {
            if !self.modules.contains(module) {
                self.modules.push(module.clone());
            }
        }
        self
    }
}

/// Every value of an option that may be repeated.
fn all(args: &mut Args, name: &str) -> Result<Vec<String>> {
    std::iter::from_fn(|| args.value(name).transpose()).collect()
}

/// `NAME` alone is passed on from here.
fn variable(text: String) -> Result<String> {
    if text.contains('=') {
        return Ok(text);
    }
    let value = std::env::var(&text).map_err(|_| format!("--env {text}: there is no such variable here"))?;
    Ok(format!("{text}={value}"))
}

fn bytes(args: &mut Args, name: &str, usual: u64) -> Result<u64> {
    match args.value(name)? {
        None => Ok(usual),
        Some(text) => {
            size(&text).ok_or_else(|| format!("{name} needs a size like 256M, not `{text}`").into())
        }
    }
}

fn size(text: &str) -> Option<u64> {
    let (number, shift) = match text.char_indices().last()? {
        (at, 'K') => (&text[..at], 10),
        (at, 'M') => (&text[..at], 20),
        (at, 'G') => (&text[..at], 30),
        _ => (text, 0),
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!((size("256M"), size("2G"), size("512")), (Some(256 << 20), Some(2 << 30), Some(512)));
        assert_eq!((size("M"), size("1T"), size(""), size("99999999999G")), (None, None, None, None));
    }

    #[test]
    fn options_are_read_and_repeat() {
        let line = "--rxe 2 --cxl=256M --env A=1 --env B=2 --rw / --timeout 60";
        let mut args = Args::new(line.split(' ').map(str::to_owned));
        let options = Options::parse(&mut args).unwrap();
        args.finish().unwrap();
        assert_eq!((options.rails, options.cxl, options.timeout), (2, 256 << 20, 60));
        assert_eq!(options.variables, ["A=1", "B=2"]);
        assert_eq!(options.writable, [PathBuf::from("/")]);
    }

    #[test]
    fn two_wishes_together_have_the_more_of_each() {
        let a = Options { rails: 2, timeout: 60, ..Options::default() };
        let b = Options { rails: 1, cxl: 7, ..Options::default() };
        let both = a.and(&b);
        assert_eq!((both.rails, both.cxl, both.timeout), (2, 7, 300));
    }

    #[test]
    fn a_variable_that_is_not_there_is_an_error() {
        assert!(variable("NO_SUCH_VARIABLE_HERE".into()).is_err());
        assert_eq!(variable("A=".into()).unwrap(), "A=");
    }
}
