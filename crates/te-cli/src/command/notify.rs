//! `te notify`: a small message to a segment's owner.

use clap::Args;
use serde_json::json;
use te::Deadline;

use crate::context::Context;
use crate::failure::Result;
use crate::output;

/// What to send, and to whom.
#[derive(Args, Debug)]
pub(crate) struct NotifyArgs {
    /// The segment's name
    segment: String,
    /// Name of the notification
    notification: String,
    /// The message
    message: String,
}

pub(crate) fn run(context: &Context, args: &NotifyArgs) -> Result<()> {
    let engine = context.client(&args.segment)?;
    engine.notify(&args.segment, &args.notification, &args.message)?;
    engine.shutdown(Deadline::after_secs(1));
    if context.json {
        return output::json(&json!({ "ok": true, "segment": args.segment }));
    }
    output::line(&format!("{} has it", args.segment))
}
