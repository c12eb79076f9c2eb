//! The decision itself.

use te_segment::{Location, TransportKind};
use te_transport::{Assessment, Capabilities, Op, Reach};

use crate::order::rank;
use crate::plan::{Candidate, NoPath, Plan, Verdict};

/// What has been proven about where the peer runs. Never derived from addresses or host names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Locality {
    /// The peer is an engine of this process, joined through an explicit local group.
    SameProcess,
    /// The peer proved that it runs on this host.
    SameHost,
    /// Nothing is proven.
    Network,
}

/// The caller's wishes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// If given, only these transports are considered, in this order.
    pub only: Option<Vec<TransportKind>>,
}

/// What is to be moved, as far as selection cares.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Direction.
    pub op: Op,
    /// Where the local bytes live.
    pub local: &'a Location,
    /// The caller's wishes.
    pub policy: &'a Policy,
}

/// An installed transport as selection sees it.
#[derive(Clone, Debug)]
pub struct Installed<'a> {
    kind: TransportKind,
    capabilities: &'a Capabilities,
    assessment: Assessment,
    registered: bool,
}

impl<'a> Installed<'a> {
    /// `assessment` is the transport's own judgement of the peer's descriptor, `registered` whether it serves the
    /// local region.
    #[must_use]
    pub fn new(
        kind: TransportKind,
        capabilities: &'a Capabilities,
        assessment: Assessment,
        registered: bool,
    ) -> Self {
        Self { kind, capabilities, assessment, registered }
    }
}

/// Decides. `offered` is what the peer's buffer can be reached by.
///
/// # Errors
///
/// [`NoPath`] when the explicit list names something that is not installed, or when nothing fits.
pub fn plan(
    request: &Request<'_>,
    locality: Locality,
    installed: &[Installed<'_>],
    offered: &[TransportKind],
) -> Result<Plan, NoPath> {
    if let Some(unknown) = request
        .policy
        .only
        .iter()
        .flatten()
        .find(|wanted| !installed.iter().any(|transport| transport.kind == **wanted))
    {
        return Err(NoPath::UnknownTransport {
            got: unknown.clone(),
            installed: installed.iter().map(|transport| transport.kind.clone()).collect(),
        });
    }

    let mut judged: Vec<(usize, Candidate)> = installed
        .iter()
        .map(|transport| {
            let (verdict, reason) = match judge(request, locality, transport, offered) {
                Ok(reason) => (Verdict::Next, reason),
                Err(reason) => (Verdict::Rejected, reason),
            };
            (
                place(request.policy, &transport.kind),
                Candidate { kind: transport.kind.clone(), verdict, reason },
            )
        })
        .collect();
    judged.sort_by(|(a_place, a), (b_place, b)| {
        (a.verdict == Verdict::Rejected, a_place, &a.kind).cmp(&(
            b.verdict == Verdict::Rejected,
            b_place,
            &b.kind,
        ))
    });
    let mut candidates: Vec<Candidate> = judged.into_iter().map(|(_, candidate)| candidate).collect();
    if let Some(first) = candidates.first_mut().filter(|first| first.verdict == Verdict::Next) {
        first.verdict = Verdict::Chosen;
    }
    let rejected = candidates.clone();
    Plan::from_sorted(candidates).ok_or_else(|| NoPath::NoCandidate { offered: offered.to_vec(), rejected })
}

/// Where a transport stands: in the explicit list if there is one, else in the default order.
fn place(policy: &Policy, kind: &TransportKind) -> usize {
    policy.only.as_ref().map_or_else(
        || rank(kind),
        |only| only.iter().position(|wanted| wanted == kind).unwrap_or(usize::MAX),
    )
}

/// The reason for using a transport, or for not using it.
fn judge(
    request: &Request<'_>,
    locality: Locality,
    transport: &Installed<'_>,
    offered: &[TransportKind],
) -> Result<String, String> {
    let capabilities = transport.capabilities;
    if request.policy.only.as_ref().is_some_and(|only| !only.contains(&transport.kind)) {
        return Err("not in the explicit transport list".to_owned());
    }
    let unproven = match (capabilities.reach, locality) {
        (Reach::Process, Locality::SameHost | Locality::Network) => Some("is an engine of this process"),
        (Reach::Host, Locality::Network) => Some("runs on this host"),
        _ => None,
    };
    if let Some(unproven) = unproven {
        let why = match &transport.assessment {
            Assessment::Unusable(reason) => format!(": {reason}"),
            _ => String::new(),
        };
        return Err(format!("the peer has not proven that it {unproven}{why}"));
    }
    if !offered.contains(&transport.kind) {
        return Err("the peer does not offer the buffer this way".to_owned());
    }
    if !transport.registered {
        return Err("the local buffer is not registered with it".to_owned());
    }
    if !(match request.op {
        Op::Read => capabilities.read,
        Op::Write => capabilities.write,
    }) {
        return Err(format!("does not serve {}", request.op));
    }
    if is_device(request.local) && !capabilities.device_memory {
        return Err(format!("does not serve device memory ({})", request.local));
    }
    if !is_device(request.local) && !capabilities.host_memory {
        return Err(format!("does not serve host memory ({})", request.local));
    }
    match &transport.assessment {
        Assessment::Usable(reason) => Ok(reason.clone()),
        other => Err(other.reason().to_owned()),
    }
}

fn is_device(location: &Location) -> bool {
    matches!(location, Location::Device { .. })
}
