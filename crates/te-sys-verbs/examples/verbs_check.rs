//! Is RDMA usable here? Opens every device, connects two queue pairs of each active one with each other, and moves bytes
//! through them: 16 writes of 64 KiB posted at once, one completion told by the channel, bytes compared; then a wrong key, which has to
//! be refused. Prints a line for each check, and fails if one fails or if no device is active.
//!
//! `cargo run -p te-sys-verbs --example verbs_check [DEVICE..]`; with names, only these are used and each has to be there.
//! With `--event DEVICE KIND`, it waits for the device to tell of that, and does nothing else; with `--hold DEVICE`, it makes
//! one of everything and keeps that until it is killed.

use std::cell::UnsafeCell;
use std::error::Error;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process::ExitCode;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use te_sys_verbs::{
    Access, Completion, CompletionQueue, Context, Flags, Gid, Local, MemoryRegion, Mtu, PairSize, Path,
    ProtectionDomain, QueuePair, QueueSize, Remote, Status, ToInit, ToReceive, ToSend, Verb, Verbs, WorkList,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const WRITES: usize = 16;
const WRITE: usize = 64 << 10;
/// Emulated devices on a busy host are slow. Longer is a failure.
const LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let mut failed = false;
    let mut report = |name: String, result: Result<String>| match result {
        Ok(found) => println!("ok {name}: {found}"),
        Err(error) => {
            println!("not ok {name}: {error}");
            failed = true;
        }
    };
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--event", device, kind] => {
            report(format!("{device} event"), event(device, kind));
            return if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
        ["--hold", device] => {
            report(format!("{device} held"), hold(device));
            return ExitCode::FAILURE;
        }
        _ => {}
    }
    match check(&arguments, &mut report) {
        Ok(0) => report("devices".to_owned(), Err("none has an active port with an address".into())),
        Ok(count) => report("devices".to_owned(), Ok(format!("{count} checked"))),
        Err(error) => report("devices".to_owned(), Err(error)),
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn check(wanted: &[String], report: &mut impl FnMut(String, Result<String>)) -> Result<usize> {
    let verbs = Verbs::load()?;
    verbs.fork_init()?;
    let mut names: Vec<_> = verbs.devices()?.iter().map(|device| device.name().to_owned()).collect();
    if !wanted.is_empty() {
        names = wanted.to_vec();
    }
    let mut checked = 0;
    for name in names {
        let context = verbs.open(&name)?;
        let Some((index, gid)) = usable(&context)? else {
            if !wanted.is_empty() {
                report(format!("{name} port"), Err("not active, or without a usable address".into()));
            }
            continue;
        };
        let port = context.port(1)?;
        let mtu = port.active_mtu.map_or_else(|| "unknown".to_owned(), |mtu| mtu.to_string());
        report(format!("{name} port"), Ok(format!("active, mtu {mtu}, gid {index} {gid}")));
        report(format!("{name} writes"), writes(&context, index, gid));
        report(format!("{name} wrong key"), wrong_key(&context, index, gid));
        report(format!("{name} memory that is not there"), not_mapped(&context));
        checked += 1;
    }
    report(
        "handles".to_owned(),
        match verbs.undestroyed() {
            0 => Ok("all destroyed".to_owned()),
            count => Err(format!("{count} could not be destroyed").into()),
        },
    );
    Ok(checked)
}

/// Waits for an event of this kind.
fn event(device: &str, kind: &str) -> Result<String> {
    let context = Verbs::load()?.open(device)?;
    println!("waiting");
    let end = Instant::now() + LIMIT;
    loop {
        while let Some(event) = context.next_event()? {
            if event.kind.to_string() == kind {
                return Ok(format!("{event:?}"));
            }
        }
        readable(context.event_fd(), end.saturating_duration_since(Instant::now()))?;
    }
}

/// Makes one of everything, and does not go by itself.
fn hold(device: &str) -> Result<String> {
    let context = Verbs::load()?.open(device)?;
    let (index, gid) = usable(&context)?.ok_or("no usable address")?;
    let end = End::open(&context, index, gid)?;
    let _area = Area::register(&end.domain, |_| 1)?;
    println!("waiting");
    loop {
        std::thread::park();
    }
}

/// Waits until a descriptor has something.
fn readable(fd: BorrowedFd<'_>, limit: Duration) -> Result<()> {
    let mut wanted = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, which is open.
    match unsafe { libc::poll(&raw mut wanted, 1, i32::try_from(limit.as_millis())?) } {
        1 => Ok(()),
        _ => Err(format!("nothing was told for {} s", LIMIT.as_secs()).into()),
    }
}

/// The address to use: of IPv4 if there is one. In shared mode a device of another network namespace has none.
fn usable(context: &Context) -> Result<Option<(u8, Gid)>> {
    let port = context.port(1)?;
    if !port.active {
        return Ok(None);
    }
    let entries = (0..u8::try_from(port.gids.min(255))?).filter_map(|index| context.gid_entry(1, index).ok());
    let found: Vec<_> = entries.filter(|entry| !entry.gid.is_null() && entry.interface.is_some()).collect();
    let best = found.iter().find(|entry| entry.gid.is_ipv4()).or_else(|| found.first());
    Ok(best.map(|entry| (entry.index, entry.gid)))
}

fn writes(context: &Context, index: u8, gid: Gid) -> Result<String> {
    let end = End::open(context, index, gid)?;
    let from = Area::register(&end.domain, |at| (at * 31 + (at >> 8)) as u8)?;
    let to = Area::register(&end.domain, |_| 0)?;
    let mut list = WorkList::with_capacity(WRITES);
    for id in 0..WRITES {
        let offset = (id * WRITE) as u64;
        let local = Local {
            address: from.region.address() + offset,
            len: u32::try_from(WRITE)?,
            lkey: from.region.lkey(),
        };
        let remote = Remote { address: to.region.address() + offset, rkey: to.region.rkey() };
        let flags = if id + 1 == WRITES { Flags::SIGNALLED } else { Flags::default() };
        list.push(id as u64, Verb::Write(remote), &[local], flags);
    }
    end.queue.arm(false)?;
    let begun = Instant::now();
    end.pair.post(&mut list)?;
    let done = end.completion()?;
    let took = begun.elapsed();
    if (done.id(), done.status()) != (WRITES as u64 - 1, Status::SUCCESS) {
        return Err(format!("the completion is {done:?}").into());
    }
    if from.bytes() != to.bytes() {
        return Err("the bytes differ".into());
    }
    from.region.deregister()?;
    Ok(format!("{WRITES} of {WRITE} bytes, one completion after {} ms", took.as_millis()))
}

fn wrong_key(context: &Context, index: u8, gid: Gid) -> Result<String> {
    let end = End::open(context, index, gid)?;
    let (from, to) = (Area::register(&end.domain, |_| 1)?, Area::register(&end.domain, |_| 0)?);
    let local = Local { address: from.region.address(), len: 4096, lkey: from.region.lkey() };
    let remote = Remote { address: to.region.address(), rkey: to.region.rkey() ^ 0x5a00 };
    let mut list = WorkList::default();
    list.push(7, Verb::Write(remote), &[local], Flags::SIGNALLED);
    end.queue.arm(false)?;
    end.pair.post(&mut list)?;
    let done = end.completion()?;
    if done.status() != Status::REM_ACCESS_ERR {
        return Err(format!("the completion is {done:?}").into());
    }
    if to.bytes().iter().any(|byte| *byte != 0) {
        return Err("bytes were written".into());
    }
    Ok("refused, nothing written".to_owned())
}

/// A registration of memory that is not there has to fail, with words.
fn not_mapped(context: &Context) -> Result<String> {
    let domain = context.protection_domain()?;
    let hole = NonNull::new(std::ptr::without_provenance_mut::<u8>(1 << 20)).ok_or("no address")?;
    // SAFETY: there is no memory at the address, so nobody relies on it.
    match unsafe { domain.register(hole, 1 << 20, Access::LOCAL_WRITE, None) } {
        Err(error) if error.hint().is_some() => Ok(error.to_string()),
        Err(error) => Err(format!("no hint: {error}").into()),
        Ok(_) => Err("memory that is not mapped was registered".into()),
    }
}

/// A queue pair to post to, and what it needs.
struct End {
    pair: QueuePair,
    /// Its peer. Not itself, or a request that is refused would be flushed instead.
    _peer: QueuePair,
    queue: CompletionQueue,
    domain: ProtectionDomain,
}

impl End {
    fn open(context: &Context, gid_index: u8, gid: Gid) -> Result<Self> {
        let channel = context.completion_channel()?;
        let queue = context.completion_queue(QueueSize { entries: 64, vector: 0 }, Some(&channel), 42)?;
        let domain = context.protection_domain()?;
        let size = PairSize { requests: 32, receives: 0, ranges: 1, inline: 0 };
        let pair = domain.queue_pair(size, &queue, &queue, 43)?;
        let peer = domain.queue_pair(size, &queue, &queue, 44)?;
        let port = context.port(1)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let path = Path {
            gid,
            lid: port.lid,
            gid_index,
            port: 1,
            hop_limit: 16,
            traffic_class: 0,
            service_level: 0,
            global: true,
        };
        let mtu = port.active_mtu.unwrap_or(Mtu::B1024);
        for (own, peer) in [(&pair, peer.number()), (&peer, pair.number())] {
            own.to_init(&ToInit { port: 1, pkey_index: 0, access })?;
            own.to_receive(&ToReceive { path, mtu, peer, first_packet: 0, reads: 1, min_rnr_timer: 12 })?;
            own.to_send(&ToSend { timeout: 14, retries: 7, rnr_retries: 7, first_packet: 0, reads: 1 })?;
        }
        Ok(Self { pair, _peer: peer, queue, domain })
    }

    /// The one completion, after the channel has told of it.
    fn completion(&self) -> Result<Completion> {
        let channel = self.queue.channel().ok_or("the queue has no channel")?;
        readable(channel.fd(), LIMIT)?;
        if channel.next()? != Some(42) {
            return Err("the channel told of another queue".into());
        }
        let mut room = [Completion::default(); 4];
        match self.queue.poll(&mut room)? {
            [one] => Ok(*one),
            other => Err(format!("completions: {other:?}").into()),
        }
    }
}

/// Bytes that a device reads and writes.
struct Memory(Box<[UnsafeCell<u8>]>);

// SAFETY: bytes are read when nothing is under way, by one thread.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

struct Area {
    memory: Arc<Memory>,
    region: MemoryRegion,
}

impl Area {
    fn register(domain: &ProtectionDomain, byte: impl Fn(usize) -> u8) -> Result<Self> {
        let memory = Arc::new(Memory((0..WRITES * WRITE).map(|at| UnsafeCell::new(byte(at))).collect()));
        let start = NonNull::from(&*memory.0).cast();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::RELAXED_ORDERING;
        let keep = Box::new(Arc::clone(&memory));
        // SAFETY: the memory is in cells, and lives while the region's share of it does.
        let region = unsafe { domain.register(start, memory.0.len(), access, Some(keep)) }?;
        Ok(Self { memory, region })
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: nothing is under way.
        self.memory.0.iter().map(|cell| unsafe { *cell.get() }).collect()
    }
}
