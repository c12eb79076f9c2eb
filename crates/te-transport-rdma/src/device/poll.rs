//! The polling thread of a NIC: completions, events, and what has been stopped.
//!
//! It polls while there is something, looks for a moment longer, then sleeps, and arms the completion queue if anything is
//! under way. Nothing that waits for a device runs here: whatever a line wants done about what is found is the set-up
//! thread's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use te_sys_verbs::{Completion, CompletionQueue};

use super::link::Link;
use super::nic::Nic;
use super::open::OpenDevice;
use super::setup::Errand;
use crate::client::Part;
use crate::error::WorkError;
use crate::slices::{Status, WorkId};

/// Completions that are taken at a time.
const BATCH: usize = 64;

/// How long it looks on after the last completion. Far less than the least that a sleep and a wake-up cost.
const LOOK: Duration = Duration::from_micros(30);

/// How often it looks for what has been stopped, while there is work.
const REVIEW: Duration = Duration::from_millis(10);

/// How long a caller that waits for its own request looks, after the last completion, before it leaves that to the thread:
/// longer than a small request takes anywhere, devices in software included. Handing over costs another wake-up.
const CALLER_LOOK: Duration = Duration::from_millis(1);

/// How long of that it keeps its processor. Small requests over hardware have ended by then; a device in software may be
/// waiting for that very processor. Where others want it too, giving way takes as long as they do, and ends the looking.
const CALLER_SPIN: Duration = Duration::from_micros(20);

/// What taking completions needs. Whoever has it takes: those of one queue pair mean something in their order only.
pub(crate) struct Taking {
    /// Where they come from while the device is open, and which opening of it that is.
    queue: Option<(u64, CompletionQueue)>,
    room: Box<[Completion]>,
    ended: Vec<(Part, Status)>,
}

impl Default for Taking {
    fn default() -> Self {
        Self { queue: None, room: vec![Completion::default(); BATCH].into_boxed_slice(), ended: Vec::new() }
    }
}

impl Taking {
    pub(crate) fn set_queue(&mut self, queue: Option<(u64, CompletionQueue)>) {
        self.queue = queue;
    }
}

/// Runs until the transport is closed.
pub(crate) fn run(nic: &Arc<Nic>) {
    while !nic.signals().is_closing() {
        match nic.device().filter(|_| !nic.is_broken()) {
            Some(device) => serve(nic, &device),
            None => stand_by(nic),
        }
    }
}

/// Without a device nothing comes: what was posted has ended with its queue pairs, what waits for a peer ends with its time.
fn stand_by(nic: &Arc<Nic>) {
    let signals = nic.signals();
    signals.take_review();
    review(nic, Instant::now());
    let until = if signals.begin_sleep() { None } else { Timespec::try_from(REVIEW).ok() };
    // An interrupted sleep is a short one.
    let _ = poll(&mut [PollFd::new(&signals, PollFlags::IN)], until.as_ref());
    signals.end_sleep();
    signals.clear();
}

/// Runs until the device has failed, or the transport is closed.
fn serve(nic: &Arc<Nic>, device: &OpenDevice) {
    let signals = nic.signals();
    let mut reviewed = Instant::now();
    let mut busy = reviewed;
    while !signals.is_closing() && !nic.is_broken() {
        let found = signals.callers() == 0 && take(nic);
        let now = Instant::now();
        if found {
            busy = now;
        }
        if signals.take_review() || now.saturating_duration_since(reviewed) >= REVIEW {
            reviewed = now;
            review(nic, now);
            // Where completions come without a pause, it never sleeps, after which it would hear of them.
            hear(nic, device);
            // Whoever found no room may have said so after the last of it was given back.
            signals.take_starved().iter().for_each(Link::go_on);
        }
        if found {
            continue;
        }
        if signals.callers() > 0 {
            // They look themselves, and say when they do not any more.
            sleep(nic, device, Wake::CallersLeave);
            busy = Instant::now();
            continue;
        }
        if now.saturating_duration_since(busy) < LOOK && !signals.is_at_rest() {
            std::hint::spin_loop();
            continue;
        }
        sleep(nic, device, Wake::Completion);
        busy = Instant::now();
    }
}

/// A caller that would only wait for its request, and takes completions itself instead: that spares a hand-over between
/// threads. Meanwhile the polling threads stand by.
pub(crate) struct Looking<'a>(&'a [Arc<Nic>]);

