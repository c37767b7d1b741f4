//! Facts that hold for every store, seen through the trait alone.
//!
//! A store takes part with a [`Fixture`] and one line, `store_suite!(MyFixture::new().await)`, which makes one test per
//! fact. Each test gets a fixture of its own, hence an empty store. Every fact runs on the real clock, because a shared
//! store compares days with its own; what needs an injected clock is in the store's own file. A handle stands for a
//! process: facts that speak of two processes open two handles.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use jiff::civil::Date;
use touchline::policy::api_key::{ApiKey, KeyId, KeyPrefix, os_entropy};
use touchline::policy::calendar::Day;
use touchline::policy::key_record::{Action, KeyRecord, LastChange};
use touchline::store::{
    Charge, DayUsage, Decision, Keeping, KeyEntry, NodeName, Proof, Receipt, Role, Store,
    StoreError, keys_at_once,
};

pub use harness::{PATIENCE, eventually};

mod audit;
mod charging;
mod days;
mod events;
mod import;
mod keys;
mod ledger;

pub use self::audit::*;
pub use self::charging::*;
pub use self::days::*;
pub use self::events::*;
pub use self::import::*;
pub use self::keys::*;
pub use self::ledger::*;

/// An empty store of one kind, opened as often as a fact wants.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Another handle on the same store, as another process would have, with the system's clock.
    async fn try_open(
        &self,
        role: Role,
        zone: &str,
        keeping: Keeping,
    ) -> Result<Arc<dyn Store>, StoreError>;

    /// The same in the zone of most facts.
    async fn open(&self, role: Role) -> Arc<dyn Store> {
        let keeping = Keeping::default();
        let opened = self.try_open(role, ZONE, keeping).await;
        opened.expect("the store opens")
    }

    /// A gateway's handle, once it has its connection: a gateway opens without one, where a busy machine is slow to make it.
    async fn gateway(&self, name: &str) -> Arc<dyn Store> {
        let store = self.open(Role::Gateway(NodeName(name.into()))).await;
        let up = async {
            while !store.health().up {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let up = tokio::time::timeout(PATIENCE, up).await;
        up.expect("the store has a connection");
        store
    }

    /// A command's handle.
    async fn command(&self) -> Arc<dyn Store> {
        self.open(Role::Command).await
    }
}

/// One test per fact for the fixture that the expression makes; it is evaluated inside an async function.
macro_rules! store_suite {
    ($fixture:expr) => {
        store_suite!(@facts $fixture;
            of_3000_concurrent_charges_exactly_the_limit_is_granted,
            two_processes_together_grant_exactly_the_limit,
            mixed_costs_and_refunds_in_two_processes_add_up_exactly,
            a_charge_that_does_not_fit_takes_nothing_from_another_process,
            a_cost_is_charged_whole_or_not_at_all,
            a_lowered_limit_refuses_and_a_raised_one_grants_at_once,
            a_refund_reopens_an_exhausted_key_within_the_second,
            a_refund_in_one_process_reopens_the_key_in_another_within_two_seconds,
            a_refund_after_midnight_goes_to_the_day_of_its_charge,
            two_processes_crossing_midnights_grant_exactly_the_limit_each_day,
            a_dropped_charge_gives_its_units_back,
            a_charge_with_an_older_record_is_not_granted,
            a_revocation_holds_from_the_next_charge_of_another_process,
            a_changed_key_keeps_its_count,
            of_two_changes_from_the_same_reading_one_is_made,
            an_id_or_digest_in_use_is_refused,
            an_unknown_key_cannot_be_changed,
            the_store_dates_and_versions_every_record,
            all_keys_come_in_the_order_of_their_creation,
            ids_and_records_of_some_keys_are_those_of_all_keys,
            a_search_finds_the_keys_that_have_a_text_now,
            a_change_reaches_the_key_table_of_another_process,
            an_applied_change_awaits_no_gateway,
            a_gateway_that_does_not_apply_a_change_is_named,
            a_gateway_that_signed_off_is_not_awaited,
            every_change_has_its_entry_in_the_order_of_the_changes,
            a_change_that_was_not_made_leaves_no_entry,
            entries_are_reported_by_key_time_name_and_kind,
            the_trail_outlives_the_processes_that_wrote_it,
            an_entry_holds_no_digest,
            imported_keys_are_as_they_were_brought_and_have_their_entries,
            importing_again_adds_nothing,
            a_secret_or_an_id_that_is_in_use_is_left_out_of_an_import,
            an_imported_key_reaches_a_gateway_and_is_charged,
            charges_pass_between_the_batches_of_an_import,
            the_ledger_reconciles_with_the_counts_by_day_key_and_endpoint,
            refused_requests_are_counted_by_their_reason,
            every_unit_is_reported_by_the_tier_that_the_key_had,
            limit_and_grants_of_a_day_are_reported,
            what_reconciles_is_proved_without_a_fault,
            a_refund_of_a_closed_day_is_an_adjustment_and_the_day_stays,
            usage_is_reported_for_the_asked_days_and_key_only,
            usage_of_some_keys_is_what_the_ledger_has_of_them,
            a_day_of_some_keys_is_what_the_ledger_has_of_them,
            used_is_reported_without_a_charge,
            an_event_is_claimed_by_one_node_for_a_key_day_and_share,
            events_are_kept_in_their_order_until_they_are_delivered,
            one_node_delivers_until_it_is_silent_for_its_lease,
            a_node_that_resigns_lets_another_deliver_at_once,
            what_waits_to_be_delivered_is_reported_with_the_age_of_the_oldest,
            no_more_events_are_kept_than_may_be,
            a_day_with_other_boundaries_is_refused,
            a_day_that_is_over_or_to_come_is_refused_with_the_stores_time,
            another_zone_is_refused_at_open,
            reopening_keeps_keys_counts_and_ledger,
            closing_writes_refunds_that_were_not_awaited,
            an_open_store_is_healthy,
        );
    };
    (@facts $fixture:expr; $($fact:ident,)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $fact() {
                let fixture = $fixture;
                crate::suite::$fact(&fixture).await;
            }
        )+
    };
}

