//! A device that has failed: closed, opened again, and given all that is registered.

use std::time::Instant;

use super::Setup;
use crate::device::open;
use crate::device::rebuild::{Event, Step};
use crate::device::regions::{Joined, Restored};

impl Setup {
    /// Does what is due about a device that has failed.
    pub(super) fn rebuild(&mut self) {
        let event = match self.rebuild.step(Instant::now()) {
            Step::Rest | Step::WaitUntil(_) => return,
            Step::Close => self.close_device(),
            Step::Open => self.open_device(),
            Step::Register => self.fill_device(),
        };
        self.rebuild.handle(Instant::now(), event, rand::random());
        if event == Event::Complete {
            self.is_back();
        }
    }

    /// In the order queue pairs, completion queue, registrations, protection domain, context.
    fn close_device(&mut self) -> Event {
        if self.nic.endpoints() > 0 {
            return Event::Busy;
        }
        // What comes to them from now on was planned with keys that are about to end.
        self.nic.retire_links();
        self.left.clear();
        self.nic.stop_taking();
        match self.nic.common().regions.leave(&self.nic) {
            true => Event::Closed,
            false => Event::Busy,
        }
    }

    fn open_device(&mut self) -> Event {
        let (name, common) = (self.nic.name(), self.nic.common());
        let context = common.verbs.open(name.as_str()).map_err(|lacking| lacking.to_string());
        let life = self.nic.life() + 1;
        match context.and_then(|context| open::device(context, &common.config, life)) {
            Ok(device) => {
                self.nic.install(device);
                Event::Opened
            }
            Err(cause) => {
                tracing::debug!(target: "te::rdma", nic = %name, cause, "the device is not back yet");
                Event::NotOpened
            }
        }
    }

    /// One region at a time: who asks something of this thread does not wait for all of them.
    fn fill_device(&mut self) -> Event {
        let regions = &self.nic.common().regions;
        let Some(next) = self.left.pop() else {
            return match regions.join(&self.nic) {
                Joined::Complete => Event::Complete,
                Joined::Busy => Event::Busy,
                Joined::Lacks(left) => {
                    self.left = left;
                    Event::Registered
                }
            };
        };
        match regions.restore(next, &self.nic) {
            Restored::Done => Event::Registered,
            Restored::Busy => {
                self.left.push(next);
                Event::Busy
            }
            Restored::Failed(cause) => {
                let nic = self.nic.name();
                tracing::warn!(target: "te::rdma", %nic, cause, "the device is back and cannot be used yet");
                Event::NotRegistered
            }
        }
    }

    /// The device is used again, if its port is up, and peers need its new keys.
    fn is_back(&mut self) {
        tracing::info!(target: "te::rdma", nic = %self.nic.name(), "the device is back");
        self.nic.signals().rouse();
        self.look_again();
        self.nic.common().publisher.changed();
    }
}
