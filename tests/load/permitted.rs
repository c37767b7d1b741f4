//! The gateway with a permit for each request that may be charged, so that `make bench` measures the edge without the charge.
//!
//! `permitted serve --config FILE`: the program's own `serve`, whose store grants each charge at once and records none. All else
//! is passed on to the configured store.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement fails by panicking and prints its addresses"
)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use jiff::civil::Date;
use tokio::sync::mpsc;
use touchline::config::Config;
use touchline::policy::api_key::KeyId;
use touchline::policy::audit::{self, Author, Wanted};
use touchline::policy::calendar::Day;
use touchline::policy::key_record::KeyRecord;
use touchline::policy::threshold_event::{Event, ThresholdEvent};
use touchline::server::{self, Begin};
use touchline::store::chain::Chained;
use touchline::store::export::{Exported, ImportCounts, ImportMode};
use touchline::store::status::{Replicas, StoreStatus};
use touchline::store::*;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A store that grants each charge.
struct Permitting {
    store: Arc<dyn Store>,
    used: AtomicU64,
}

fn main() {
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let mut arguments = std::env::args().skip_while(|argument| argument != "--config");
    let file = PathBuf::from(arguments.nth(1).unwrap());
    let config = Config::load(&file).unwrap();
    let announce = |addresses: &_| println!("{}", serde_json::to_string(addresses).unwrap());
    let permitting = |store| -> Arc<dyn Store> {
        let used = AtomicU64::new(0);
        Arc::new(Permitting { store, used })
    };
    server::serve(&file, config, Begin::Anew, announce, permitting).unwrap();
}

/// The methods of the store that are passed on.
macro_rules! passed_on {
    ($(async fn $name:ident(&self $(, $argument:ident: $of:ty)*) -> $out:ty;)*) => {
        #[async_trait]
        impl Store for Permitting {
            async fn charge(&self, charge: Charge) -> Result<Decision, StoreError> {
                let receipt = Receipt::of(&charge);
                let used = self.used.fetch_add(1, Ordering::Relaxed);
                Ok(Decision::Granted {
                    used,
                    counted: used,
                    receipt,
                })
            }

            async fn refund(&self, _: Receipt) -> Option<u64> {
                None
            }

            fn give_back(&self, _: Receipt) {}

            fn used_as_known(&self, key: KeyId, day: Day, limit: u64) -> Option<u64> {
                self.store.used_as_known(key, day, limit)
            }

            fn keys(&self) -> &KeyTable {
                self.store.keys()
            }

            fn freshness(&self) -> Freshness {
                self.store.freshness()
            }

            fn now(&self) -> Timestamp {
                self.store.now()
            }

            fn refused(&self, key: &KeyEntry, day: Day, endpoint: &Arc<str>, refusal: RefusalReason) {
                self.store.refused(key, day, endpoint, refusal);
            }

            fn health(&self) -> Health {
                self.store.health()
            }

            fn losses(&self) -> u64 {
                self.store.losses()
            }

            fn chained(&self) -> Option<&dyn Chained> {
                self.store.chained()
            }

            $(async fn $name(&self $(, $argument: $of)*) -> $out {
                self.store.$name($($argument),*).await
            })*
        }
    };
}

passed_on! {
    async fn used(&self, key: KeyId, day: Day, limit: u64) -> Result<u64, StoreError>;
    async fn last_dropped(&self) -> Result<Option<Date>, StoreError>;
    async fn late_days(&self, from: Date, to: Date, keys: &[KeyId]) -> Result<Vec<(Date, KeyId)>, StoreError>;
    async fn claim(&self, event: &ThresholdEvent, node: &NodeName, delivery: Delivery) -> Result<Claim, StoreError>;
    async fn undelivered(&self, courier: &NodeName, lease: Duration, skipped: u64) -> Result<Option<Vec<Event>>, StoreError>;
    async fn delivered(&self, event: &Event) -> Result<(), StoreError>;
    async fn resign(&self, courier: &NodeName) -> Result<(), StoreError>;
    async fn close(&self, deadline: Duration) -> ();
    async fn server_time(&self) -> Result<Timestamp, StoreError>;
    async fn create_key(&self, record: KeyRecord) -> Result<(KeyRecord, ChangeMark), ChangeError>;
    async fn update_key(&self, record: KeyRecord) -> Result<(KeyRecord, ChangeMark), ChangeError>;
    async fn import_keys(&self, records: Vec<KeyRecord>) -> Result<(Vec<Imported>, Option<ChangeMark>), ChangeError>;
    async fn audit(&self, wanted: Wanted) -> Result<Vec<audit::Entry>, StoreError>;
    async fn key(&self, id: KeyId) -> Result<Option<KeyRecord>, StoreError>;
    async fn walk_keys(&self, take: &mut (dyn FnMut(Vec<KeyRecord>) + Send)) -> Result<(), StoreError>;
    async fn search_keys(&self, text: &str) -> Result<Vec<KeyRecord>, StoreError>;
    async fn ledger_keys(&self, from: Date, to: Date) -> Result<Vec<KeyId>, StoreError>;
    async fn records_of(&self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError>;
    async fn unconfirmed(&self, mark: &ChangeMark) -> Result<Vec<Unconfirmed>, StoreError>;
    async fn await_applied(&self, mark: &ChangeMark, patience: Duration) -> Result<Vec<Unconfirmed>, StoreError>;
    async fn last_change(&self) -> Result<ChangeMark, StoreError>;
    async fn forget_gateway(&self, node: &NodeName, author: &Author) -> Result<Forgotten, StoreError>;
    async fn await_replicas(&self, patience: Duration) -> Result<Replicas, StoreError>;
    async fn status(&self) -> Result<StoreStatus, StoreError>;
    async fn usage_of(&self, from: Date, to: Date, keys: &[KeyId]) -> Result<Vec<DayUsage>, StoreError>;
    async fn usage_for_request(&self, from: Date, day: Day, key: KeyId) -> Result<Vec<DayUsage>, StoreError>;
    async fn prove_of(&self, from: Date, to: Date, keys: &[KeyId]) -> Result<Vec<Proof>, StoreError>;
    async fn export(&self, exported: mpsc::Sender<Exported>) -> Result<(), StoreError>;
    async fn import_exported(&self, items: Vec<Exported>, mode: ImportMode) -> Result<ImportCounts, StoreError>;
}
