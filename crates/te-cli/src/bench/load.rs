//! Work for a while on several threads, counted and timed.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use te::{Buffer, RemoteRange, blocking::Engine};

use super::limit::{self, Reading, Seen};
use super::meter::{Meter, Used};
use super::raw::RawClient;
use crate::failure::{Failure, Result};
use crate::latency::Latencies;
use crate::size::index;

/// The shape of the work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) write: bool,
    pub(crate) block: u64,
    pub(crate) batch: u64,
    pub(crate) threads: u64,
    /// Working set of one thread: a whole number of batches.
    pub(crate) area: u64,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = if self.write { "write" } else { "read" };
        write!(f, "{op} {} x {}", te_engine::size::bytes(self.block), self.batch)
    }
}

impl Shape {
    /// Offsets of the batches of a thread's working set, over and over.
    fn offsets(self) -> impl Iterator<Item = u64> {
        let step = self.block * self.batch;
        (0..self.area / step).map(move |i| i * step).cycle()
    }
}

/// What was done.
pub(crate) struct Sample {
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
    /// Microseconds per batch.
    pub(crate) latencies: Latencies,
    /// What both sides used.
    pub(crate) used: Option<Used>,
    /// What of this host was used up.
    pub(super) seen: Seen,
}

/// A thread's work: one batch from an offset of its working set on.
type Work<'a> = Box<dyn FnMut(u64) -> Result<()> + Send + 'a>;

/// Runs every thread's work until `duration` is over, from a common start to the last end.
fn measure(shape: Shape, duration: Duration, work: Vec<Work<'_>>, meter: Option<&Meter>) -> Result<Sample> {
    // Before the meter: looking around this host is no part of the work.
    let idle = Reading::take();
    let before = meter.and_then(Meter::used);
    let start = Barrier::new(work.len() + 1);
    let outcomes: Vec<Result<(u64, Latencies, Option<f64>)>> = Vec::with_capacity(work.len());
    let (outcomes, time) = thread::scope(|scope| {
        let mut outcomes = outcomes;
        let threads: Vec<_> = work
            .into_iter()
            .map(|mut work| {
                let start = &start;
                scope.spawn(move || {
                    let mut latencies = Latencies::new()?;
                    let mut batches = 0_u64;
                    start.wait();
                    let (begun, ran) = (Instant::now(), limit::own_time());
                    let end = begun + duration;
                    for offset in shape.offsets() {
                        let began = Instant::now();
                        if began >= end {
                            break;
                        }
                        work(offset)?;
                        batches += 1;
                        latencies.record(began.elapsed());
                    }
                    let ran = limit::own_time().zip(ran).map(|(after, before)| after.saturating_sub(before));
                    let share = ran.map(|ran| ran.as_secs_f64() / begun.elapsed().as_secs_f64());
                    Ok((batches, latencies, share))
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        for thread in threads {
            let ended = thread.join().unwrap_or_else(|_| Err(Failure::Other("a thread panicked".to_owned())));
            outcomes.push(ended);
        }
        (outcomes, began.elapsed())
    });
    let used = meter.and_then(Meter::used).zip(before).map(|(after, before)| after.since(before));
    let busy = Reading::take();
    let mut sample = Sample { bytes: 0, time, latencies: Latencies::new()?, used, seen: Seen::default() };
    let mut shares = Vec::new();
    for outcome in outcomes {
        let (batches, latencies, share) = outcome?;
        sample.bytes += batches * shape.block * shape.batch;
        sample.latencies.add(&latencies)?;
        shares.extend(share);
    }
    sample.seen = busy.since(&idle, sample.bytes, time);
    // They are gone by the second reading.
    shares.into_iter().for_each(|share| sample.seen.ended("of the bench", share));
    Ok(sample)
}

/// The engine under load.
pub(crate) struct Load<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) local: &'a Buffer,
    pub(crate) remote: &'a RemoteRange,
    pub(crate) shape: Shape,
    pub(crate) meter: Option<&'a Meter>,
}

impl Load<'_> {
    /// Batches through the engine, each run by the thread that waits for it.
    pub(crate) fn run(&self, duration: Duration) -> Result<Sample> {
        let work = (0..self.shape.threads).map(|thread| self.work(thread)).collect::<Result<_>>()?;
        measure(self.shape, duration, work, self.meter)
    }

    /// Every batch of every thread's working set, once.
    pub(crate) fn pass(&self) -> Result<()> {
        let step = self.shape.block * self.shape.batch;
        for thread in 0..self.shape.threads {
            let mut work = self.work(thread)?;
            (0..self.shape.area / step).try_for_each(|i| work(i * step))?;
        }
        Ok(())
    }

    fn work(&self, thread: u64) -> Result<Work<'_>> {
        let Self { engine, local, .. } = *self;
        let Shape { write, block, batch, area, .. } = self.shape;
        let base = thread * area;
        // Made once, as a program would that moves the same layers again and again.
        let blocks: Vec<RemoteRange> = (0..area / block)
            .map(|i| self.remote.slice(base + i * block, block))
            .collect::<te::Result<_>>()?;
        Ok(Box::new(move |offset| {
            let mut requests = engine.batch().reserve(index(batch));
            for i in 0..batch {
                let at = offset + i * block;
                let here = local.slice(base + at..base + at + block);
                let there = &blocks[index(at / block)];
                requests = if write { requests.write(here, there) } else { requests.read(there, here) };
            }
            requests.run()?;
            Ok(())
        }))
    }
}

/// Plain sockets under the same load. Connections are made and memory is touched before the clock starts.
pub(crate) struct RawLoad<'a> {
    shape: Shape,
    clients: Vec<RawClient>,
    pub(crate) meter: Option<&'a Meter>,
}

impl RawLoad<'_> {
    pub(crate) fn connect(address: SocketAddr, shape: Shape) -> Result<Self> {
        let connect = || {
            RawClient::connect(address, shape.area).map_err(|error| {
                Failure::io(format!("cannot connect to the raw server at {address}"), &error)
            })
        };
        let clients = (0..shape.threads).map(|_| connect()).collect::<Result<_>>()?;
        Ok(Self { shape, clients, meter: None })
    }

    pub(crate) fn run(&mut self, duration: Duration) -> Result<Sample> {
        let Shape { write, block, batch, .. } = self.shape;
        let work = self.clients.iter_mut().map(|client| -> Work<'_> {
            Box::new(move |offset| {
                let done = client.batch(write, offset, block, batch);
                done.map_err(|error| Failure::io("the raw connection failed", &error))
            })
        });
        measure(self.shape, duration, work.collect(), self.meter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_stay_inside_and_begin_again() {
        let shape = Shape { write: true, block: 4, batch: 2, threads: 1, area: 24 };
        assert_eq!(shape.offsets().take(5).collect::<Vec<_>>(), [0, 8, 16, 0, 8]);
    }
}
