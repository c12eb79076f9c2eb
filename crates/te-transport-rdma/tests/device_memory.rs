//! Memory of devices: by its address where the NICs reach it so, else by one export for all of them, else not, with the reason.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]
#![allow(unsafe_code, reason = "handing memory of a device over promises what it is")]

mod devices;

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use devices::{Batch, Bench, Peer, config, expect, fill};
use te_memory::{DeviceMemory, DmaBuf, Export, Memory, Refusal, Region, Reservation};
use te_segment::{Access, AddressRange, DeviceKind, Location};
use te_sys_verbs::Call;
use te_sys_verbs::fake::Fault;
use te_testkit::pattern;
use te_transport::{Op, Registration, Transport};

const NICS: [&str; 8] = ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7"];
const MIB: u64 = 1 << 20;
/// Where the allocation begins: no address of a process.
const ALLOCATION: u64 = 0x7fff_0000_0000_0000;
/// Where it begins in what is exported: vendors export more than what was allocated.
const BEFORE: u64 = 3 * MIB + 4096;
const LEN: u64 = 16 * MIB;

/// An allocation on a device, of which each export is counted.
struct Device {
    file: File,
    name: String,
    exports: AtomicUsize,
    refusal: Option<&'static str>,
    /// Bytes that an export lacks.
    short: u64,
}

impl Device {
    fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let name = format!("te-device-{}", LAST.fetch_add(1, Ordering::Relaxed));
        let text = CString::new(name.clone()).unwrap();
        // SAFETY: the name ends with a zero.
        let fd = unsafe { libc::memfd_create(text.as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: just made, and nobody else's.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(BEFORE + LEN + MIB).unwrap();
        Self { file, name, exports: AtomicUsize::new(0), refusal: None, short: 0 }
    }

    fn exports(&self) -> usize {
        self.exports.load(Ordering::SeqCst)
    }

    /// Descriptors of it in this process, beside those that the device and the fabric have.
    fn open(&self) -> usize {
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        let ours =
            |link: std::path::PathBuf| link.to_string_lossy().contains(&format!("memfd:{} ", self.name));
        let links = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        links.filter(|link| ours(link.clone())).count() - 2
    }

    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, BEFORE + at).unwrap();
        bytes
    }

    fn memory(self: &Arc<Self>, at: u64, len: u64, exportable: bool) -> Memory {
        let device = DeviceMemory::new(DeviceKind::Cuda, 1);
        let device = if exportable { device.exported_by(self.clone()) } else { device };
        let len = usize::try_from(len).unwrap();
        // SAFETY: nothing else has these addresses, the file is the memory, and no test relies on its bytes.
        unsafe { Memory::from_device(ALLOCATION + at, len, device, Box::new(self.clone())) }
    }
}

impl Export for Device {
    fn export(&self, range: AddressRange) -> Result<DmaBuf, String> {
        self.exports.fetch_add(1, Ordering::SeqCst);
        if let Some(refusal) = self.refusal {
            return Err(refusal.to_owned());
        }
        let fd = OwnedFd::from(self.file.try_clone().unwrap());
        let offset = BEFORE + (range.start() - ALLOCATION);
        Ok(DmaBuf { fd, offset, len: range.len() - self.short })
    }
}

/// A fabric that knows of the device, and an engine on it whose regions have parts of 1 MiB.
fn bench(device: &Device, nics: &[&str], by_address: bool) -> (Bench, Peer) {
    let bench = Bench::new(&[nics, &["b0"]].concat());
    // What the fabric reaches by address begins with the allocation.
    let file = device.file.try_clone().unwrap();
    bench.fabric.place_device(ALLOCATION - BEFORE, BEFORE + LEN, file.into(), by_address);
    let peer = bench.peer(1, nics, config(&[("max_mr_size", "1048576")]));
    (bench, peer)
}

fn reserve(peer: &Peer, memory: Memory) -> Reservation {
    peer.context.regions.reserve(memory, Access::REMOTE, Location::Any).unwrap()
}

fn registered(peer: &Peer, memory: Memory) -> Region {
    let reservation = reserve(peer, memory);
    let registered = peer.transport.register(reservation.region()).unwrap();
    assert!(matches!(registered, Registration::Registered(_)), "{registered:?}");
    reservation.commit()
}

