//! The quota day so far, of all gateways: units and refusals by tier, and the keys nearest their limits.
//!
//! Only the store knows both if several gateways charge, and after a restart. So a survey reads it key by key, as the ledger is read,
//! and only while the dashboard is viewed: [`DAY_OF_KEYS_MAX`] keys at once, after each such reading a pause of `PAUSE` times its
//! length, and after the last a rest of `REST`. So a survey takes at most a tenth of the time of one connection, however many keys
//! there are; its result carries its age. Requests never wait for it. Memory: the ids of all keys during a survey (12 bytes each).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use jiff::civil::Date;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::task::JoinHandle;

use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::policy::key_record::{KeyState, TierName};
use crate::policy::nearest::{self, Nearness};
use crate::store::{DAY_OF_KEYS_MAX, DayUsage, Store, StoreError, Totals};

/// Keys that are listed by name.
const NEAREST_MAX: usize = 20;
/// The shares of the limit, in hundredths, for which the keys that have reached them are counted.
const SHARES: [u8; 3] = [80, 95, 100];
/// The pause after each reading, as a multiple of its duration: a survey then takes a tenth of a connection's time.
const PAUSE: u32 = 9;
/// The rest between the end of a survey and the beginning of the next.
const REST: Duration = Duration::from_secs(5);

/// The part of the running configuration that a survey needs.
#[derive(Debug, Clone)]
pub struct SurveyTerms {
    /// The quota day.
    pub day: Day,
    /// The time zone whose calendar days are quota days.
    pub zone: String,
    /// The units a day of each tier.
    pub tiers: Vec<(TierName, u64)>,
}

/// The quota day so far.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Today {
    /// The date of the day.
    pub date: Date,
    /// When the day ends.
    pub ends: Timestamp,
    /// The time zone whose calendar days are quota days.
    pub zone: String,
    /// When the survey was finished.
    pub read: Timestamp,
    /// How long the survey took.
    pub took_seconds: f64,
    /// Units used, as the quota counts them.
    pub used: u64,
    /// Units whose endpoint is not known (yet): `unattributed` of the ledger.
    pub unattributed: i64,
    /// The ledger's numbers, by the tier that the keys had at the time.
    pub tiers: Vec<TierToday>,
    /// How many usable keys have reached a share of their limit.
    pub reached: Vec<ReachedShare>,
    /// The usable keys nearest their limits, the nearest first; none that used nothing.
    pub nearest: Vec<NearKey>,
}

/// One tier's part of the day.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TierToday {
    /// The tier, or `?`: charged by an older version, which did not record it.
    pub tier: String,
    /// Keys that called.
    pub keys: u64,
    /// The ledger's numbers.
    #[serde(flatten)]
    pub totals: Totals,
}

/// How many keys have reached a share of their limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ReachedShare {
    /// The share in hundredths.
    pub percent: u8,
    /// The keys, including those that have reached a higher share.
    pub keys: u64,
}

/// A key near its limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NearKey {
    /// The key's public id.
    pub key_id: KeyId,
    /// The customer who pays.
    pub customer: String,
    /// The customer's name for the key.
    pub label: Option<String>,
    /// The key's present tier.
    pub tier: TierName,
    /// Units used.
    pub used: u64,
    /// Units allowed by its present tier and its grants.
    pub limit: u64,
}

/// The last survey, and why the most recent one failed.
#[derive(Debug, Clone, Default)]
pub struct LastSurvey {
    /// The last survey that was finished.
    pub today: Option<Today>,
    /// Why the most recent one failed, if it did.
    pub error: Option<String>,
}

/// Surveys the day on request.
pub struct Surveyor {
    store: Arc<dyn Store>,
    state: Mutex<SurveyState>,
}

#[derive(Default)]
struct SurveyState {
    known: LastSurvey,
    /// The survey that was begun last.
    running: Option<JoinHandle<()>>,
    /// When it ended, or else began.
    ended: Option<Instant>,
}

impl Surveyor {
    /// A surveyor without a survey.
    pub fn new(store: Arc<dyn Store>) -> Arc<Surveyor> {
        Arc::new(Surveyor {
            store,
            state: Mutex::default(),
        })
    }

    /// Returns the last survey, and starts another in the background if that is too old; never waits. Needs a tokio runtime. While
    /// the key table is not loaded, no survey starts, because it would present a part of the keys as all of them.
    pub fn ask(self: &Arc<Self>, terms: SurveyTerms) -> LastSurvey {
        let today = terms.day.date;
        let mut state = self.state.lock();
        let rested = state.ended.is_none_or(|ended| ended.elapsed() >= REST);
        let idle = state.running.as_ref().is_none_or(JoinHandle::is_finished);
        if rested && idle && self.store.freshness().loaded {
            // The next one waits also if this one panics.
            state.ended = Some(Instant::now());
            state.running = Some(tokio::spawn(self.clone().survey(terms)));
        }
        let mut known = state.known.clone();
        // A day that is over is not today.
        known.today = known.today.filter(|last| last.date == today);
        known
    }

