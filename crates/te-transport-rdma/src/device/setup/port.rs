//! What the device tells by itself: ports that go down and come up, addresses that change, failures of the device.

use std::time::Instant;

use te_sys_verbs::{AsyncEvent, EventKind, Subject};

use super::Setup;
use crate::device::{open, rebuild};
use crate::endpoint::{Closed, Event};

impl Setup {
    pub(super) fn device(&mut self, event: AsyncEvent) {
        tracing::info!(target: "te::rdma", nic = %self.nic.name(), ?event, "the device tells");
        match (event.kind, event.about) {
            (EventKind::PORT_ERR | EventKind::DEVICE_FATAL | EventKind::CQ_ERR, _) => {
                self.down(event.kind != EventKind::PORT_ERR)
            }
            // A request of the peer that was refused: the peer knows, and opens anew. Other kinds say that nothing is amiss.
            (EventKind::QP_FATAL, Subject::QueuePair(cookie)) => {
                if let Some((link, of)) = self.nic.by_cookie(cookie) {
                    link.tell(Event::Broken(of));
                    self.carry_out(&link);
                }
            }
            (_, Subject::Port(port)) if port == self.nic.own().number => self.look_again(),
            _ => {}
        }
    }

    /// The port or the device carries nothing any more: what is under way goes to other rails.
    pub(super) fn down(&mut self, broken: bool) {
        if broken {
            self.nic.set_broken();
            self.rebuild.handle(Instant::now(), rebuild::Event::Failed, rand::random());
            self.nic.signals().rouse();
        }
        self.nic.set_up(false);
        self.nic.common().peers.set_down(self.nic.name(), true);
        for link in self.nic.links() {
            self.close(&link, Closed::Broken);
            // Where there is no endpoint, nothing is closed.
            self.elsewhere(&link, &self.is_down());
        }
    }

    /// The port may have come up, or its addresses may have changed.
    pub(super) fn look_again(&mut self) {
        if self.nic.is_broken() {
            return;
        }
        let Some(device) = self.nic.device() else { return };
        match open::own(&device.context, &self.nic.common().config) {
            Ok(own) => {
                let before = self.nic.described();
                let is_new = self.nic.set_own(own);
                let was_down = self.nic.set_up(true);
                if is_new {
                    // Queue pairs are bound to the old address.
                    for link in self.nic.links() {
                        self.close(&link, Closed::Broken);
                    }
                }
                if self.nic.described() != before {
                    self.nic.common().publisher.changed();
                }
                if was_down || is_new {
                    self.nic.common().peers.set_down(self.nic.name(), false);
                    for link in self.nic.links() {
                        if link.forgive() {
                            self.want(&link);
                        }
                    }
                }
            }
            Err(cause) => {
                tracing::info!(target: "te::rdma", nic = %self.nic.name(), cause, "not usable");
                self.down(false);
            }
        }
    }
}
