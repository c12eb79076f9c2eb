//! Standard output: tables for people, one JSON value a line for programs.

use std::io::{self, Write};

use serde_json::Value;

use crate::failure::{Failure, Result};

fn written(outcome: io::Result<()>) -> Result<()> {
    outcome.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::io("cannot write to standard output", &error),
    })
}

/// One line.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    written(writeln!(out, "{text}").and_then(|()| out.flush()))
}

/// One JSON value on one line.
pub(crate) fn json(value: &Value) -> Result<()> {
    line(&value.to_string())
}

/// Which side of its column a cell stands at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A table with a head line.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row of as many cells as there are columns.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(crate) fn print(&self) -> Result<()> {
        line(self.render().trim_end_matches('\n'))
    }

    pub(crate) fn render(&self) -> String {
        let head: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let all = || std::iter::once(&head).chain(&self.rows);
        let width = |column: usize| {
            all().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut text = String::new();
        for row in all() {
            let mut rendered = String::new();
            for ((cell, width), (_, align)) in row.iter().zip(&widths).zip(&self.columns) {
                let padding = " ".repeat(width - cell.chars().count());
                match align {
                    Align::Left => rendered.extend([cell.as_str(), &padding]),
                    Align::Right => rendered.extend([padding.as_str(), cell]),
                }
                rendered.push_str("  ");
            }
            text.push_str(rendered.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[("NAME", Align::Left), ("SIZE", Align::Right)]);
        table.row(["prefill-3".to_owned(), "4".to_owned()]);
        table.row(["d".to_owned(), "65536".to_owned()]);
        assert_eq!(table.render(), "NAME        SIZE\nprefill-3      4\nd          65536\n");
    }
}
