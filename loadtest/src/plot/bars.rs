//! Bars beside each other, one for each of those that are compared.

use std::fmt::Write as _;

use super::{COLOURS, LEFT, RIGHT, WIDTH, short, text};

/// What is compared: a bar for each.
#[derive(Clone, Debug)]
pub struct Bars {
    /// What the bars show, with the unit.
    pub title: String,
    /// The bars, from top to bottom.
    pub bars: Vec<Bar>,
}

/// One of them.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// Its length.
    pub value: f64,
    /// The single rounds, each a mark on it.
    pub rounds: Vec<f64>,
    /// Ours, which has a colour of its own.
    pub is_ours: bool,
}

const TITLE: f64 = 36.0;
const ROW: f64 = 24.0;
const BAR: f64 = 15.0;
const BELOW: f64 = 14.0;
/// Names stand before their bars.
const NAMES: f64 = 270.0;

impl Bars {
    pub(super) fn height(&self) -> f64 {
        TITLE + ROW * self.bars.len() as f64 + BELOW
    }

    pub(super) fn draw(&self, out: &mut String, top: f64) {
        let all = self.bars.iter().flat_map(|bar| bar.rounds.iter().chain([&bar.value]));
        let longest = all.copied().fold(f64::MIN_POSITIVE, f64::max);
        let (left, width) = (LEFT + NAMES, WIDTH - LEFT - NAMES - RIGHT / 2.0);
        let to = |value: f64| left + value / longest * width;
        text(out, (LEFT, top + 22.0), "start", 13, &self.title);
        for (row, bar) in self.bars.iter().enumerate() {
            let y = top + TITLE + ROW * row as f64;
            let colour = if bar.is_ours { COLOURS[0] } else { COLOURS[6] };
            let _ = writeln!(
                out,
                "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>",
                to(bar.value) - left
            );
            for round in &bar.rounds {
                let _ = writeln!(
                    out,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\" fill=\"#222222\"/>",
                    to(*round),
                    y + BAR / 2.0
                );
            }
            text(out, (left - 8.0, y + 12.0), "end", 11, &bar.name);
            let end = bar.rounds.iter().copied().fold(bar.value, f64::max);
            text(out, (to(end) + 8.0, y + 12.0), "start", 11, &short(bar.value));
        }
    }
}
