//! Which server of an upstream a request is sent to, as a pure choice among the available servers.
//!
//! Laws, each with a property below. Round robin: in a round of as many requests as the sum of the weights, each server gets as
//! many requests as its weight. Least loaded: no other server would have fewer requests in flight for its weight. By key: a
//! server that is added or removed moves no key between two others (rendezvous hashing with weights).

use std::cmp::Ordering;
use std::num::NonZeroU32;

use super::words::words;

words! {
    /// How servers are chosen (`upstreams.*.choice`).
    pub enum Choice {
        /// In turn, each as often as its weight.
        RoundRobin = "round_robin",
        /// The server with the fewest requests in flight for its weight; equal ones in turn.
        LeastLoaded = "least_loaded",
        /// The same server for the same API key, while that server is available.
        ByKey = "by_key",
    }
}

/// A server to choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Whether the server is considered healthy.
    pub up: bool,
    /// Whether this request was sent to the server before, and failed there.
    pub tried: bool,
    /// Whether it was sent to the server before, which did not act on it.
    pub asked: bool,
    /// Its share of the requests, relative to the other weights.
    pub weight: NonZeroU32,
    /// Its requests in flight.
    pub in_flight: u64,
    /// Identifies the server, the same on every gateway: [`identity`] of its name.
    pub identity: u64,
}

/// The inputs of the choice besides the candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occasion {
    /// The number of requests sent before.
    pub turn: u64,
    /// [`identity`] of the key that pays.
    pub key: u64,
}

/// The index of the chosen server, or `None` without candidates. Untried servers are preferred, among these the healthy ones, and
/// among these those that were not asked; without a healthy one, an unhealthy server is chosen rather than none.
pub fn choose(choice: Choice, occasion: Occasion, candidates: &[Candidate]) -> Option<usize> {
    let reserve = |candidate: &Candidate| (candidate.tried, !candidate.up, candidate.asked);
    let best = candidates.iter().map(reserve).min()?;
    let (places, candidates): (Vec<usize>, Vec<Candidate>) = candidates
        .iter()
        .copied()
        .enumerate()
        .filter(|(_, candidate)| reserve(candidate) == best)
        .unzip();
    let chosen = match choice {
        Choice::RoundRobin => in_turn(occasion.turn, &candidates),
        Choice::LeastLoaded => least_loaded(occasion.turn, &candidates),
        Choice::ByKey => by_key(occasion.key, &candidates),
    };
    places.get(chosen?).copied()
}

