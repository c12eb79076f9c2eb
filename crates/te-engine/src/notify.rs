//! Notifications: small messages to the owner of a segment, after the data they speak of.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use te_rpc::message::NotifyBody;
use te_segment::SegmentName;

use crate::batch::NotifyOutcome;
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::segment::Segment;

/// A received notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The sender's word, usually its segment name.
    pub name: String,
    /// The message.
    pub message: String,
}

/// Received and not yet taken notifications: bounded, in order of arrival.
pub(crate) struct Inbox {
    limit: usize,
    queue: Mutex<VecDeque<Notification>>,
    arrived: Condvar,
    async_arrived: tokio::sync::Notify,
}

impl Inbox {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            queue: Mutex::new(VecDeque::new()),
            arrived: Condvar::new(),
            async_arrived: tokio::sync::Notify::new(),
        }
    }

    /// Takes a notification in; false when the queue is full, which the sender is told.
    pub(crate) fn push(&self, notification: Notification) -> bool {
        {
            let mut queue = self.queue.lock();
            if queue.len() >= self.limit {
                return false;
            }
            queue.push_back(notification);
        }
        self.arrived.notify_one();
        self.async_arrived.notify_one();
        true
    }

    pub(crate) fn drain(&self) -> Vec<Notification> {
        self.queue.lock().drain(..).collect()
    }

    pub(crate) fn pop_until(&self, deadline: Instant) -> Option<Notification> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(notification) = queue.pop_front() {
                return Some(notification);
            }
            if self.arrived.wait_until(&mut queue, deadline).timed_out() {
                return queue.pop_front();
            }
        }
    }

    pub(crate) async fn pop(&self) -> Notification {
        loop {
            // Interest is registered before looking, so that an arrival in between is not missed.
            let arrived = self.async_arrived.notified();
            if let Some(notification) = self.queue.lock().pop_front() {
                return notification;
            }
            arrived.await;
        }
    }
}

/// A notification to be sent when its batch is complete.
pub(crate) struct Notice {
    core: Arc<Core>,
    to: SegmentName,
    body: NotifyBody,
}

impl Notice {
    pub(crate) fn new(core: &Arc<Core>, to: &Segment, name: String, message: String) -> Result<Self> {
        check_size(core, &name, &message)?;
        // Peers are reached under the name in the descriptor, not the one it was opened by (wire spec).
        let to = to.descriptor().name().clone();
        Ok(Self { core: core.clone(), to, body: NotifyBody::new(name, message) })
    }

    /// Sends from the control runtime and tells `ended` the outcome, by the deadline.
    pub(crate) fn send_in_background(
        self,
        deadline: Instant,
        ended: impl FnOnce(NotifyOutcome) + Send + 'static,
    ) {
        let handle = self.core.runtime().handle().clone();
        handle.spawn(async move {
            let outcome = match send(&self.core, &self.to, &self.body, deadline).await {
                Ok(()) => NotifyOutcome::Delivered,
                Err(error) => NotifyOutcome::Failed(error.to_string()),
            };
            ended(outcome);
        });
    }
}

pub(crate) fn check_size(core: &Core, name: &str, message: &str) -> Result<()> {
    let (size, limit) = (name.len() + message.len(), core.limits().notify_payload);
    if size <= limit {
        return Ok(());
    }
    let cause = format!("name and message have {size} bytes, over the limit of {limit}");
    Err(Error::new(ErrorKind::LimitReached, "send a notification", cause))
}

/// Sends one notification and waits for the receiver's answer.
pub(crate) async fn send(core: &Core, to: &SegmentName, body: &NotifyBody, deadline: Instant) -> Result<()> {
    let operation = || format!("notify {to}");
    let endpoint = core.control_of(to, deadline).await.map_err(|error| error.renamed(operation()))?;
    core.rpc().notify(&endpoint, body, deadline).await.map_err(|error| {
        let kind = match &error {
            te_rpc::RpcError::NotifyRefused { .. } => ErrorKind::NotifyRejected,
            _ => ErrorKind::PeerUnreachable,
        };
        let retry = match error.retry() {
            te_rpc::Retry::CanHelp => Retry::Later,
            te_rpc::Retry::Pointless => Retry::No,
        };
        Error::new(kind, operation(), error.to_string())
            .with_peer(format!("{to} at {endpoint}"))
            .with_retry(retry)
            .with_source(error)
    })
}
