//! Asking whether an engine answers: natively between te engines, with the reference engine's frame otherwise.

use std::time::{Duration, Instant};

use te_rpc::native::{Expectation, Target};
use te_segment::{Endpoint, Identity, Incarnation, SegmentDescriptor, SegmentName};

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result, Retry};

/// The answer of a peer to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProbeReport {
    /// Where it was reached.
    pub endpoint: Endpoint,
    /// From connect to answer.
    pub round_trip: Duration,
    /// The life that answered; `None` for a reference peer, which does not say.
    pub incarnation: Option<Incarnation>,
}

/// Asks whoever has the name.
pub(crate) async fn probe(
    core: &Core,
    name: &SegmentName,
    operation: &str,
    deadline: Instant,
) -> Result<ProbeReport> {
    if let Some(report) = probe_natively(core, name, operation, deadline).await? {
        return Ok(report);
    }
    let endpoint =
        core.control_of(name, deadline).await.map_err(|error| error.renamed(operation.to_owned()))?;
    let began = Instant::now();
    core.rpc().probe(&endpoint, deadline).await.map_err(|error| {
        let can_help = error.retry() == te_rpc::Retry::CanHelp;
        unreachable(operation, name, &endpoint, can_help, error)
    })?;
    Ok(ProbeReport { endpoint, round_trip: began.elapsed(), incarnation: None })
}

fn unreachable(
    operation: &str,
    name: &SegmentName,
    endpoint: &Endpoint,
    can_help: bool,
    error: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    Error::new(ErrorKind::PeerUnreachable, operation, error.to_string())
        .with_peer(format!("{name} at {endpoint}"))
        .with_retry(if can_help { Retry::Later } else { Retry::No })
        .with_source(error)
}

/// Asks a te peer whether it is there; `None` for a reference peer.
async fn probe_natively(
    core: &Core,
    name: &SegmentName,
    operation: &str,
    deadline: Instant,
) -> Result<Option<ProbeReport>> {
    let known = core.cache().lookup(name).map(|segment| segment.snapshot().descriptor.clone());
    let to = match known.as_deref().map(SegmentDescriptor::identity) {
        Some(Identity::Reference) => return Ok(None),
        // Whoever has the name now, not the life that was opened.
        Some(Identity::Te { control: Some(control), .. }) => {
            let name = known.as_ref().map(|descriptor| descriptor.name().as_str().to_owned());
            Target { endpoint: control.clone(), expects: Expectation { incarnation: None, name } }
        }
        _ => core
            .control_of(name, deadline)
            .await
            .map(Target::from)
            .map_err(|error| error.renamed(operation.to_owned()))?,
    };
    let began = Instant::now();
    match core.peers().probe(&to, deadline).await {
        Ok(incarnation) => Ok(Some(ProbeReport {
            endpoint: to.endpoint,
            round_trip: began.elapsed(),
            incarnation: Some(incarnation),
        })),
        Err(error) if error.is_not_native() => Ok(None),
        Err(error) => {
            let can_help = error.retry() == te_rpc::Retry::CanHelp;
            Err(unreachable(operation, name, &to.endpoint, can_help, error))
        }
    }
}
