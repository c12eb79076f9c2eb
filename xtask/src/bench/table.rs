//! Figures as rows, and the page they are written to.

use std::fmt;
use std::fs;
use std::path::Path;

use crate::Result;
use crate::shell::Cmd;

const END: &str = "<!-- end of figures -->";

/// What is compared, and in which direction it is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Gigabytes (1e9 bytes) per second: more is better.
    Rate,
    /// Microseconds of a batch, the median: less is better.
    Latency,
    /// Microseconds of a batch, the mean: less is better.
    Mean,
    /// CPU seconds of both sides for a gigabyte: less is better.
    Cpu,
}

impl Measure {
    fn unit(self) -> &'static str {
        match self {
            Self::Rate => "GB/s",
            Self::Latency => "us p50",
            Self::Mean => "us mean",
            Self::Cpu => "CPU s/GB",
        }
    }
}

/// Ours beside a yardstick.
pub(crate) struct Row {
    pub(crate) measure: Measure,
    pub(crate) op: String,
    /// How our initiator speaks.
    pub(crate) framing: &'static str,
    pub(crate) block: u64,
    pub(crate) batch: u64,
    pub(crate) yardstick: &'static str,
    pub(crate) ours: f64,
    pub(crate) theirs: f64,
    /// The ratio that is promised, if one is: at least for a rate, at most for others.
    pub(crate) promised: Option<f64>,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours / self.theirs
    }

    pub(crate) fn is_short(&self) -> bool {
        self.promised.is_some_and(|target| match self.measure {
            Measure::Rate => self.ratio() < target,
            Measure::Latency | Measure::Mean | Measure::Cpu => self.ratio() > target,
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

pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values {
        [] => f64::NAN,
        values if values.len() % 2 == 1 => values[middle],
        values => f64::midpoint(values[middle - 1], values[middle]),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// Replaces the figures of a command on the page.
pub(crate) fn write(page: &Path, command: &str, rows: &[Row]) -> Result<()> {
    let text = fs::read_to_string(page)?;
    let replaced = replaced(&text, command, &figures(rows)?);
    fs::write(page, replaced.ok_or_else(|| format!("{} has no place for the figures", page.display()))?)?;
    Ok(())
}

fn replaced(text: &str, command: &str, figures: &str) -> Option<String> {
    let begin = format!("<!-- figures: written by `cargo xtask {command}` -->");
    let (before, rest) = text.split_once(&begin)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{begin}\n\n{figures}\n{END}{after}"))
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
        for measure in [Measure::Latency, Measure::Mean, Measure::Cpu] {
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
    fn only_the_figures_of_the_command_are_replaced() {
        let begin = |command| format!("<!-- figures: written by `cargo xtask {command}` -->");
        let page = |a: &str, b: &str| {
            format!("before\n{}{a}{END}\nbetween\n{}{b}{END}\nafter", begin("bench"), begin("guest-bench"))
        };
        let new = "\n\nnew\n";
        assert_eq!(replaced(&page("x", "y"), "bench", "new"), Some(page(new, "y")));
        assert_eq!(replaced(&page("x", "y"), "guest-bench", "new"), Some(page("x", new)));
        assert_eq!(replaced("no place", "bench", "new"), None);
    }
}
