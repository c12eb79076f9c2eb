//! `guest-bench`: ours over emulated RoCE beside perftest, in one guest, as ratios. What is emulated is slow and the same for
//! both: the ratios say what we add, not how fast anything is.

use std::collections::BTreeMap;

use super::options::Options;
use super::suites;
use crate::Result;
use crate::args::Args;
use crate::bench::table::{self, Measure, Row, median};
use crate::outcome::Outcome;
use crate::shell::Cmd;
use crate::workspace::Workspace;

/// The rate beside `ib_write_bw` and `ib_read_bw`, and the time beside `ib_write_lat`, that are promised.
const RATE: f64 = 0.9;
const LATENCY: f64 = 1.3;

/// Requests of a batch where rates are measured.
const BATCH: u64 = 16;

/// Bytes of a request where latencies are.
const SMALL: u64 = 8;

/// `guest-bench [--check] [--rounds N] [OPTION..]`.
pub(crate) fn command(mut args: Args) -> Result<Outcome> {
    let check = args.flag("--check");
    let rounds = args.number("--rounds", 5)?;
    let options = Options { timeout: 1_500, ..Options::parse(&mut args)? };
    args.finish()?;
    let workspace = Workspace::load()?;
    let build = ["build", "--release", "--locked", "-p", "te-cli", "--features", "rdma"];
    if !Cmd::cargo(build[0]).args(&build[1..]).run()? {
        return Err("te does not build".into());
    }
    let te = workspace.target.join("release/te");
    let script = format!("te={}\nrounds={rounds}\n{}", suites::quoted(&te), include_str!("bench.sh"));
    let options = options.and(&Options { rails: 1, awake: true, ..Options::default() });
    let ended = super::start(&workspace, &options, &script)?;
    let rows = rows(&figures(&ended.output))?;
    rows.iter().for_each(|row| println!("{row}"));
    table::write(&workspace.root.join("docs/performance.md"), "guest-bench", &rows)?;
    let mut outcome =
        Outcome { passed: rows.iter().filter(|row| !row.is_short()).count(), ..Outcome::default() };
    for row in rows.iter().filter(|row| row.is_short() && check) {
        outcome.fail(row.to_string());
    }
    outcome.print();
    Ok(outcome)
}

/// Whose, what and which block.
type Key = (String, String, u64);

/// Every figure of the output.
fn figures(output: &str) -> BTreeMap<Key, Vec<f64>> {
    let mut figures = BTreeMap::<_, Vec<_>>::new();
    for line in output.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if let ["figure", whose, what, block, value] = words[..]
            && let (Ok(block), Ok(value)) = (block.parse(), value.parse::<f64>())
        {
            figures.entry((whose.to_owned(), what.to_owned(), block)).or_default().push(value);
        }
    }
    figures
}

fn rows(figures: &BTreeMap<Key, Vec<f64>>) -> Result<Vec<Row>> {
    let of = |whose: &str, what: &str, block| -> Result<f64> {
        let key = (whose.to_owned(), what.to_owned(), block);
        let mut values = figures.get(&key).cloned().unwrap_or_default();
        if values.is_empty() {
            return Err(format!("the guest printed no figure `{whose} {what} {block}`").into());
        }
        Ok(median(&mut values))
    };
    let mut rows = Vec::new();
    for (op, yardstick) in [("write", "ib_write_bw"), ("read", "ib_read_bw")] {
        for block in [64 << 10, 1 << 20] {
            rows.push(Row {
                measure: Measure::Rate,
                op: op.to_owned(),
                framing: "rdma",
                block,
                batch: BATCH,
                yardstick,
                ours: of("ours", op, block)?,
                // perftest's megabytes are of 2^20 bytes.
                theirs: of("theirs", op, block)? * 1_048_576.0 / 1e9,
                promised: Some(RATE),
            });
        }
    }
    let small = |measure, op: &str, yardstick, ours, theirs, promised| Row {
        measure,
        op: op.to_owned(),
        framing: "rdma",
        block: SMALL,
        batch: 1,
        yardstick,
        ours,
        theirs,
        promised,
    };
    let both = |what: &str| -> Result<_> { Ok((of("ours", what, SMALL)?, of("theirs", what, SMALL)?)) };
    let (ours, theirs) = both("ping-pong")?;
    rows.push(small(Measure::Latency, "ping-pong", "ib_write_lat", ours, theirs, Some(LATENCY)));
    let (ours, theirs) = both("read")?;
    rows.push(small(Measure::Latency, "read", "ib_read_lat", ours, theirs, None));
    // Rates of one request at a time: gigabytes a second, and perftest's millions of messages a second.
    let (ours, theirs) = both("write")?;
    let ours = SMALL as f64 / ours / 1e3;
    rows.push(small(Measure::Mean, "write", "ib_write_bw -t 1", ours, 1.0 / theirs, None));
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_medians_in_one_unit() {
        let mut output = String::new();
        for value in [3, 1, 2] {
            let rates = ["write 65536", "write 1048576", "read 65536", "read 1048576"];
            for what in rates.into_iter().chain(["ping-pong 8", "read 8", "write 8"]) {
                output.push_str(&format!(
                    "figure ours {what} 0.00{value}\nfigure theirs {what} {value}\nnoise\n"
                ));
            }
        }
        let rows = rows(&figures(&output)).unwrap();
        assert_eq!(rows.len(), 7);
        assert!((rows[0].ours - 0.002).abs() < 1e-9 && (rows[0].theirs - 0.002_097_152).abs() < 1e-9);
        assert!(rows.iter().all(|row| !row.is_short()));
        // Eight bytes at 2 MB/s, and two million messages a second.
        assert!((rows[6].ours - 4.0).abs() < 1e-9 && (rows[6].theirs - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_figure_that_is_missing_is_named() {
        let error = rows(&figures("figure ours write 65536 x\n")).err().unwrap().to_string();
        assert_eq!(error, "the guest printed no figure `ours write 65536`");
    }
}
