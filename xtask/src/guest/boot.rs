//! Starting a guest, telling it what to run, and hearing how that ended.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use super::host::{Kernel, Scratch};
use super::options::Options;
use crate::Result;
use crate::shell::Cmd;

const QEMU: &str = "qemu-system-x86_64";
/// The program of `timeout`'s status for a command that took too long.
const TOO_LONG: u8 = 124;
/// The status for a guest that ended without saying how its command did.
const DIED: u8 = 125;

/// How a guest ended.
pub(super) struct Ended {
    /// The command's status; 124 if the guest took too long, 125 if it died.
    pub(super) status: u8,
    /// What the command wrote to both of its streams.
    pub(super) output: String,
}

/// Runs a shell script in a guest, from the folder it is started in here, with its output on ours.
pub(super) fn run(
    cache: &Path,
    kernel: &Kernel,
    initrd: &Path,
    options: &Options,
    script: &str,
) -> Result<Ended> {
    let told = Scratch::new(cache)?;
    let log = told.0.join("kernel.log");
    fs::write(told.0.join("config"), config(options))?;
    fs::write(told.0.join("command"), command(options, script)?)?;
    if !options.writable.is_empty() {
        let lines = options.writable.iter().map(|dir| format!("{}\n", dir.display()));
        fs::write(told.0.join("writable"), lines.collect::<String>())?;
    }
    if options.nvme > 0 {
        fs::File::create(told.0.join("nvme.img"))?.set_len(options.nvme)?;
    }
    if options.cxl > 0 {
        let device = Cmd::new(QEMU).args(["-device", "cxl-type3,help"]).quiet()?;
        if !device.output.contains("volatile-memdev") {
            return Err(format!("--cxl needs {QEMU} 8.1 or later").into());
        }
    }
    let arguments = machine(kernel, initrd, options, &told.0);
    // `timeout` ends the guest even where nobody is left here to do so; in the foreground, a terminal's interrupt does too.
    let mut child = Command::new("timeout")
        .args(["--foreground", "-k", "5", &options.timeout.to_string(), QEMU])
        .args(&arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(fs::File::create(told.0.join("qemu.err"))?)
        .spawn()?;
    let mut output = Vec::new();
    let mut stream = child.stdout.take().ok_or("the guest has no output")?;
    let mut chunk = [0; 8192];
    while let Ok(n @ 1..) = stream.read(&mut chunk) {
        output.extend_from_slice(&chunk[..n]);
        let mut ours = std::io::stdout();
        ours.write_all(&chunk[..n])?;
        ours.flush()?;
    }
    let took_too_long = child.wait()?.code() == Some(i32::from(TOO_LONG));
    if let Some(to) = &options.log {
        fs::copy(&log, to)?;
    }
    let told_status = fs::read_to_string(told.0.join("status")).ok().and_then(|s| s.trim().parse().ok());
    let status = match told_status {
        Some(status) => status,
        None if took_too_long => {
            eprintln!("the guest was still running after {} s", options.timeout);
            TOO_LONG
        }
        None => {
            let complaint = fs::read_to_string(told.0.join("qemu.err")).unwrap_or_default();
            let kernel = fs::read(&log).unwrap_or_default();
            let kernel = String::from_utf8_lossy(&kernel);
            let last: Vec<_> = kernel.lines().rev().take(40).collect();
            eprintln!("the guest died; {complaint}the last of its kernel's log:");
            last.iter().rev().for_each(|line| eprintln!("  {line}"));
            DIED
        }
    };
    Ok(Ended { status, output: String::from_utf8_lossy(&output).into_owned() })
}

/// What the init script reads.
fn config(options: &Options) -> String {
    let Options { rails, nvmet, nvme, cxl, pmem, huge_pages, .. } = options;
    format!("rails={rails} nvmet={nvmet} nvme={nvme} cxl={cxl} pmem={pmem} huge={huge_pages}\n")
}

/// What the guest's shell runs.
fn command(options: &Options, script: &str) -> Result<String> {
    let mut text = String::new();
    for variable in &options.variables {
        let (name, value) = variable.split_once('=').ok_or("a variable without a value")?;
        writeln!(text, "export {name}={}", quoted(value))?;
    }
    let folder = std::env::current_dir()?;
    writeln!(text, "cd {}\n{script}", quoted(&folder.to_string_lossy()))?;
    Ok(text)
}

/// The words of a command, for the shell.
pub(super) fn words(words: &[String]) -> String {
    let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
    format!("exec {}", words.join(" "))
}

/// One word of the shell that means itself.
pub(super) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The emulator's arguments.
fn machine(kernel: &Kernel, initrd: &Path, options: &Options, told: &Path) -> Vec<String> {
    let path = |p: &Path| p.display().to_string();
    let mut cpu = "max".to_owned();
    let mut board = "q35".to_owned();
    let mut boot = "console=ttyS0 quiet panic=-1 nokaslr mitigations=off tsc=reliable audit=0".to_owned();
    let mut devices: Vec<String> = Vec::new();
    let mut add = |option: &str, value: String| devices.extend([option.to_owned(), value]);
    let mut share = |path: &str, tag: &str, more: &str| {
        add("-fsdev", format!("local,id={tag},path={path},security_model=none,multidevs=remap{more}"));
        add("-device", format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"));
    };
    share("/", "host", ",readonly=on");
    share(&path(told), "told", "");
    for (number, dir) in options.writable.iter().enumerate() {
        share(&path(dir), &format!("share{number}"), "");
    }
    if options.cxl > 0 {
        // Under a hypervisor, Linux commits no region: it cannot be sure of the processors' caches.
        cpu.push_str(",hypervisor=off");
        board.push_str(",cxl=on,cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G");
        add("-object", format!("memory-backend-ram,id=cxlmem,size={},share=on", options.cxl));
        add("-device", "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1".to_owned());
        add("-device", "cxl-rp,port=0,bus=cxl.1,id=rp0,chassis=0,slot=2".to_owned());
        add("-device", "cxl-type3,bus=rp0,id=cxl0,volatile-memdev=cxlmem".to_owned());
    }
    if options.nvme > 0 {
        let image = path(&told.join("nvme.img"));
        add("-drive", format!("file={image},if=none,id=nvme,format=raw,cache=unsafe"));
        // On the first bus, or it lands behind the CXL bridge.
        add("-device", "nvme,bus=pcie.0,serial=testbed,drive=nvme".to_owned());
    }
    if options.pmem > 0 {
        boot.push_str(&format!(" memmap={}!1G", options.pmem));
    }
    if options.awake {
        boot.push_str(" idle=poll");
    }
    let text = |s: &str| s.to_owned();
    let mut arguments: Vec<String> =
        ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"].map(text).to_vec();
    arguments.extend(["-accel", "tcg,thread=multi", "-cpu"].map(text));
    arguments.extend([cpu, text("-machine"), board, text("-smp"), options.processors.to_string()]);
    // In bytes, not the usual MiB.
    arguments.extend([text("-m"), format!("{}B", options.memory)]);
    arguments.extend([text("-kernel"), path(&kernel.image), text("-initrd"), path(initrd)]);
    arguments.extend([text("-append"), boot]);
    // The command's output, as it is; the kernel has a line of its own.
    arguments.extend(["-chardev", "stdio,id=out,signal=on", "-device", "virtio-serial"].map(text));
    arguments
        .extend(["-device", "virtconsole,chardev=out", "-device", "virtio-rng-pci", "-serial"].map(text));
    arguments.push(format!("file:{}", path(&told.join("kernel.log"))));
    arguments.extend(devices);
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> Kernel {
        Kernel { version: "7".into(), image: "/k/vmlinuz".into(), root: "/k".into() }
    }

    fn machine_with(options: &Options) -> String {
        machine(&kernel(), Path::new("/i"), options, Path::new("/t")).join(" ")
    }

    #[test]
    fn words_mean_themselves() {
        assert_eq!(words(&["a b".into(), "it's".into(), "$x".into()]), r"exec 'a b' 'it'\''s' '$x'");
    }

    #[test]
    fn only_cxl_hides_the_hypervisor() {
        assert!(!machine_with(&Options::default()).contains("hypervisor=off"));
        let cxl = machine_with(&Options { cxl: 256 << 20, ..Options::default() });
        assert!(cxl.contains("-cpu max,hypervisor=off") && cxl.contains("size=268435456,share=on"), "{cxl}");
    }

    #[test]
    fn the_hosts_files_are_read_only_and_others_are_not() {
        let options = Options { writable: vec!["/out".into()], ..Options::default() };
        let all = machine_with(&options);
        assert!(all.contains("id=host,path=/,security_model=none,multidevs=remap,readonly=on"), "{all}");
        assert!(all.contains("id=share0,path=/out,security_model=none,multidevs=remap -device"), "{all}");
    }

    #[test]
    fn the_script_has_its_variables_and_its_folder() {
        let options = Options { variables: vec!["A=b c".into()], ..Options::default() };
        let text = command(&options, "exec 'true'").unwrap();
        assert!(text.starts_with("export A='b c'\ncd '/"), "{text}");
        assert!(text.ends_with("exec 'true'\n"), "{text}");
    }
}