    async fn survey(self: Arc<Self>, terms: SurveyTerms) {
        let surveyed = survey(&*self.store, &terms).await;
        let mut state = self.state.lock();
        state.ended = Some(Instant::now());
        match surveyed {
            Ok(today) => {
                state.known = LastSurvey {
                    today: Some(today),
                    error: None,
                };
            }
            Err(error) => state.known.error = Some(error.to_string()),
        }
    }
}

async fn survey(store: &dyn Store, terms: &SurveyTerms) -> Result<Today, StoreError> {
    let began = Instant::now();
    let mut keys: Vec<KeyId> = {
        let entries = store.keys().entries();
        entries.iter().map(|entry| entry.record.id).collect()
    };
    keys.sort_unstable();
    let (date, mut sums) = (terms.day.date, SurveySums::new());
    let mut batches = keys.chunks(DAY_OF_KEYS_MAX).peekable();
    while let Some(batch) = batches.next() {
        let asked = Instant::now();
        for usage in store.usage_of(date, date, batch).await? {
            sums.add(store, terms, &usage);
        }
        if batches.peek().is_some() {
            tokio::time::sleep(asked.elapsed() * PAUSE).await;
        }
    }
    Ok(sums.day(store, terms, began.elapsed()))
}

/// The sums over the keys that have been read.
struct SurveySums {
    used: u64,
    unattributed: i64,
    tiers: BTreeMap<String, (u64, Totals)>,
    reached: [ReachedShare; SHARES.len()],
    nearest: Vec<Nearness>,
}

impl SurveySums {
    fn new() -> SurveySums {
        SurveySums {
            used: 0,
            unattributed: 0,
            tiers: BTreeMap::new(),
            reached: SHARES.map(|percent| ReachedShare { percent, keys: 0 }),
            nearest: Vec::new(),
        }
    }

    fn add(&mut self, store: &dyn Store, terms: &SurveyTerms, usage: &DayUsage) {
        self.used = self.used.saturating_add(usage.used);
        self.unattributed = self.unattributed.saturating_add(usage.unattributed);
        for (tier, totals) in &usage.tiers {
            let (keys, sum) = self.tiers.entry(tier.clone()).or_default();
            *keys += 1;
            sum.add(totals);
        }
        let Some(near) = nearness(store, terms, usage) else {
            return;
        };
        for share in &mut self.reached {
            share.keys += u64::from(near.has_reached(share.percent));
        }
        nearest::put(near, NEAREST_MAX, &mut self.nearest);
    }

    fn day(self, store: &dyn Store, terms: &SurveyTerms, took: Duration) -> Today {
        let tiers = self.tiers.into_iter();
        let nearest = self.nearest.into_iter();
        let named = |near: Nearness| {
            let record = &store.keys().get(near.key)?.record;
            Some(NearKey {
                key_id: near.key,
                customer: record.customer.to_string(),
                label: record.label.as_deref().map(str::to_owned),
                tier: record.tier.clone(),
                used: near.used,
                limit: near.limit,
            })
        };
        Today {
            date: terms.day.date,
            ends: Timestamp::from_second(terms.day.end).unwrap_or_default(),
            zone: terms.zone.clone(),
            read: store.now(),
            took_seconds: took.as_secs_f64(),
            used: self.used,
            unattributed: self.unattributed,
            tiers: tiers
                .map(|(tier, (keys, totals))| TierToday { tier, keys, totals })
                .collect(),
            reached: self.reached.to_vec(),
            nearest: nearest.filter_map(named).collect(),
        }
    }
}

/// How near a key is to its limit, or `None` if it is unused, not usable, or its tier no longer exists.
fn nearness(store: &dyn Store, terms: &SurveyTerms, usage: &DayUsage) -> Option<Nearness> {
    let entry = store.keys().get(usage.key)?;
    let record = &entry.record;
    let usable = record.state == KeyState::Active
        && record.expires.is_none_or(|expires| store.now() < expires);
    let (_, daily) = terms.tiers.iter().find(|(tier, _)| *tier == record.tier)?;
    (usable && usage.used > 0).then(|| Nearness {
        key: usage.key,
        used: usage.used,
        limit: record.limit_on(terms.day.date, *daily),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::clock::Clock;
    use crate::store::{NodeName, Role, embedded};

    /// A runtime that shuts down drops what it is given while it is given.
    #[test]
    fn a_survey_that_no_runtime_takes_holds_nothing_up() {
        let directory = tempfile::tempdir().unwrap();
        let settings = embedded::Settings::new(directory.path().join("touchline.db"));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let role = Role::Gateway(NodeName("a".into()));
        let opened = embedded::open(settings, role, "UTC", Clock::system());
        let surveyor = Surveyor::new(runtime.block_on(opened).unwrap());
        let handle = runtime.handle().clone();
        runtime.shutdown_background();
        let (done, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let _inside = handle.enter();
            let terms = SurveyTerms {
                day: Day {
                    date: Date::constant(2026, 11, 21),
                    start: 0,
                    end: 86_400,
                },
                zone: "UTC".into(),
                tiers: Vec::new(),
            };
            let known = surveyor.ask(terms);
            done.send(known.today).unwrap();
        });
        assert_eq!(ended.recv_timeout(Duration::from_secs(5)), Ok(None));
    }
}