/// 64 bits of a name, by FNV-1a: the same in every process; not for security.
pub fn identity(name: impl AsRef<[u8]>) -> u64 {
    let bytes = name.as_ref().iter();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn in_turn(turn: u64, candidates: &[Candidate]) -> Option<usize> {
    let total: u64 = candidates.iter().map(weight).sum();
    // A step coprime to the total visits every position of a round once, and spreads a server's positions far apart.
    let mut position = u128::from(turn) * u128::from(step(total)) % u128::from(total.max(1));
    candidates.iter().position(|candidate| {
        let weight = u128::from(weight(candidate));
        let here = position < weight;
        position = position.saturating_sub(weight);
        here
    })
}

/// A number near the golden section of `total` and coprime to it.
fn step(total: u64) -> u64 {
    let golden = total.saturating_mul(618) / 1_000;
    (golden.max(1)..=total.max(1))
        .find(|step| divisor(*step, total) == 1)
        .unwrap_or(1)
}

/// The greatest common divisor.
fn divisor(one: u64, other: u64) -> u64 {
    match other {
        0 => one,
        other => divisor(other, one % other),
    }
}

fn least_loaded(turn: u64, candidates: &[Candidate]) -> Option<usize> {
    let first = turn.checked_rem(candidates.len() as u64)?;
    let first = usize::try_from(first).ok()?;
    let in_turn = (first..candidates.len()).chain(0..first);
    in_turn
        .filter_map(|place| Some((place, candidates.get(place)?)))
        // The first of those that compare equal.
        .min_by(|(_, one), (_, other)| load(one, other))
        .map(|(place, _)| place)
}

/// Compares the loads of two servers for their weights, each with one more request.
fn load(one: &Candidate, other: &Candidate) -> Ordering {
    let with_one_more = |candidate: &Candidate| u128::from(candidate.in_flight) + 1;
    let left = with_one_more(one) * u128::from(weight(other));
    let right = with_one_more(other) * u128::from(weight(one));
    left.cmp(&right)
}

fn by_key(key: u64, candidates: &[Candidate]) -> Option<usize> {
    let distance = |candidate: &Candidate| {
        -uniform(mixed(key ^ candidate.identity)).ln() / weight(candidate) as f64
    };
    let distances = candidates.iter().map(distance).enumerate();
    distances
        .min_by(|(_, one), (_, other)| one.total_cmp(other))
        .map(|(place, _)| place)
}

/// Strictly between 0 and 1.
fn uniform(bits: u64) -> f64 {
    ((bits >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}

/// The finalizer of SplitMix64: every bit of the input changes half of the output's.
fn mixed(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn weight(candidate: &Candidate) -> u64 {
    u64::from(candidate.weight.get())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
        vec((1_u32..=50, 0_u64..200), 1..8).prop_map(|servers| {
            let numbered = servers.into_iter().enumerate();
            numbered
                .map(|(number, (weight, in_flight))| Candidate {
                    up: true,
                    tried: false,
                    asked: false,
                    weight: NonZeroU32::new(weight).unwrap(),
                    in_flight,
                    identity: identity(format!("10.0.0.{number}:9000")),
                })
                .collect()
        })
    }

    fn equal(number: usize) -> Vec<Candidate> {
        let one = |number| Candidate {
            up: true,
            tried: false,
            asked: false,
            weight: NonZeroU32::MIN,
            in_flight: 0,
            identity: identity(format!("10.0.0.{number}:9000")),
        };
        (0..number).map(one).collect()
    }

    #[test]
    fn without_candidates_there_is_no_choice() {
        let occasion = Occasion { turn: 7, key: 7 };
        for choice in [Choice::RoundRobin, Choice::LeastLoaded, Choice::ByKey] {
            assert_eq!(choose(choice, occasion, &[]), None);
            assert_eq!(choose(choice, occasion, &equal(1)), Some(0));
        }
    }

    #[test]
    fn keys_are_spread_by_weight() {
        let mut candidates = equal(3);
        candidates[2].weight = NonZeroU32::new(2).unwrap();
        let mut asked = [0_u32; 3];
        for key in 0..40_000 {
            let key = identity(format!("key {key}"));
            asked[by_key(key, &candidates).unwrap()] += 1;
        }
        for (asked, share) in asked.into_iter().zip([10_000, 10_000, 20_000]) {
            assert!(asked.abs_diff(share) < share / 20, "{asked} of {share}");
        }
    }

    #[test]
    fn one_that_is_up_is_preferred_and_one_that_was_tried_is_the_last_resort() {
        let occasion = Occasion { turn: 5, key: 5 };
        for choice in [Choice::RoundRobin, Choice::LeastLoaded, Choice::ByKey] {
            let mut candidates = equal(4);
            for (candidate, (up, tried)) in candidates.iter_mut().zip([
                (true, true),
                (false, true),
                (false, false),
                (true, false),
            ]) {
                (candidate.up, candidate.tried) = (up, tried);
            }
            // When each is removed, the next best is chosen.
            for expected in [3, 2, 0] {
                assert_eq!(choose(choice, occasion, &candidates), Some(expected));
                (candidates[expected].up, candidates[expected].tried) = (false, true);
            }
        }
    }

    #[test]
    fn one_that_was_asked_comes_after_the_others_that_are_up() {
        let occasion = Occasion { turn: 5, key: 5 };
        for choice in [Choice::RoundRobin, Choice::LeastLoaded, Choice::ByKey] {
            let mut candidates = equal(3);
            candidates[0].asked = true;
            candidates[1].up = false;
            assert_eq!(choose(choice, occasion, &candidates), Some(2));
            candidates[2].tried = true;
            assert_eq!(choose(choice, occasion, &candidates), Some(0));
        }
    }

    proptest! {
        #[test]
        fn in_turn_each_is_chosen_as_often_as_its_weight(
            candidates in candidates(), start in 0_u64..1_000_000_000,
        ) {
            let total: u64 = candidates.iter().map(weight).sum();
            let mut asked = vec![0_u64; candidates.len()];
            for turn in start..start + total {
                asked[in_turn(turn, &candidates).unwrap()] += 1;
            }
            let weights: Vec<u64> = candidates.iter().map(weight).collect();
            prop_assert_eq!(asked, weights);
        }

        #[test]
        fn the_least_loaded_is_no_more_loaded_than_any_other(
            candidates in candidates(), turn in any::<u64>(),
        ) {
            let chosen = candidates[least_loaded(turn, &candidates).unwrap()];
            for other in &candidates {
                prop_assert!(load(&chosen, other) != Ordering::Greater);
            }
        }

        #[test]
        fn equally_loaded_ones_are_chosen_in_turn(number in 1_usize..8, start in any::<u32>()) {
            let servers = equal(number);
            let asked: std::collections::BTreeSet<usize> = (0..number as u64)
                .filter_map(|turn| least_loaded(u64::from(start) + turn, &servers))
                .collect();
            prop_assert_eq!(asked.len(), number);
        }

        #[test]
        fn a_server_that_goes_moves_only_its_own_keys(
            candidates in candidates(), key in any::<u64>(), gone in any::<prop::sample::Index>(),
        ) {
            let gone = gone.index(candidates.len());
            let before = by_key(key, &candidates).unwrap();
            let mut left = candidates.clone();
            left.remove(gone);
            let after = by_key(key, &left).map(|place| left[place].identity);
            if before != gone {
                prop_assert_eq!(after, Some(candidates[before].identity));
            }
        }
    }
}