/// The zone that the fixtures' stores are opened with.
pub const ZONE: &str = "UTC";

/// A day with this date that has been going on for an hour and goes on for another, so that no fact meets midnight.
/// The same whenever it is asked for.
pub fn day_around_now(date: &str) -> Day {
    static NOW: LazyLock<i64> = LazyLock::new(|| Timestamp::now().as_second());
    let now = *NOW;
    Day {
        date: date.parse().unwrap(),
        start: now - 3_600,
        end: now + 3_600,
    }
}

/// The field of a key's counts in Redis that holds the units used on the day.
pub fn used_field(day: Day) -> String {
    format!("t{}-{}", day.start, day.end)
}

/// The day of most facts, by a name to come, so that its retention is never over.
pub fn today() -> Day {
    day_around_now("2099-11-21")
}

/// The record of a new active key of a tier, as a command hands it to the store.
pub fn new_record(tier: &str) -> KeyRecord {
    let key = ApiKey::generate(&KeyPrefix::default(), &mut os_entropy);
    let (tier, now) = (tier.parse().unwrap(), Timestamp::UNIX_EPOCH);
    let issued = LastChange::first(Action::Issue, "tester@here");
    KeyRecord::new(&key, "Acme", tier, now, issued)
}

/// Issues a key.
pub async fn issue(store: &Arc<dyn Store>) -> Arc<KeyEntry> {
    let (record, _) = store.create_key(new_record("pro")).await.unwrap();
    KeyEntry::new(record)
}

/// A charge for the endpoint `markets`.
pub fn charge(key: &Arc<KeyEntry>, day: Day, limit: u64, cost: u32) -> Charge {
    charge_for(key, day, limit, cost, "markets")
}

/// A charge for an endpoint.
pub fn charge_for(key: &Arc<KeyEntry>, day: Day, limit: u64, cost: u32, endpoint: &str) -> Charge {
    Charge {
        key: key.clone(),
        day,
        limit,
        cost,
        endpoint: endpoint.into(),
    }
}

/// What a granted charge answered.
#[track_caller]
pub fn granted(decision: Result<Decision, StoreError>) -> (u64, Receipt) {
    match decision {
        Ok(Decision::Granted { used, receipt, .. }) => (used, receipt),
        other => panic!("not granted: {other:?}"),
    }
}

/// What an exhausted charge answered.
#[track_caller]
pub fn exhausted(decision: Result<Decision, StoreError>) -> u64 {
    match decision {
        Ok(Decision::Exhausted { used }) => used,
        other => panic!("not exhausted: {other:?}"),
    }
}

/// Waits until the store reports this count.
pub async fn eventually_used(store: &Arc<dyn Store>, key: &Arc<KeyEntry>, day: Day, expected: u64) {
    let what = format!("{expected} units are shown as used");
    eventually(&what, async || {
        (store.used(key.record.id, day, 100).await.unwrap() == expected).then_some(())
    })
    .await;
}

/// The ledger of one key, or of all, at once.
#[async_trait]
pub trait WholeLedger {
    async fn prove(
        &self,
        from: Date,
        to: Date,
        key: Option<KeyId>,
    ) -> Result<Vec<Proof>, StoreError>;

    async fn usage(
        &self,
        from: Date,
        to: Date,
        key: Option<KeyId>,
    ) -> Result<Vec<DayUsage>, StoreError> {
        let proofs = self.prove(from, to, key).await?.into_iter();
        Ok(proofs.map(|proof| proof.usage).collect())
    }
}

#[async_trait]
impl<S: Store + ?Sized> WholeLedger for S {
    async fn prove(
        &self,
        from: Date,
        to: Date,
        key: Option<KeyId>,
    ) -> Result<Vec<Proof>, StoreError> {
        let mut all = Vec::new();
        let keys = match key {
            Some(key) => vec![key],
            None => self.ledger_keys(from, to).await?,
        };
        for batch in keys.chunks(keys_at_once(from, to)) {
            all.extend(self.prove_of(from, to, batch).await?);
        }
        all.sort_by_key(|proof| (proof.usage.date, proof.usage.key));
        Ok(all)
    }
}

/// The whole ledger.
pub async fn ledger(store: &Arc<dyn Store>) -> Vec<DayUsage> {
    let from: Date = "2001-01-01".parse().unwrap();
    let to: Date = "2099-12-31".parse().unwrap();
    store.usage(from, to, None).await.unwrap()
}
