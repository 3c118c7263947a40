//! A plot as SVG: bars, and lines over axes, in panels one below the other. Pure: text in, text out.

mod bars;

use std::fmt::Write as _;

pub use bars::{Bar, Bars};

/// How values are laid along the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From 0.
    Linear,
    /// By powers of ten.
    Log,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Its points, by x.
    pub points: Vec<(f64, f64)>,
}

/// One pair of axes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What it shows.
    pub title: String,
    /// What x is, with its unit.
    pub x: String,
    /// What y is, with its unit.
    pub y: String,
    /// How y is laid out.
    pub y_scale: Scale,
    /// x is the part that was longer (1, 0.1, 0.01 …) and is shown as percentiles, from 0 to the right.
    pub x_is_tail: bool,
    /// The lines.
    pub curves: Vec<Curve>,
    /// Moments worth a mark, with their names.
    pub marks: Vec<(f64, String)>,
}

const WIDTH: f64 = 1060.0;
const PANEL: f64 = 300.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 330.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// Told apart also by those who do not see all colours.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#222222"];
const MARK: &str = "#b00020";

/// The whole picture.
#[must_use]
pub fn svg(title: &str, bars: &[Bars], panels: &[Panel]) -> String {
    let of_bars: f64 = bars.iter().map(Bars::height).sum();
    let height = 40.0 + of_bars + PANEL * panels.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    text(&mut out, (LEFT, 26.0), "start", 16, title);
    let mut top = 40.0;
    for bars in bars {
        bars.draw(&mut out, top);
        top += bars.height();
    }
    for (index, panel) in panels.iter().enumerate() {
        draw(&mut out, panel, top + PANEL * index as f64);
    }
    out.push_str("</svg>\n");
    out
}

/// An axis: what lies at its ends, and where it is marked.
struct Axis {
    low: f64,
    high: f64,
    scale: Scale,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Where a value lies, 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        place.clamp(0.0, 1.0)
    }

    fn linear(high: f64) -> Self {
        let high = if high > 0.0 { high } else { 1.0 };
        let step = round_step(high / 5.0);
        let last = (high / step).ceil() as u32;
        let ticks = (0..=last).map(|tick| (f64::from(tick) * step, short(f64::from(tick) * step))).collect();
        Self { low: 0.0, high: f64::from(last) * step, scale: Scale::Linear, ticks }
    }

    fn log(low: f64, high: f64) -> Self {
        let first = low.max(1e-6).log10().floor() as i32;
        let last = (high.max(1e-6).log10().ceil() as i32).max(first + 1);
        let ticks = (first..=last).map(|power| (10_f64.powi(power), short(10_f64.powi(power)))).collect();
        Self { low: 10_f64.powi(first), high: 10_f64.powi(last), scale: Scale::Log, ticks }
    }

    /// 1, 0.1, 0.01 … as the percentiles 0, 90, 99 …
    fn tail(smallest: f64) -> Self {
        let last = (-smallest.max(1e-9).log10()).ceil().max(1.0) as usize;
        let names = ["0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %"];
        let ticks = (0..=last)
            .map(|power| {
                (10_f64.powi(power as i32), names.get(power).map_or_else(String::new, |name| (*name).into()))
            })
            .collect();
        Self { low: 1.0, high: 10_f64.powi(last as i32), scale: Scale::Log, ticks }
    }
}

/// 1, 2 or 5 times a power of ten, no smaller than `step`.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|times| times * power)
        .find(|round| *round >= step * 0.999)
        .unwrap_or(step)
}

fn short(value: f64) -> String {
    if value >= 1e6 {
        format!("{}M", trim(value / 1e6))
    } else if value >= 1e3 {
        format!("{}k", trim(value / 1e3))
    } else {
        trim(value)
    }
}

