//! `te show`: what a segment offers.

use serde_json::{Value, json};
use te::{Deadline, Segment, SegmentDescriptor};
use te_segment::{DescriptorVersion, Identity, TcpFraming};

use super::{SegmentArgs, standing, transports};
use crate::context::Context;
use crate::failure::Result;
use crate::output::{self, Align, Table};

pub(crate) fn run(context: &Context, args: &SegmentArgs) -> Result<()> {
    let engine = context.client(&args.segment)?;
    let segment = engine.open(&args.segment)?;
    let outcome = if context.json { output::json(&as_json(&segment)) } else { print(&segment) };
    engine.shutdown(Deadline::after_secs(1));
    outcome
}

fn data_port(descriptor: &SegmentDescriptor) -> Option<(String, &'static str)> {
    let tcp = descriptor.tcp()?;
    let host =
        tcp.host.as_ref().map_or_else(|| "(host of the control endpoint)".to_owned(), |host| host.bare());
    let framing = if tcp.framing == TcpFraming::V2 { "v2" } else { "v1" };
    Some((format!("{host} port {}", tcp.port), framing))
}

fn print(segment: &Segment) -> Result<()> {
    let descriptor = segment.descriptor();
    let field = |name: &str, value: String| output::line(&format!("{name:<12} {value}"));
    field("segment", descriptor.name().to_string())?;
    match descriptor.identity() {
        Identity::Te { incarnation, .. } => field("incarnation", incarnation.to_string())?,
        Identity::Reference => field("engine", "reference".to_owned())?,
    }
    field("peer", standing::life(&segment.peer()))?;
    if let Some(control) = descriptor.control() {
        field("control", control.to_string())?;
    }
    if let Some((place, framing)) = data_port(&descriptor) {
        field("tcp", format!("{place}, framing {framing}"))?;
    }
    for device in descriptor.devices() {
        field("device", device.name().to_string())?;
    }
    for circuit in standing::circuits(segment) {
        field("path", format!("{}, circuit {circuit}", circuit.path))?;
    }
    if descriptor.buffers().is_empty() {
        return field("buffers", "none".to_owned());
    }
    let mut table = Table::new(&[
        ("BUFFER", Align::Right),
        ("ADDRESS", Align::Left),
        ("SIZE", Align::Right),
        ("ACCESS", Align::Left),
        ("LOCATION", Align::Left),
        ("TRANSPORTS", Align::Left),
    ]);
    for (index, buffer) in descriptor.buffers().iter().enumerate() {
        table.row([
            index.to_string(),
            format!("{:#x}", buffer.range().start()),
            te_engine::size::bytes(buffer.range().len()),
            buffer.access().to_string(),
            buffer.location().to_string(),
            transports(buffer).join(" "),
        ]);
    }
    output::line("")?;
    table.print()
}

fn as_json(segment: &Segment) -> Value {
    let descriptor = segment.descriptor();
    let buffers: Vec<Value> = descriptor
        .buffers()
        .iter()
        .map(|buffer| {
            json!({
                "addr": buffer.range().start(),
                "length": buffer.range().len(),
                "access": buffer.access().to_string(),
                "location": buffer.location().to_string(),
                "transports": transports(buffer),
            })
        })
        .collect();
    json!({
        "segment": descriptor.name().as_str(),
        "engine": if descriptor.incarnation().is_some() { "te" } else { "reference" },
        "incarnation": descriptor.incarnation().map(|incarnation| incarnation.to_string()),
        "version": descriptor.version().map(DescriptorVersion::value),
        "control": descriptor.control().map(ToString::to_string),
        "tcp": descriptor.tcp().map(|tcp| json!({
            "host": tcp.host.as_ref().map(|host| host.bare()),
            "port": tcp.port,
            "framing": if tcp.framing == TcpFraming::V2 { 2 } else { 1 },
        })),
        "devices": descriptor.devices().iter().map(|device| device.name().as_str()).collect::<Vec<_>>(),
        "peer": standing::life_as_json(&segment.peer()),
        "paths": standing::circuits(segment).iter().map(standing::circuit_as_json).collect::<Vec<_>>(),
        "buffers": buffers,
    })
}
