//! `te config`: every setting, and where its value came from.

use clap::Args;
use serde_json::{Value, json};
use te::settings::Settings;

use crate::context::Context;
use crate::failure::Result;
use crate::output::{self, Align, Table};

/// How much to print.
#[derive(Args, Debug)]
pub(crate) struct ConfigArgs {
    /// Prints where each value came from
    #[arg(long)]
    origin: bool,
    /// Prints what each setting is, with its range and its variables
    #[arg(long)]
    about: bool,
    /// Prints the page of the guide
    #[arg(long, hide = true, conflicts_with_all = ["origin", "about"])]
    markdown: bool,
}

pub(crate) fn run(context: &Context, args: &ConfigArgs) -> Result<()> {
    if args.markdown {
        return output::line(page().trim_end());
    }
    let entries = context.settings.entries();
    if context.json {
        let all: Vec<Value> = entries
            .iter()
            .map(|entry| {
                json!({
                    "key": entry.key.name,
                    "value": entry.value,
                    "origin": entry.origin.to_string(),
                    "variable": entry.key.variable,
                    "expected": entry.key.expected(),
                })
            })
            .collect();
        return output::json(&Value::Array(all));
    }
    let mut columns = vec![("KEY", Align::Left), ("VALUE", Align::Left)];
    if args.origin {
        columns.push(("ORIGIN", Align::Left));
    }
    if args.about {
        columns.push(("EXPECTED", Align::Left));
        columns.push(("VARIABLES", Align::Left));
    }
    let mut table = Table::new(&columns);
    for entry in &entries {
        let mut row = vec![entry.key.name.to_owned(), entry.value.clone()];
        if args.origin {
            row.push(entry.origin.to_string());
        }
        if args.about {
            row.push(entry.key.expected());
            row.push(variables(entry.key).join(" "));
        }
        table.row(row);
    }
    table.print()
}

fn variables(key: &te::settings::Key) -> Vec<&'static str> {
    std::iter::once(key.variable).chain(key.aliases.iter().rev().map(te::settings::Alias::variable)).collect()
}

/// `docs/guide/settings.md`.
fn page() -> String {
    let mut page = String::from(
        "# Settings\n\nMade by `te config --markdown`; a test compares it with the code.\n\nA value comes from, the last \
         one counting: the default, a file of `key = value` lines (`Settings::from_file`, `te --config FILE`), the \
         environment (`Settings::from_env`, always read by the `te` program and never by the library unasked), the \
         program (`EngineBuilder`) or the command line (`te --set KEY=VALUE`). `te config --origin` prints where each \
         one came from.\n\nA bad value is an error with its key, the value, where it was given and what can stand \
         there. An unknown `TE_` variable is a warning with the nearest one. Byte counts take `KiB`, `MiB`, `GiB` and \
         `TiB`; durations need `ms`, `s`, `min` or `h`.\n\nVariables that begin with `MC_` are those of the reference \
         engine; they keep its units. The variable named first counts most.\n",
    );
    for key in Settings::keys() {
        let about = key.about.trim();
        let variables: Vec<String> = variables(key).iter().map(|name| format!("`{name}`")).collect();
        let feature =
            key.feature.map_or_else(String::new, |feature| format!(" Needs the feature `{feature}`."));
        page.push_str(&format!("\n## `{}`\n\n{about}{feature}\n\n", key.name));
        page.push_str(&format!("* Value: {}\n* Variables: {}\n", key.expected(), variables.join(", ")));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CFG-03: the page says what the code does.
    #[test]
    fn the_page_of_the_guide_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/settings.md");
        let found = std::fs::read_to_string(path).unwrap();
        assert!(found == page(), "run: cargo run -p te-cli -- config --markdown > docs/guide/settings.md");
    }
}