fn trim(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn draw(out: &mut String, panel: &Panel, top: f64) {
    let x_of = |x: f64| if panel.x_is_tail { 1.0 / x.max(1e-9) } else { x };
    let points = || panel.curves.iter().flat_map(|curve| curve.points.iter().copied());
    let highest = points().map(|(_, y)| y).fold(0.0, f64::max);
    let x_axis = if panel.x_is_tail {
        Axis::tail(points().map(|(x, _)| x).fold(1.0, f64::min))
    } else {
        Axis::linear(points().map(|(x, _)| x).fold(0.0, f64::max))
    };
    let y_axis = match panel.y_scale {
        Scale::Linear => Axis::linear(highest),
        Scale::Log => Axis::log(
            points()
                .map(|(_, y)| y)
                .filter(|y| *y > 0.0)
                .fold(f64::INFINITY, f64::min)
                .min(highest.max(1e-3)),
            highest,
        ),
    };
    let (width, height) = (WIDTH - LEFT - RIGHT, PANEL - TOP - BOTTOM);
    let (floor, ceiling) = (top + TOP + height, top + TOP);
    let at = |x: f64, y: f64| (LEFT + x_axis.place(x_of(x)) * width, floor - y_axis.place(y) * height);

    text(out, (LEFT, ceiling - 10.0), "start", 13, &panel.title);
    for (value, name) in &y_axis.ticks {
        let y = floor - y_axis.place(*value) * height;
        line(out, (LEFT, y), (LEFT + width, y), "#dddddd");
        text(out, (LEFT - 6.0, y + 4.0), "end", 11, name);
    }
    for (value, name) in &x_axis.ticks {
        let x = LEFT + x_axis.place(*value) * width;
        line(out, (x, floor), (x, floor + 4.0), "#888888");
        text(out, (x, floor + 17.0), "middle", 11, name);
    }
    line(out, (LEFT, floor), (LEFT + width, floor), "#888888");
    line(out, (LEFT, floor), (LEFT, ceiling), "#888888");
    text(out, (LEFT + width / 2.0, floor + 34.0), "middle", 11, &panel.x);
    let middle = ceiling + height / 2.0;
    let _ = writeln!(
        out,
        "<text x=\"18\" y=\"{middle:.1}\" text-anchor=\"middle\" font-size=\"11\" transform=\"rotate(-90 18 {middle:.1})\">{}</text>",
        escaped(&panel.y)
    );
    for (x, name) in &panel.marks {
        let (x, _) = at(*x, 0.0);
        line(out, (x, floor), (x, ceiling), MARK);
        text(out, (x + 3.0, ceiling + 10.0), "start", 10, name);
    }
    for (index, curve) in panel.curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mut path = String::new();
        for (x, y) in &curve.points {
            let (x, y) = at(*x, *y);
            let _ = write!(path, "{x:.1},{y:.1} ");
        }
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>",
            path.trim_end()
        );
        let y = ceiling + 8.0 + 17.0 * index as f64;
        let x = LEFT + width + 14.0;
        let _ =
            writeln!(out, "<rect x=\"{x}\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>", y - 6.0);
        text(out, (x + 20.0, y), "start", 11, &curve.name);
    }
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let _ = writeln!(
        out,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(out: &mut String, at: (f64, f64), anchor: &str, size: u32, words: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{}</text>",
        at.0,
        at.1,
        escaped(words)
    );
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        let axis = Axis::linear(48_215.0);
        assert_eq!(axis.high, 50_000.0);
        assert_eq!(axis.ticks.last().map(|tick| tick.1.as_str()), Some("50k"));
        assert_eq!((axis.place(0.0), axis.place(25_000.0), axis.place(99_000.0)), (0.0, 0.5, 1.0));
        let axis = Axis::log(0.3, 450.0);
        assert_eq!((axis.low, axis.high), (0.1, 1_000.0));
        assert!((axis.place(10.0) - 0.5).abs() < 1e-9);
        let axis = Axis::tail(0.000_4);
        assert_eq!(
            axis.ticks.iter().map(|tick| tick.1.as_str()).collect::<Vec<_>>(),
            ["0 %", "90 %", "99 %", "99.9 %", "99.99 %"]
        );
    }

    #[test]
    fn a_picture_is_well_formed_whatever_the_names_and_even_without_points() {
        let panel = |points: Vec<(f64, f64)>, y_scale| Panel {
            title: "rates <&>".into(),
            x: "s".into(),
            y: "per s".into(),
            y_scale,
            x_is_tail: false,
            curves: vec![Curve { name: "a \"b\"".into(), points }],
            marks: vec![(1.0, "kill".into())],
        };
        let bar = |value, rounds| Bar { name: "<b>".into(), value, rounds, is_ours: true };
        let bars = [
            Bars { title: "none".into(), bars: vec![] },
            Bars { title: "two".into(), bars: vec![bar(0.0, vec![]), bar(2.0, vec![1.0, 2.0])] },
        ];
        let panels = [panel(vec![], Scale::Log), panel(vec![(0.0, 0.0), (2.0, 3.0)], Scale::Linear)];
        let picture = svg("x", &bars, &panels);
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        assert!(picture.contains("rates &lt;&amp;&gt;") && picture.contains("a &quot;b&quot;"));
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        assert_eq!(picture.matches("<polyline").count(), 2);
        assert_eq!(picture.matches("<circle").count(), 2);
        assert!(picture.contains("&lt;b&gt;"));
    }
}