impl<'a> Looking<'a> {
    pub(crate) fn along(nics: &'a [Arc<Nic>]) -> Self {
        nics.iter().for_each(|nic| nic.signals().caller_comes());
        Self(nics)
    }

    /// Looks until it is `over`, but not for long when nothing comes: then it is the threads' again.
    pub(crate) fn until(self, deadline: Instant, over: impl Fn() -> bool) {
        let mut quiet_since = Instant::now();
        while !over() {
            let mut found = false;
            for nic in self.0 {
                found |= take(nic);
            }
            let now = Instant::now();
            let quiet = now.saturating_duration_since(quiet_since);
            if found {
                quiet_since = now;
            } else if now >= deadline || quiet >= CALLER_LOOK {
                break;
            } else if quiet >= CALLER_SPIN {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// Looks for what has been stopped.
fn review(nic: &Arc<Nic>, now: Instant) {
    let links = nic.links();
    links.iter().filter(|link| link.is_at_work()).for_each(|link| link.review(now));
}

/// Passes on what the device tells.
fn hear(nic: &Arc<Nic>, device: &OpenDevice) {
    loop {
        match device.context.next_event() {
            Ok(Some(event)) => nic.signals().errand(Errand::Device(device.life, event)),
            Ok(None) => return,
            Err(error) => return fail(nic, device.life, &error.to_string()),
        }
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|nic| nic.signals().caller_leaves());
    }
}

/// Takes what has completed; whether there was anything that somebody else is not taking already.
fn take(nic: &Arc<Nic>) -> bool {
    let Some(mut taking) = nic.taking().try_lock() else { return false };
    let Taking { queue, room, ended } = &mut *taking;
    let Some((life, queue)) = queue else { return false };
    let completions = match queue.poll(room) {
        Ok(completions) => completions,
        Err(error) => {
            fail(nic, *life, &error.to_string());
            return false;
        }
    };
    for completion in completions {
        // None: its queue pair is gone, and what was posted on it with it.
        let Some(owner) = nic.owner(completion.queue_pair()) else { continue };
        let status = WorkError::from_number(completion.status().0).map_or(Status::Done, Status::Failed);
        let id = WorkId::from_bits(completion.id());
        let cause = owner.link.complete((owner.of, owner.lane), id, status, ended);
        for (part, status) in ended.drain(..) {
            owner.link.settle(owner.of, owner.lane, part, status, cause);
        }
    }
    if completions.is_empty() {
        return false;
    }
    nic.signals().take_starved().iter().for_each(Link::go_on);
    true
}

/// What ends a sleep besides a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wake {
    Completion,
    CallersLeave,
}

/// Sleeps until something completes, the device tells something, somebody wakes it, or it is time to look for what has been
/// stopped.
fn sleep(nic: &Arc<Nic>, device: &OpenDevice, wake: Wake) {
    let signals = nic.signals();
    let is_idle = wake == Wake::Completion && signals.begin_sleep();
    if !is_idle && signals.is_closing() {
        return;
    }
    // Where nothing is under way, whoever begins something wakes it: were the queue armed, it would be woken for what a caller
    // takes itself, and take a processor from that.
    if wake == Wake::Completion && !is_idle {
        if let Err(error) = device.queue.arm(false) {
            fail(nic, device.life, &error.to_string());
        }
        // What came before the queue was armed is not told of.
        if take(nic) {
            return;
        }
    }
    let until = (!is_idle).then(|| Timespec::try_from(REVIEW).ok()).flatten();
    let (channel, events) = (device.channel.fd(), device.context.event_fd());
    let mut fds = [
        PollFd::new(&signals, PollFlags::IN),
        PollFd::new(&events, PollFlags::IN),
        PollFd::new(&channel, PollFlags::IN),
    ];
    let watched = if wake == Wake::Completion { 3 } else { 2 };
    // An interrupted sleep is a short one.
    let _ = poll(&mut fds[..watched], until.as_ref());
    let told = !fds[1].revents().is_empty();
    signals.end_sleep();
    signals.clear();
    while let Ok(Some(_)) = device.channel.next() {}
    if told {
        hear(nic, device);
    }
}

/// The device or its queue is of no use any more.
fn fail(nic: &Arc<Nic>, life: u64, cause: &str) {
    if nic.set_broken() {
        nic.signals().errand(Errand::Failed(life, cause.to_owned()));
    }
}
