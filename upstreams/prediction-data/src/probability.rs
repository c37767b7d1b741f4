//! Probabilities as they are published: whole ten-thousandths.
//!
//! Rounding each of several probabilities on its own leaves sums such as 0.9999. Here the outcomes of one event are rounded
//! together ([`apportion`], the largest-remainder method), so what a customer reads sums to exactly 1.

use serde::{Serialize, Serializer};

/// Ten-thousandths in a whole: four decimals, finer than any bookmaker quotes.
const WHOLE: u16 = 10_000;

/// A published probability or share, 0 to 1 in steps of 0.0001. Written to JSON as a number such as `0.4567`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Probability(u16);

impl Probability {
    /// The impossible.
    pub const ZERO: Self = Self(0);
    /// The certain.
    pub const ONE: Self = Self(WHOLE);

    /// The probability in ten-thousandths, 0 to 10,000.
    pub fn ten_thousandths(self) -> u16 {
        self.0
    }

    /// The probability as a fraction of 1.
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / f64::from(WHOLE)
    }

    /// The probability in percent.
    pub fn percent(self) -> f64 {
        f64::from(self.0) / 100.0
    }

    /// The probability that either of two events happens that exclude each other; at most 1.
    pub fn or(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0).min(WHOLE))
    }

    /// The decimal odds at which a bet neither wins nor loses in the long run, two decimals; `None` at probability 0.
    pub fn fair_odds(self) -> Option<f64> {
        (self.0 > 0).then(|| rounded(1.0 / self.fraction(), 2))
    }
}

impl Serialize for Probability {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.fraction())
    }
}

/// The shares of `weights` in their sum, rounded so that they sum to exactly 1.
///
/// Weights that are negative or not finite count as 0; all of them 0 gives shares of 0. Equal remainders go to the earlier place,
/// so the result does not depend on anything but the weights.
pub fn apportion<const N: usize>(weights: [f64; N]) -> [Probability; N] {
    let mut shares = [Probability::ZERO; N];
    spread(&weights, &mut shares);
    shares
}

/// [`apportion`] for a number of weights known only at run time.
pub fn apportion_all(weights: &[f64]) -> Vec<Probability> {
    let mut shares = vec![Probability::ZERO; weights.len()];
    spread(weights, &mut shares);
    shares
}

/// `value` to `decimals` decimals, half away from zero.
pub fn rounded(value: f64, decimals: u8) -> f64 {
    let scale = 10_f64.powi(i32::from(decimals));
    (value * scale).round() / scale
}

fn spread(weights: &[f64], shares: &mut [Probability]) {
    let usable = |weight: f64| {
        if weight.is_finite() {
            weight.max(0.0)
        } else {
            0.0
        }
    };
    let sum: f64 = weights.iter().copied().map(usable).sum();
    if sum <= 0.0 {
        return;
    }
    let mut remainders = Vec::with_capacity(weights.len());
    let mut left = WHOLE;
    for (weight, share) in weights.iter().zip(shares.iter_mut()) {
        let exact = usable(*weight) / sum * f64::from(WHOLE);
        // The floor of a value between 0 and 10,000: the cast loses nothing.
        let floor = (exact.floor() as u16).min(left);
        left -= floor;
        *share = Probability(floor);
        remainders.push((exact - f64::from(floor), share));
    }
    // A stable sort: equal remainders keep the order of their places.
    remainders.sort_by(|one, other| other.0.total_cmp(&one.0));
    for (_, share) in remainders.into_iter().take(usize::from(left)) {
        share.0 += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_sum_to_exactly_one_and_keep_the_order_of_their_weights() {
        for weights in [
            [1.0, 1.0, 1.0],
            [0.45671, 0.26664, 0.27665],
            [1e-9, 1.0, 2.0],
            [7.0, 0.0, 0.0],
        ] {
            let [one, two, three] = apportion(weights);
            assert_eq!(one.0 + two.0 + three.0, WHOLE, "{weights:?}");
            let [a, b, c] = weights;
            assert!(a >= b || one <= two, "{weights:?}");
            assert!(b >= c || two <= three, "{weights:?}");
        }
    }

    #[test]
    fn weights_that_are_no_numbers_get_no_share() {
        assert_eq!(
            apportion([f64::NAN, 2.0, -1.0]),
            [Probability::ZERO, Probability::ONE, Probability::ZERO]
        );
        assert_eq!(apportion([0.0, 0.0]), [Probability::ZERO; 2]);
        assert!(apportion_all(&[]).is_empty());
    }

    #[test]
    fn fair_odds_are_the_inverse_of_the_probability() {
        assert_eq!(Probability(5_000).fair_odds(), Some(2.0));
        assert_eq!(Probability(3_333).fair_odds(), Some(3.0));
        assert_eq!(Probability::ONE.fair_odds(), Some(1.0));
        assert_eq!(Probability::ZERO.fair_odds(), None);
    }

    #[test]
    fn json_shows_at_most_four_decimals() {
        for ten_thousandths in 0..=WHOLE {
            let text = serde_json::to_string(&Probability(ten_thousandths)).unwrap_or_default();
            assert!(text.len() <= "0.1234".len(), "{text}");
        }
    }
}
