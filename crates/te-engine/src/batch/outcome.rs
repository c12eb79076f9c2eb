//! The report and the result of a batch.

use std::sync::{Arc, OnceLock};

use te_transport::{Op, Outcome};

use super::report::{NotifyOutcome, Report, RequestReport};
use super::state::{BatchState, RequestInfo};
use crate::error::{Error, ErrorKind, Result, Retry};

impl BatchState {
    fn report(&self) -> Report {
        let (elapsed, notify) = self.ending();
        let requests = self.plan.requests.iter().enumerate();
        let requests = requests.map(|(request, info)| {
            let mut report = self.request_report(request, info);
            report.failure = report.failure.map(|failure| self.told_of_withdrawal(failure));
            report
        });
        let requests = requests.collect();
        Report { requests, elapsed, notify }
    }

    fn request_report(&self, request: usize, info: &RequestInfo) -> RequestReport {
        let mut report = RequestReport {
            op: info.op,
            segment: info.remote.segment().name().clone(),
            remote: info.remote.range(),
            bytes: 0,
            failure: None,
            path: info.routes.first().lane.label().clone(),
            attempts: 1,
            earlier: Vec::new(),
            late_duplicate: false,
        };
        if self.report_moved(request, &mut report) {
            return report;
        }
        for outcome in self.slots(request).iter().filter_map(OnceLock::get) {
            match outcome {
                Outcome::Done(bytes) => report.bytes += bytes,
                Outcome::Failed(failure) => {
                    report.failure.get_or_insert_with(|| failure.clone());
                }
                _ => {}
            }
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
        let of_many = if report.requests.len() == 1 {
            String::new()
        } else {
            format!("{failures} of {} requests failed, the first: ", report.requests.len())
        };
        let error = match report
            .requests
            .iter()
            .find_map(|request| Some((request, request.failure.as_ref()?)))
        {
            Some((request, failure)) => {
                let operation = format!(
                    "{of_many}{} {} {} {} at {:#x}",
                    request.op,
                    crate::size::bytes(request.remote.len()),
                    if request.op == Op::Read { "from" } else { "to" },
                    request.segment,
                    request.remote.start()
                );
                let mut error = Error::from_failure(operation, request.segment.as_str(), failure);
                if !request.earlier.is_empty() {
                    error = error.with_path(paths(request));
                }
                match self.plan.requests.iter().find(|info| *info.remote.segment().name() == request.segment)
                {
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

/// The paths a request took, in order.
fn paths(request: &RequestReport) -> String {
    let earlier = request.earlier.iter().filter_map(|failure| failure.path());
    earlier.chain([&request.path]).map(ToString::to_string).collect::<Vec<_>>().join(", then ")
}
