//! The target: a listener, one thread that watches idle connections, and as many serving threads as there are
//! connections with work, so that a stalled peer delays nobody.

mod list;
mod listen;
mod native;
mod poller;
mod pool;
mod serve;
mod table;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::EventfdFlags;
use te_memory::{Region, RegionTable};
use te_segment::Incarnation;
use te_transport::{Admission, Context, Threads};

use self::table::Table;
use crate::config::TcpConfig;
use crate::counters::Counters;

pub(crate) use self::listen::{scoped, with_port};

/// Called by the watching thread about once a second.
pub(crate) type Chore = Box<dyn Fn() + Send>;

/// What the threads of a target share.
struct Shared {
    /// This life.
    incarnation: Incarnation,
    regions: RegionTable,
    admission: Arc<dyn Admission>,
    config: Arc<TcpConfig>,
    counters: Arc<Counters>,
    threads: Arc<Threads>,
    table: Mutex<Table>,
    /// A connection is ready or the target stops.
    work: Condvar,
    /// A lent connection came back.
    returned: Condvar,
    epoll: OwnedFd,
    wake: OwnedFd,
    stopping: AtomicBool,
    /// Threads with connections, kept out of the lock for [`Shared::may_linger`].
    busy: std::sync::atomic::AtomicUsize,
}

/// With more busy threads than this, they give up their connections as soon as no header is there.
const LINGERING: usize = 256;

impl Shared {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Whether a thread may wait a tick for the next header instead of giving its connection up.
    fn may_linger(&self) -> bool {
        self.busy.load(Ordering::Relaxed) <= LINGERING
    }
}

/// A running target.
pub(crate) struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl Server {
    /// Starts to listen and to accept.
    pub(crate) fn start(
        context: &Context,
        config: Arc<TcpConfig>,
        counters: Arc<Counters>,
        threads: Arc<Threads>,
        chore: Chore,
    ) -> Result<Self, String> {
        let bits = context.incarnation.bits();
        // Any spread will do; another life starts elsewhere in the range.
        #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
        let seed = (bits as u64 ^ (bits >> 64) as u64) >> 1;
        let (listener, address) = listen::listen(&context.bind, context.ports, seed)?;
        let failed = |error: rustix::io::Errno| format!("cannot watch connections: {error}");
        let epoll =
            rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let wake =
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        let shared = Arc::new(Shared {
            incarnation: context.incarnation,
            regions: context.regions.clone(),
            admission: context.admission.clone(),
            config,
            counters,
            threads: threads.clone(),
            table: Mutex::default(),
            work: Condvar::new(),
            returned: Condvar::new(),
            epoll,
            wake,
            stopping: AtomicBool::new(false),
            busy: std::sync::atomic::AtomicUsize::new(0),
        });
        let watch = poller::Poller::new(shared.clone(), listener, chore).map_err(failed)?;
        threads
            .spawn("watch", move || watch.run())
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self { shared, address })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections open now.
    pub(crate) fn connections(&self) -> usize {
        self.shared.table.lock().len()
    }

    /// Ends the requests that still use the region, which must be blocked, and waits shortly for their end.
    pub(crate) fn withdraw(&self, region: &Region) -> Result<(), usize> {
        let range = region.range();
        let end = Instant::now() + Duration::from_millis(500);
        let mut table = self.shared.table.lock();
        loop {
            let using = table.interrupt_within(&range);
            if using == 0 {
                return Ok(());
            }
            // Threads clear their mark without a signal; connections that end do signal.
            let next = (Instant::now() + Duration::from_millis(5)).min(end);
            if self.shared.returned.wait_until(&mut table, next).timed_out() && Instant::now() >= end {
                return Err(using);
            }
        }
    }

    /// Closes the native connections that one life of a peer has now, and waits until none of them is served any more.
    ///
    /// # Errors
    ///
    /// How many still are at the deadline.
    pub(crate) fn fence(&self, life: Incarnation, deadline: Instant) -> Result<(), usize> {
        let mut table = self.shared.table.lock();
        let mut ids = table.of_life(life);
        loop {
            // An interrupted connection may be given back before its thread has noticed, so it is looked for again.
            let parked = table.cut(&mut ids);
            if !parked.is_empty() {
                MutexGuard::unlocked(&mut table, || drop(parked));
            }
            if ids.is_empty() {
                return Ok(());
            }
            if self.shared.returned.wait_until(&mut table, deadline).timed_out() {
                drop(table.cut(&mut ids));
                return if ids.is_empty() { Ok(()) } else { Err(ids.len()) };
            }
        }
    }

    /// Stops accepting, closes what is idle and lets requests in progress end until `grace`. Does not wait.
    pub(crate) fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        // Fails only if the counter is full, and then the thread is awake.
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
        let mut table = self.shared.table.lock();
        let waiting = table.take_waiting();
        table.interrupt_lent(false);
        drop(table);
        self.shared.work.notify_all();
        drop(waiting);
    }

    /// Cuts the requests in progress.
    pub(crate) fn cut(&self) {
        self.shared.table.lock().interrupt_lent(true);
    }

    /// Waits until no request is in progress.
    pub(crate) fn wait_idle(&self, until: Instant) {
        let mut table = self.shared.table.lock();
        while table.len() > 0 {
            if self.shared.returned.wait_until(&mut table, until).timed_out() {
                return;
            }
        }
    }
}
