//! The rates as a picture: gigabytes per second over the block size, one line for each direction, batch and side.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::report::{Row, op};
use crate::failure::{Failure, Result};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 520.0;
/// Around the drawing: for the numbers at its left and below it, and for the legend at its right.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 210.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 50.0;
/// Told apart by people who see colours differently, too.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f"];

/// Writes the picture.
pub(super) fn write(file: &Path, rows: &[Row]) -> Result<()> {
    std::fs::write(file, draw(&lines(rows)))
        .map_err(|error| Failure::io(format!("cannot write {}", file.display()), &error))
}

/// Points by the name of their line: block and rate.
type Lines = BTreeMap<String, Vec<(u64, f64)>>;

fn lines(rows: &[Row]) -> Lines {
    let mut lines = Lines::new();
    for row in rows {
        let name = |side: &str| format!("{side} {} x {}", op(row.shape), row.shape.batch);
        lines.entry(name("te")).or_default().push((row.shape.block, row.engine.median()));
        if let Some(raw) = &row.raw {
            lines.entry(name("raw")).or_default().push((row.shape.block, raw.median()));
        }
    }
    lines.values_mut().for_each(|points| points.sort_by_key(|(block, _)| *block));
    lines
}

/// Where blocks and rates are in the drawing. Blocks double from left to right.
struct Scale {
    blocks: Vec<u64>,
    most: f64,
}

impl Scale {
    fn of(lines: &Lines) -> Self {
        let points = || lines.values().flatten();
        let mut blocks: Vec<u64> = points().map(|(block, _)| *block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let most = points().map(|(_, rate)| *rate).fold(0.0, f64::max).max(0.1);
        // A round number above the highest.
        let step = 10_f64.powf(most.log10().floor());
        Self { blocks, most: (most / step).ceil() * step }
    }

    fn x(&self, block: u64) -> f64 {
        let log = |block: u64| (block.max(1) as f64).log2();
        let (first, last) = (self.blocks.first().copied(), self.blocks.last().copied());
        let span = last.map_or(0.0, log) - first.map_or(0.0, log);
        let share = if span > 0.0 { (log(block) - first.map_or(0.0, log)) / span } else { 0.5 };
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, rate: f64) -> f64 {
        HEIGHT - BOTTOM - rate / self.most * (HEIGHT - TOP - BOTTOM)
    }
}

fn draw(lines: &Lines) -> String {
    let scale = Scale::of(lines);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    // Writing to a string cannot fail.
    for part in 0..=5 {
        let rate = scale.most * f64::from(part) / 5.0;
        let (y, right) = (scale.y(rate), WIDTH - RIGHT);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#dddddd\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{rate:.1}</text>",
            LEFT - 6.0,
            y + 4.0
        );
    }
    for block in &scale.blocks {
        let (x, y) = (scale.x(*block), HEIGHT - BOTTOM + 18.0);
        let text = te_engine::size::bytes(*block);
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{text}</text>");
    }
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"18\">GB/s over block size, median of the rounds</text>");
    for (index, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let path: Vec<String> = points
            .iter()
            .map(|(block, rate)| format!("{:.1} {:.1}", scale.x(*block), scale.y(*rate)))
            .collect();
        // Plain sockets are dashed.
        let dash = if name.starts_with("raw") { " stroke-dasharray=\"5 3\"" } else { "" };
        let _ = writeln!(
            svg,
            "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
            path.join("L")
        );
        for (block, rate) in points {
            let (x, y) = (scale.x(*block), scale.y(*rate));
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"><title>{name}, {}: {rate:.2} \
                 GB/s</title></circle>",
                te_engine::size::bytes(*block)
            );
        }
        let y = TOP + 18.0 * index as f64;
        let _ = writeln!(
            svg,
            "<path d=\"M{:.1} {y:.1}h24\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/><text x=\"{:.1}\" \
             y=\"{:.1}\">{name}</text>",
            WIDTH - RIGHT + 16.0,
            WIDTH - RIGHT + 46.0,
            y + 4.0
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_and_point_is_in_the_picture() {
        let lines = Lines::from([
            ("te write x 1".to_owned(), vec![(4096, 0.5), (1 << 20, 7.0)]),
            ("raw write x 1".to_owned(), vec![(4096, 0.4), (1 << 20, 3.3)]),
        ]);
        let svg = draw(&lines);
        assert_eq!(svg.matches("<circle").count(), 4);
        assert_eq!(svg.matches("stroke-dasharray").count(), 2);
        for text in [
            ">te write x 1<",
            ">raw write x 1<",
            ">4 KiB<",
            ">1 MiB<",
            "te write x 1, 1 MiB: 7.00 GB/s",
            "</svg>",
        ] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
    }

    #[test]
    fn points_are_inside_the_drawing() {
        let lines = Lines::from([("te".to_owned(), vec![(1, 0.0), (1 << 40, 12.3)])]);
        let scale = Scale::of(&lines);
        assert_eq!((scale.x(1), scale.x(1 << 40)), (LEFT, WIDTH - RIGHT));
        assert!((scale.y(0.0) - (HEIGHT - BOTTOM)).abs() < 1e-9);
        assert!(scale.y(12.3) >= TOP);
        // One block and no rate at all are drawn as well.
        assert!(draw(&Lines::from([("te".to_owned(), vec![(4096, 0.0)])])).contains("<circle"));
    }
}
