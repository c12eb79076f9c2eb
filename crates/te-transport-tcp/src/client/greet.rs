//! The hello of a native connection.

use std::time::Instant;

use te_segment::Incarnation;
use te_transport::FailureKind;

use super::address::ConnectError;
use crate::counters::{Counters, add};
use crate::io::{Step, Wait, Wire};
use crate::native::{ANSWER_LEN, Answer, HELLO_LEN, Hello, VERSIONS};

/// A hello under way.
pub(super) struct Greeting<'a> {
    pub(super) from: Incarnation,
    pub(super) to: Incarnation,
    pub(super) counters: &'a Counters,
    /// Until when the answer must be here.
    pub(super) until: Instant,
    /// Looked at once a tick.
    pub(super) stop: &'a dyn Fn() -> bool,
}

/// Why a connection cannot be used.
#[derive(Debug)]
pub(super) enum NotGreeted {
    /// It ended before the answer was here: another one may do better.
    Broken(String),
    /// There is nothing to be gained from trying again now.
    Final(ConnectError),
}

impl Greeting<'_> {
    /// Says hello and waits for the welcome. Returns the version spoken from here on.
    pub(super) fn exchange(&self, wire: &mut Wire) -> Result<u16, NotGreeted> {
        let hello = Hello { version: VERSIONS.1, from: self.from, to: self.to }.encode();
        let mut sent = 0;
        while sent < HELLO_LEN {
            let left = self.left()?;
            match wire.send_bytes(&hello[sent..], left) {
                Ok(Step::Moved(bytes)) => sent += bytes,
                Ok(Step::Quiet | Step::Eof) => {}
                Err(error) => return Err(NotGreeted::Broken(format!("sending the hello: {error}"))),
            }
        }
        add(&self.counters.wire_sent, HELLO_LEN as u64);
        let mut answer = [0; ANSWER_LEN];
        let mut have = 0;
        while have < ANSWER_LEN {
            let left = self.left()?;
            match wire.recv_bytes(&mut answer[have..], Wait::All, left) {
                Ok(Step::Moved(bytes)) => have += bytes,
                Ok(Step::Quiet) => {}
                Ok(Step::Eof) => {
                    return Err(NotGreeted::Broken("the peer closed the connection at the hello".to_owned()));
                }
                Err(error) => return Err(NotGreeted::Broken(format!("waiting for the welcome: {error}"))),
            }
        }
        add(&self.counters.wire_received, ANSWER_LEN as u64);
        self.judge(&answer).map_err(NotGreeted::Final)
    }

    fn left(&self) -> Result<std::time::Duration, NotGreeted> {
        if (self.stop)() {
            return Err(NotGreeted::Final(ConnectError::Stopped));
        }
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(NotGreeted::Final(ConnectError::Failed("no answer to the hello in time".to_owned())));
        }
        Ok(left)
    }

    fn judge(&self, answer: &[u8; ANSWER_LEN]) -> Result<u16, ConnectError> {
        let (oldest, newest) = VERSIONS;
        let refused = |kind, text: String| Err(ConnectError::Refused(kind, text));
        let stale = |now| {
            let text = format!("the peer is incarnation {now}, the path is to {}", self.to);
            refused(FailureKind::StaleIncarnation, text)
        };
        match Answer::decode(answer) {
            Ok(Answer::Welcome { now, .. }) if now != self.to => stale(now),
            Ok(Answer::Welcome { version, .. }) if (oldest..=newest).contains(&version) => Ok(version),
            Ok(Answer::Welcome { version, .. }) => {
                let text =
                    format!("the peer wants to speak version {version}, we speak {oldest} to {newest}");
                refused(FailureKind::Protocol, text)
            }
            Ok(Answer::StaleIncarnation { now }) => stale(now),
            Ok(Answer::ShuttingDown) => Err(ConnectError::Failed("the peer is shutting down".to_owned())),
            Ok(Answer::Busy) => Err(ConnectError::Failed("the peer has too many connections".to_owned())),
            Ok(Answer::Version { oldest: first, newest: last }) => {
                let text =
                    format!("the peer speaks versions {first} to {last}, we speak {oldest} to {newest}");
                refused(FailureKind::Protocol, text)
            }
            Ok(Answer::Other(code)) => {
                Err(ConnectError::Failed(format!("the peer refused the hello with code {code}")))
            }
            Err(error) => refused(FailureKind::Protocol, format!("the answer to the hello: {error}")),
        }
    }
}
