//! `te features`: what this build has and what this host can use.

use serde_json::{Value, json};

use crate::context::Context;
use crate::failure::Result;
use crate::output::{self, Align, Table};

pub(crate) fn run(context: &Context) -> Result<()> {
    if context.json {
        let all: Vec<Value> = te::features::all()
            .map(|feature| {
                let availability = feature.availability();
                json!({
                    "name": feature.name(),
                    "kind": feature.kind().to_string(),
                    "schemes": feature.schemes(),
                    "compiled": availability.compiled,
                    "loadable": availability.loadable,
                    "usable": availability.usable,
                    "reason": availability.reason,
                })
            })
            .collect();
        return output::json(&json!({ "version": env!("CARGO_PKG_VERSION"), "features": all }));
    }
    let columns =
        ["KIND", "NAME", "COMPILED", "LOADABLE", "USABLE", "REASON"].map(|name| (name, Align::Left));
    let mut table = Table::new(&columns);
    let word = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    for feature in te::features::all() {
        let availability = feature.availability();
        table.row([
            feature.kind().to_string(),
            feature.name().to_owned(),
            word(availability.compiled),
            word(availability.loadable),
            word(availability.usable),
            availability.reason,
        ]);
    }
    table.print()
}