fn refused(peer: &Peer, memory: Memory) -> String {
    let reservation = reserve(peer, memory);
    match peer.transport.register(reservation.region()).unwrap() {
        Registration::NotMine(reason) => reason,
        other => panic!("{other:?}"),
    }
}

/// Calls of a kind that were made since the last time, and how many of them succeeded.
fn calls(bench: &Bench, call: Call) -> (usize, usize) {
    let records = bench.fabric.take_records();
    let of = || records.iter().filter(|record| record.call == call);
    (of().count(), of().filter(|record| record.errno == 0).count())
}

/// MR-15: eight NICs and four parts import one export, which is closed then.
#[test]
fn one_export_serves_all_nics_and_parts() {
    let device = Arc::new(Device::new());
    let (bench, a) = bench(&device, &NICS, false);
    let _ = bench.fabric.take_records();
    let before = bench.fabric.live();
    let region = registered(&a, device.memory(MIB, 4 * MIB, true));
    assert_eq!((device.exports(), device.open()), (1, 0));
    assert_eq!(calls(&bench, Call::RegDmabufMr), (32, 32));
    assert_eq!(bench.fabric.live().regions, before.regions + 32);
    assert_eq!(region.location(), &Location::device(DeviceKind::Cuda, 1));
    let _ = a.withdraw(&region);
    assert_eq!(bench.fabric.live(), before);
}

/// MR-15, MR-14: whichever NIC fails to import, the export is closed and nothing of the region stays.
#[test]
fn an_import_that_fails_closes_the_export_and_leaves_nothing() {
    let device = Arc::new(Device::new());
    let (bench, a) = bench(&device, &NICS, false);
    let before = bench.fabric.live();
    for (at, nic) in (0..).zip(NICS) {
        for (errno, part) in [(libc::ENOMEM, 0), (libc::EINVAL, 3)] {
            let fault = Fault::new(Call::RegDmabufMr, errno).on(nic).after(part).times(1);
            bench.fabric.fail(fault);
            let reservation = reserve(&a, device.memory(0, 4 * MIB, true));
            let error = a.transport.register(reservation.region()).unwrap_err();
            assert!(error.to_string().contains(nic), "{error}");
            assert_eq!(error.retryable, errno == libc::ENOMEM);
            assert_eq!((bench.fabric.live(), device.open()), (before, 0), "{nic}");
            bench.fabric.heal();
        }
        bench.fabric.fail(Fault::new(Call::RegDmabufMr, libc::EOPNOTSUPP).on(nic));
        let reason = refused(&a, device.memory(0, 4 * MIB, true));
        assert!(reason.contains(&format!("{nic} cannot import its dma-buf")), "{reason}");
        assert_eq!((bench.fabric.live(), device.open()), (before, 0), "{nic}");
        bench.fabric.heal();
        assert_eq!(device.exports(), 3 * (at + 1));
    }
    let region = registered(&a, device.memory(0, 4 * MIB, true));
    let _ = a.withdraw(&region);
    assert_eq!(bench.fabric.live(), before);
}

/// MR-01: by its address first, which needs no export.
#[test]
fn memory_that_the_nics_reach_by_its_address_is_not_exported() {
    let device = Arc::new(Device::new());
    let (bench, a) = bench(&device, &NICS, true);
    let _ = bench.fabric.take_records();
    let region = registered(&a, device.memory(0, 2 * MIB, true));
    assert_eq!((device.exports(), device.open()), (0, 0));
    assert_eq!(calls(&bench, Call::RegMr), (16, 16));
    // MR-04: where one NIC refuses it, however it says so, that one imports it.
    for errno in [libc::EFAULT, libc::EINVAL] {
        bench.fabric.fail(Fault::new(Call::RegMr, errno).on("a5"));
        let other = registered(&a, device.memory(4 * MIB, 2 * MIB, true));
        assert_eq!(calls(&bench, Call::RegDmabufMr), (2, 2), "{errno}");
        let _ = a.withdraw(&other);
        bench.fabric.heal();
    }
    assert_eq!(device.exports(), 2);
    let _ = a.withdraw(&region);
}

