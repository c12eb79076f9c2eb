//! Figures as rows, and the page they are written to.

use std::fmt;
use std::fs;
use std::path::Path;

use crate::Result;
use crate::shell::Cmd;

const BEGIN: &str = "<!-- figures: written by `cargo xtask bench` -->";
const END: &str = "<!-- end of figures -->";

/// What is compared, and in which direction it is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// Gigabytes (1e9 bytes) per second: more is better.
    Rate,
    /// Microseconds of a batch, the median: less is better.
    Latency,
    /// CPU seconds of both sides for a gigabyte: less is better.
    Cpu,
}

impl Measure {
    fn unit(self) -> &'static str {
        match self {
            Self::Rate => "GB/s",
            Self::Latency => "us p50",
            Self::Cpu => "CPU s/GB",
        }
    }
}

/// Ours beside a yardstick.
pub(super) struct Row {
    pub(super) measure: Measure,
    pub(super) op: String,
    /// How our initiator speaks.
    pub(super) framing: &'static str,
    pub(super) block: u64,
    pub(super) batch: u64,
    pub(super) yardstick: &'static str,
    pub(super) ours: f64,
    pub(super) theirs: f64,
    /// The ratio that is promised, if one is: at least for a rate, at most for others.
    pub(super) promised: Option<f64>,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours / self.theirs
    }

    pub(super) fn is_short(&self) -> bool {
        self.promised.is_some_and(|target| match self.measure {
            Measure::Rate => self.ratio() < target,
            Measure::Latency | Measure::Cpu => self.ratio() > target,
        })
    }

    fn verdict(&self) -> String {
        let bound = if self.measure == Measure::Rate { "at least" } else { "at most" };
        match self.promised {
            None => "measured".to_owned(),
            Some(target) if self.is_short() => format!("short: {bound} {target}"),
            Some(target) => format!("met, {bound} {target}"),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<13} {:<6} {:>8} x {:<3} {:<17} {:>7.3} / {:>7.3} {:<8} = {:>5.2}  {}",
            self.framing,
            self.op,
            size(self.block),
            self.batch,
            self.yardstick,
            self.ours,
            self.theirs,
            self.measure.unit(),
            self.ratio(),
            self.verdict()
        )
    }
}

pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values {
        [] => f64::NAN,
        values if values.len() % 2 == 1 => values[middle],
        values => f64::midpoint(values[middle - 1], values[middle]),
    }
}

fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// Replaces the figures of the page.
pub(super) fn write(page: &Path, rows: &[Row]) -> Result<()> {
    let text = fs::read_to_string(page)?;
    fs::write(
        page,
        replaced(&text, &figures(rows)?).ok_or("docs/performance.md has no place for the figures")?,
    )?;
    Ok(())
}

fn replaced(text: &str, figures: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{figures}\n{END}{after}"))
}

fn figures(rows: &[Row]) -> Result<String> {
    let date = Cmd::new("date").arg("+%Y-%m-%d").read()?;
    let machine = Cmd::new("uname").args(["-srm"]).read()?;
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut text = format!("Taken on {} ({}, {cores} cores).\n\n", date.trim(), machine.trim());
    text.push_str("| ours | op | block | batch | beside | in | ours | theirs | ratio | |\n");
    text.push_str("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for row in rows {
        text.push_str(&format!(
            "| {} | {} | {} | {} | {} | {} | {:.3} | {:.3} | {:.2} | {} |\n",
            row.framing,
            row.op,
            size(row.block),
            row.batch,
            row.yardstick,
            row.measure.unit(),
            row.ours,
            row.theirs,
            row.ratio(),
            row.verdict()
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ours: f64, promised: Option<f64>) -> Row {
        Row {
            measure: Measure::Rate,
            op: "write".into(),
            framing: "v2",
            block: 65_536,
            batch: 16,
            yardstick: "raw socket pair",
            ours,
            theirs: 2.0,
            promised,
        }
    }

    #[test]
    fn ratio_below_the_promise_is_short() {
        assert!(row(1.5, Some(0.8)).is_short());
        assert!(!row(1.6, Some(0.8)).is_short());
        assert!(!row(0.1, None).is_short());
        for measure in [Measure::Latency, Measure::Cpu] {
            assert!(Row { measure, ..row(2.3, Some(1.1)) }.is_short());
            assert!(!Row { measure, ..row(2.1, Some(1.1)) }.is_short());
        }
    }

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&mut []).is_nan());
    }

    #[test]
    fn only_the_figures_of_the_page_are_replaced() {
        let page = format!("before\n{BEGIN}\nold\n{END}\nafter");
        assert_eq!(replaced(&page, "new"), Some(format!("before\n{BEGIN}\n\nnew\n{END}\nafter")));
        assert_eq!(replaced("no place", "new"), None);
    }
}
