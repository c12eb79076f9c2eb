//! The target: lets peers of this host use registered buffers, and takes them back.

mod attach;
mod connection;
mod listen;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand::TryRng;
use rand::rngs::SysRng;
use te_memory::{Region, RegionTable};
use te_segment::Incarnation;
use te_transport::{Context, Threads};

use crate::config::ShmConfig;
use crate::counters::Counters;
use crate::socket::{Bell, Listener};
use connection::Connection;

/// What the threads of the target share.
struct Shared {
    incarnation: Incarnation,
    regions: RegionTable,
    config: Arc<ShmConfig>,
    counters: Arc<Counters>,
    threads: Arc<Threads>,
    stopping: AtomicBool,
    /// Rings once, at the end, and is never silenced.
    bell: Bell,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    /// Connections that have not proven anything yet.
    strangers: usize,
    greeted: HashMap<u64, Arc<Connection>>,
}

impl Shared {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn connections(&self) -> Vec<Arc<Connection>> {
        self.open.lock().greeted.values().cloned().collect()
    }
}

/// The running target.
pub(crate) struct Server {
    shared: Arc<Shared>,
    name: String,
}

impl Server {
    /// Listens under a new name that nobody can guess.
    pub(crate) fn start(
        context: &Context,
        config: Arc<ShmConfig>,
        counters: Arc<Counters>,
        threads: Arc<Threads>,
    ) -> io::Result<Self> {
        // Not of the thread's random numbers, which a fork leaves in the same place on both sides.
        let mut random = [0; size_of::<u128>()];
        SysRng.try_fill_bytes(&mut random).map_err(io::Error::other)?;
        let name = format!("te-{:032x}", u128::from_ne_bytes(random));
        let listener = Listener::bind(&name)?;
        let shared = Arc::new(Shared {
            incarnation: context.incarnation,
            regions: context.regions.clone(),
            config,
            counters,
            threads: threads.clone(),
            stopping: AtomicBool::new(false),
            bell: Bell::new()?,
            open: Mutex::default(),
        });
        let accepting = shared.clone();
        threads.spawn("accept", move || listen::accept(&accepting, &listener))?;
        Ok(Self { shared, name })
    }

    /// Name of the socket.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Connections that are greeted and open.
    pub(crate) fn connections(&self) -> usize {
        self.shared.open.lock().greeted.len()
    }

    /// Takes a region back from all peers: when this returns, none copies it any more.
    pub(crate) fn withdraw(&self, region: &Region) -> Result<(), String> {
        let generation = region.generation().value();
        let using: Vec<_> = self
            .shared
            .connections()
            .into_iter()
            .filter_map(|connection| {
                let buffer = connection.revoke(generation)?;
                Some((connection, Some((generation, buffer))))
            })
            .collect();
        wait_quiet(&using, Instant::now() + self.shared.config.withdraw_timeout)
    }

    /// Cuts off one life of a peer.
    pub(crate) fn fence(&self, peer: Incarnation, deadline: Instant) -> Result<(), String> {
        let mut of_peer = self.shared.connections();
        of_peer.retain(|connection| connection.peer() == peer);
        of_peer.iter().for_each(|connection| connection.revoke_all());
        let all: Vec<_> = of_peer.into_iter().map(|connection| (connection, None)).collect();
        wait_quiet(&all, deadline)?;
        all.iter().for_each(|(connection, _)| connection.cut());
        Ok(())
    }

    /// Accepts nobody any more and revokes everything; waits for nothing.
    pub(crate) fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.connections().iter().for_each(|connection| connection.revoke_all());
        self.shared.bell.ring();
    }

    /// Waits until no peer copies anything any more, after [`stop`](Self::stop).
    pub(crate) fn wait_idle(&self, deadline: Instant) -> Result<(), String> {
        let all: Vec<_> =
            self.shared.connections().into_iter().map(|connection| (connection, None)).collect();
        wait_quiet(&all, deadline)
    }
}

/// A connection, and the buffer in it that matters, if not all.
type Using = (Arc<Connection>, Option<(u64, u32)>);

/// Waits until none of them copies; names those that still do at the deadline.
fn wait_quiet(using: &[Using], deadline: Instant) -> Result<(), String> {
    // A piece takes a few hundred microseconds; a stopped process takes as long as it is stopped.
    let mut pause = Duration::from_micros(20);
    loop {
        let copying: Vec<_> = using
            .iter()
            .filter(|(connection, buffer)| connection.is_copying(*buffer))
            .map(|(connection, _)| connection.to_string())
            .collect();
        if copying.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(format!("still being copied by {}", copying.join(", ")));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}
