//! The outcome of a decision.

use std::fmt;

use te_segment::TransportKind;

/// What became of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// Used first.
    Chosen,
    /// Used when the ones before it fail.
    Next,
    /// Not used.
    Rejected,
}

/// One installed transport, what became of it and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which transport.
    pub kind: TransportKind,
    /// What became of it.
    pub verdict: Verdict,
    /// Why, in one lower-case line.
    pub reason: String,
}

/// An ordered list of transports to try, with every other one and why it is not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Usable ones first, best first; then the rejected ones. Never without a chosen one.
    candidates: Vec<Candidate>,
}

impl Plan {
    /// `None` when no candidate is usable.
    pub(crate) fn from_sorted(candidates: Vec<Candidate>) -> Option<Self> {
        candidates
            .first()
            .is_some_and(|first| first.verdict == Verdict::Chosen)
            .then_some(Self { candidates })
    }

    /// The transport to use first.
    #[must_use]
    pub fn chosen(&self) -> &TransportKind {
        // `from_sorted` is the only constructor and demands a first element.
        &self.candidates[0].kind
    }

    /// The transports to try, in order.
    pub fn order(&self) -> impl Iterator<Item = &TransportKind> {
        self.candidates.iter().filter(|c| c.verdict != Verdict::Rejected).map(|c| &c.kind)
    }

    /// The same plan with some of the usable transports put last, for the reason that `why` gives. Their order among
    /// each other stays, and none is rejected.
    #[must_use]
    pub fn deferring(mut self, mut why: impl FnMut(&TransportKind) -> Option<String>) -> Self {
        let usable = self.order().count();
        let rejected = self.candidates.split_off(usable);
        let (mut kept, mut put_last) = (Vec::with_capacity(usable), Vec::new());
        for mut candidate in self.candidates {
            candidate.verdict = Verdict::Next;
            match why(&candidate.kind) {
                Some(reason) => {
                    candidate.reason = format!("{}; {reason}", candidate.reason);
                    put_last.push(candidate);
                }
                None => kept.push(candidate),
            }
        }
        let mut candidates: Vec<Candidate> = kept.into_iter().chain(put_last).chain(rejected).collect();
        if let Some(first) = candidates.first_mut() {
            first.verdict = Verdict::Chosen;
        }
        Self { candidates }
    }

    /// Everything considered, with reasons.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }
}

/// No transport can serve the request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoPath {
    /// The explicit list names a transport that is not installed.
    UnknownTransport {
        /// The word in the list.
        got: TransportKind,
        /// What is installed.
        installed: Vec<TransportKind>,
    },
    /// Nothing fits.
    NoCandidate {
        /// What the peer offers for this buffer.
        offered: Vec<TransportKind>,
        /// What we have and why each does not fit.
        rejected: Vec<Candidate>,
    },
}

fn words(kinds: &[TransportKind]) -> String {
    if kinds.is_empty() {
        return "none".to_owned();
    }
    kinds.iter().map(TransportKind::as_str).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for NoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownTransport { got, installed } => {
                write!(f, "transport {got} is not installed; installed: {}", words(installed))
            }
            Self::NoCandidate { offered, rejected } => {
                write!(f, "no common path: the peer offers {}", words(offered))?;
                if rejected.is_empty() {
                    return f.write_str("; nothing is installed here");
                }
                f.write_str("; ours: ")?;
                for (at, candidate) in rejected.iter().enumerate() {
                    let separator = if at == 0 { "" } else { ", " };
                    write!(f, "{separator}{} ({})", candidate.kind, candidate.reason)?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for NoPath {}