/// MR-01: what no NIC is to touch is reported with everything that was tried and why it failed.
#[test]
fn memory_that_no_nic_reaches_is_reported_with_what_was_tried() {
    let by_address = "a0 cannot register it by address: error 14: the memory is not mapped, or the NIC cannot reach it by its \
                      address";
    let refuses = Device { refusal: Some("cuda error 801: not supported"), ..Device::new() };
    let short = Device { short: 1, ..Device::new() };
    let table = [
        (Device::new(), false, "nobody who can export it was named with it"),
        (refuses, true, "cuda error 801: not supported"),
        (short, true, "for a range of 2097152"),
    ];
    for (device, exportable, why) in table {
        let device = Arc::new(device);
        let (bench, a) = bench(&device, &["a0"], false);
        let before = bench.fabric.live();
        let reason = refused(&a, device.memory(0, 2 * MIB, exportable));
        assert!(reason.contains(by_address), "{reason}");
        assert!(reason.contains("it cannot be exported as a dma-buf: ") && reason.contains(why), "{reason}");
        assert_eq!((bench.fabric.live(), device.open()), (before, 0));
    }
}

/// Memory that is only said to be a device's is tried like such memory.
#[test]
fn memory_with_a_device_as_its_location_is_tried_by_its_address() {
    let device = Arc::new(Device::new());
    let (bench, a) = bench(&device, &["a0"], false);
    let stated = Location::device(DeviceKind::Cuda, 0);
    for reached in [true, false] {
        if !reached {
            bench.fabric.fail(Fault::new(Call::RegMr, libc::EFAULT).on("a0"));
        }
        let memory = Memory::allocate(4096).unwrap();
        let reservation = a.context.regions.reserve(memory, Access::LOCAL, stated.clone()).unwrap();
        match a.transport.register(reservation.region()).unwrap() {
            Registration::Registered(_) => assert!(reached),
            Registration::NotMine(reason) => assert!(!reached && reason.contains("nobody"), "{reason}"),
            other => panic!("{other:?}"),
        }
        let _ = a.transport.unregister(reservation.region());
    }
}

/// MR-02, MR-03: the right bytes of the allocation are read and written by peers, whichever part they lie in, and those beside
/// them are untouched. The device is on either side.
#[test]
fn peers_reach_the_bytes_of_the_range_and_no_others() {
    for by_address in [true, false] {
        let device = Arc::new(Device::new());
        let (bench, a) = bench(&device, &["a0", "a1"], by_address);
        let b = bench.peer(2, &["b0"], config(&[]));
        let host = b.offered(3 << 20);
        let mut seed = 0;
        for at in [1, 3, 9] {
            let at = at * MIB + 8192;
            device.file.write_all_at(&vec![0xee; 19 << 20], 0).unwrap();
            let region = registered(&a, device.memory(at, 3 * MIB, true));
            assert_eq!(region.read_at(0, &mut [0; 8]), Err(Refusal::DeviceMemory));
            let (forth, back) = (b.path_to(&a), a.path_to(&b));
            let (near, far) = (usize::try_from(at).unwrap(), 3 << 20);
            for (path, op, local, remote, to_device) in [
                (&forth, Op::Write, &host, &region, true),
                (&forth, Op::Read, &host, &region, false),
                (&back, Op::Write, &region, &host, false),
                (&back, Op::Read, &region, &host, true),
            ] {
                seed += 1;
                if to_device {
                    fill(&host, seed);
                } else {
                    device.file.write_all_at(&pattern(seed, far), BEFORE + at).unwrap();
                    host.fill(0).unwrap();
                }
                Batch::new(op, local, remote, 1).done(&**path);
                expect(&host, seed);
                assert!(device.bytes(at, far) == pattern(seed, far), "{op} {at}");
                assert!(device.bytes(0, near).iter().all(|byte| *byte == 0xee), "{op} {at}");
                assert!(device.bytes(at + 3 * MIB, 4096).iter().all(|byte| *byte == 0xee), "{op} {at}");
            }
            let _ = a.withdraw(&region);
        }
    }
}
