//! Numbers of many slices, summarised by their median and quartiles.

use std::fmt;
use std::time::Duration;

/// The quartiles of the slices' values.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spread {
    /// The first quartile.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// The third quartile.
    pub high: f64,
}

impl Spread {
    /// The quartiles of some values.
    ///
    /// # Panics
    /// If there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Spread {
            low: at(&values, 0.25),
            median: at(&values, 0.5),
            high: at(&values, 0.75),
        }
    }
}

/// The value at this share, interpolated between the two nearest values.
fn at(sorted: &[f64], share: f64) -> f64 {
    let place = (sorted.len() - 1) as f64 * share;
    let (below, above) = (
        sorted[place.floor() as usize],
        sorted[place.ceil() as usize],
    );
    below + (above - below) * place.fract()
}

/// `1.23 (1.20 to 1.31)`, with the decimals asked for.
impl fmt::Display for Spread {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = out.precision().unwrap_or(1);
        let Spread { low, median, high } = self;
        write!(
            out,
            "{median:.decimals$} ({low:.decimals$} to {high:.decimals$})"
        )
    }
}

/// The latency, in milliseconds, that this share of all stays below.
///
/// # Panics
/// If there are none.
pub fn percentile(latencies: &mut [Duration], share: f64) -> f64 {
    latencies.sort_unstable();
    let place = (latencies.len() as f64 * share) as usize;
    latencies[place.min(latencies.len() - 1)].as_secs_f64() * 1e3
}
