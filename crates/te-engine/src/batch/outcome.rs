//! The report and the result of a batch.

use std::sync::Arc;

use te_transport::{FailureKind, Op};

use super::flight::judge;
use super::report::{AttemptReport, NotifyOutcome, Report, RequestReport};
use super::state::{BatchState, RequestInfo};
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::peers::PeerState;

impl BatchState {
    fn report(&self) -> Report {
        let (elapsed, notify) = self.ending();
        let requests = self.plan.requests.iter().enumerate();
        let requests = requests.map(|(request, info)| {
            let mut report = self.request_report(request, info);
            if let Some(failure) = report.failure.take() {
                report.failure = Some(self.told_why(failure));
                report.peer = Some(info.remote.segment().peer());
            }
            report
        });
        let requests = requests.collect();
        Report { requests, elapsed, notify }
    }

    pub(super) fn request_report(&self, request: usize, info: &RequestInfo) -> RequestReport {
        let mut report = RequestReport {
            op: info.op,
            segment: info.remote.segment().name().clone(),
            remote: info.remote.range(),
            local: info.local.range(),
            bytes: 0,
            failure: None,
            path: info.routes.first().lane.label().clone(),
            attempts: 1,
            earlier: Vec::new(),
            tried: Vec::new(),
            peer: None,
            late_duplicate: false,
        };
        if self.report_moved(request, &mut report) {
            return report;
        }
        let (len, max_slice) = (info.remote.len(), info.routes.first().max_slice);
        if let Some(judged) = judge(info.op, self.slots(request), len, max_slice) {
            report.bytes = judged.bytes;
            if judged.failure.is_some() {
                let quiet = self.ended_at().saturating_duration_since(self.heard_in(info.flight));
                report.tried.push(AttemptReport::new(report.path.clone(), &judged, quiet));
            }
            report.failure = judged.failure;
        }
        report
    }

    /// The result of a batch that has ended.
    pub(crate) fn result(&self) -> Result<Report> {
        let report = self.report();
        if !self.has_failed() {
            return Ok(report);
        }
        let failures = report.requests.iter().filter(|request| request.failure.is_some()).count();
        let of_many = |index: usize| match report.requests.len() {
            1 => String::new(),
            all => format!("{failures} of {all} requests failed, the first at index {index}: "),
        };
        let error = match report
            .requests
            .iter()
            .enumerate()
            .find_map(|(index, request)| Some((index, request, request.failure.as_ref()?)))
        {
            Some((index, request, failure)) => {
                let (there, here) = if request.op == Op::Read { ("from", "into") } else { ("to", "from") };
                let operation = format!(
                    "{}{} {} {there} {} at {:#x} {here} local {:#x}",
                    of_many(index),
                    request.op,
                    crate::size::bytes(request.remote.len()),
                    request.segment,
                    request.remote.start(),
                    request.local.start()
                );
                let mut error = Error::from_failure(operation, request.segment.as_str(), failure);
                if failure.kind() == FailureKind::TimedOut {
                    error = error.with_more(&progress(request));
                }
                if !request.earlier.is_empty() {
                    error = error.with_path(paths(request));
                }
                match self.plan.requests.get(index) {
                    Some(info) => error.explained_by(&info.remote.segment().state()),
                    None => error,
                }
            }
            None => {
                let cause = match &report.notify {
                    Some(NotifyOutcome::Failed(cause)) => cause.clone(),
                    _ => "unknown".to_owned(),
                };
                Error::new(ErrorKind::NotifyRejected, "notify after the batch", cause)
                    .with_retry(Retry::Later)
            }
        };
        Err(error.with_report(Arc::new(report)))
    }
}

/// How far a request came on each path, and what is believed of its peer.
fn progress(request: &RequestReport) -> String {
    let tried = request.tried.iter().map(|attempt| format!("; {attempt}")).collect::<String>();
    match &request.peer {
        Some(PeerState { life, cause, since, .. }) => {
            let since = since.elapsed().as_secs_f64();
            format!("{tried}; the peer is {life} since {since:.1} s: {cause}")
        }
        None => tried,
    }
}

/// The paths a request took, in order.
fn paths(request: &RequestReport) -> String {
    let earlier = request.earlier.iter().filter_map(|failure| failure.path());
    earlier.chain([&request.path]).map(ToString::to_string).collect::<Vec<_>>().join(", then ")
}
