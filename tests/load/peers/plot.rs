//! Bars as SVG, small enough to keep beside the code: legible on light and on dark, with quartiles, an axis and its unit.

use std::fmt::Write as _;

use super::figures::Spread;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 270.0;
const RIGHT: f64 = 70.0;
const TOP: f64 = 58.0;
const ROW: f64 = 24.0;
const BAR: f64 = 15.0;
const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1f2328}.head{font-weight:600}.card{fill:#fff}\
    .grid{stroke:#d0d7de}.whisker{stroke:#1f2328;stroke-width:1.5}.ours{fill:#1a7f5a}.peers{fill:#8c959f}.second{fill:#bf8700}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.card{fill:#161b22}.grid{stroke:#30363d}.whisker{stroke:#e6edf3}\
    .ours{fill:#2ea97b}.peers{fill:#7d8590}.second{fill:#d29922}}";

/// The owner of a bar.
#[derive(Debug, Clone, Copy)]
pub enum Whose {
    /// A bar of Touchline.
    Ours,
    /// A bar of a peer.
    Peers,
}

/// One row.
pub struct Bar {
    /// The label before the bar.
    pub name: String,
    /// The owner, which selects the colour.
    pub whose: Whose,
    /// The bar's first part; the second extends to the median of `whole`.
    pub first: f64,
    /// The bar's end, with quartiles.
    pub whole: Spread,
}

/// A plot.
pub struct Plot<'a> {
    /// The title above the plot.
    pub title: &'a str,
    /// The label under the axis, with the unit.
    pub axis: &'a str,
    /// The meanings of a bar's first and second part.
    pub parts: [&'a str; 2],
    /// The decimals of the figures at the bars.
    pub decimals: usize,
    /// The rows, from top to bottom.
    pub bars: Vec<Bar>,
}

impl Plot<'_> {
    /// The whole file.
    pub fn svg(&self) -> String {
        let bottom = TOP + self.bars.len() as f64 * ROW;
        let height = bottom + 48.0;
        let most = self
            .bars
            .iter()
            .map(|bar| bar.whole.high.max(bar.whole.median));
        let step = step(most.fold(f64::MIN_POSITIVE, f64::max));
        let ticks = self
            .bars
            .iter()
            .map(|bar| bar.whole.high / step)
            .fold(0.0, f64::max)
            .ceil();
        let x = |value: f64| LEFT + value / (ticks * step) * (WIDTH - LEFT - RIGHT);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{0}\">\n\
             <style>{STYLE}</style>\n<rect class=\"card\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>\n\
             <text class=\"head\" x=\"16\" y=\"24\">{0}</text>\n",
            self.title
        );
        self.legend(&mut svg);
        for tick in 0..=ticks as u32 {
            let value = f64::from(tick) * step;
            let decimals = usize::from(step < 1.0) + usize::from(step < 0.1);
            let at = x(value);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
                 <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{value:.decimals$}</text>",
                bottom + 17.0
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(LEFT, WIDTH - RIGHT),
            bottom + 36.0,
            self.axis
        );
        for (number, bar) in self.bars.iter().enumerate() {
            self.row(&mut svg, TOP + number as f64 * ROW, bar, x);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn legend(&self, svg: &mut String) {
        let [first, second] = self.parts;
        let _ = writeln!(
            svg,
            "<rect class=\"ours\" x=\"{LEFT}\" y=\"35\" width=\"12\" height=\"12\"/>\
             <rect class=\"peers\" x=\"{}\" y=\"35\" width=\"12\" height=\"12\"/><text x=\"{}\" y=\"46\">{first}</text>\
             <rect class=\"second\" x=\"{}\" y=\"35\" width=\"12\" height=\"12\"/><text x=\"{}\" y=\"46\">{second}; \
             whiskers: quartiles</text>",
            LEFT + 14.0,
            LEFT + 32.0,
            LEFT + 210.0,
            LEFT + 228.0,
        );
    }

    fn row(&self, svg: &mut String, top: f64, bar: &Bar, x: impl Fn(f64) -> f64) {
        let class = match bar.whose {
            Whose::Ours => "ours",
            Whose::Peers => "peers",
        };
        let Spread { low, median, high } = bar.whole;
        let (bar_top, middle) = (top + (ROW - BAR) / 2.0, top + ROW / 2.0);
        let (base, first, end) = (x(0.0), x(bar.first), x(median));
        let decimals = self.decimals;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"{class}\" x=\"{base:.1}\" y=\"{bar_top}\" width=\"{:.1}\" height=\"{BAR}\"/>\
             <rect class=\"second\" x=\"{first:.1}\" y=\"{bar_top}\" width=\"{:.1}\" height=\"{BAR}\"/>\
             <line class=\"whisker\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{median:.decimals$}</text>",
            LEFT - 10.0,
            middle + 4.5,
            bar.name,
            first - base,
            (end - first).max(0.0),
            x(low),
            x(high),
            x(high.max(median)) + 6.0,
            middle + 4.5,
        );
    }
}

/// The distance of ticks: 1, 2 or 5 times a power of ten, so that there are up to ten ticks.
fn step(most: f64) -> f64 {
    let magnitude = 10_f64.powf(most.log10().floor() - 1.0);
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * magnitude);
    let fits = steps.into_iter().find(|step| most / step <= 10.0);
    fits.unwrap_or(10.0 * magnitude)
}
