//! `te probe`: does the engine answer?

use serde_json::json;
use te::Deadline;

use super::SegmentArgs;
use crate::context::Context;
use crate::failure::Result;
use crate::{output, size};

pub(crate) fn run(context: &Context, args: &SegmentArgs) -> Result<()> {
    let engine = context.client(&args.segment)?;
    let report = engine.probe(&args.segment)?;
    engine.shutdown(Deadline::after_secs(1));
    let micros = u64::try_from(report.round_trip.as_micros()).unwrap_or(u64::MAX);
    if context.json {
        return output::json(&json!({
            "ok": true,
            "segment": args.segment,
            "endpoint": report.endpoint.to_string(),
            "round_trip_us": micros,
            "incarnation": report.incarnation.map(|life| life.to_string()),
        }));
    }
    output::line(&format!("{} answers at {} in {}", args.segment, report.endpoint, size::micros(micros)))
}
