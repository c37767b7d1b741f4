//! The parts of an open store.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::clock::StoreClock;
use super::counts::accounts::Accounts;
use super::counts::ledger::ProcessLedger;
use super::gateways::heartbeat::Heartbeat;
use super::gateways::presence::Presence;
use super::keys::feed::Feed;
use super::keys::records::RecordTable;
use super::outage::OutageService;
use super::wire::guard::BreakerGuard;
use super::wire::link::RedisLink;
use crate::clock::Clock;
use crate::policy::failure_log::LoggedReasons;
use crate::store::{KeyTable, Receipt};

/// The parts of an open store, which its tasks share.
pub struct Parts {
    pub keys: Arc<KeyTable>,
    pub clock: Arc<StoreClock>,
    pub local_clock: Clock,
    /// For the calls that requests wait for.
    pub link: Arc<RedisLink>,
    /// For the calls with long replies, which must not delay charges: those of commands, and of requests that read their usage.
    pub command_link: Arc<RedisLink>,
    pub guard: Arc<BreakerGuard>,
    /// The number of connections that were made until the flushing began, which takes it.
    pub connections_at_start: AtomicU64,
    /// How often Redis may have lost writes.
    pub losses: AtomicU64,
    pub accounts: Arc<Accounts>,
    pub ledger: Arc<ProcessLedger>,
    /// A gateway's service without Redis; commands have none.
    pub outage: Option<Arc<OutageService>>,
    /// Held while refunds and ledger are written, so that a close can wait for them; why the ledger was not written the last time.
    pub flushing: tokio::sync::Mutex<LoggedReasons>,
    pub records: RecordTable,
    /// A gateway's replica; commands have none.
    pub feed: Option<Arc<Feed>>,
    /// A gateway's entry in the register; commands have none.
    pub presence: Option<Arc<Presence>>,
    pub max_staleness: Duration,
    /// The configured journal, even of a command.
    pub journal: Option<PathBuf>,
    /// The zone of the quota days.
    pub zone: String,
    /// Set once this process has made sure that the store has the zone.
    pub zone_claimed: tokio::sync::OnceCell<()>,
}

impl Parts {
    /// The present heartbeat of this gateway.
    pub fn heartbeat(&self, feed: &Feed) -> Heartbeat {
        Heartbeat {
            breaker: Some(self.guard.facts()),
            service: self.outage.as_ref().map(|outage| outage.facts()),
            clock_difference_seconds: Some(self.clock.difference().as_secs_f64()),
            ..feed.heartbeat()
        }
    }

    /// Refunds units. Returns the units used afterwards by Redis's count, if it is known.
    pub fn give_back(&self, receipt: &Receipt) -> Option<u64> {
        self.ledger.refunded(receipt);
        self.accounts
            .refund(receipt.key, receipt.day, receipt.units)
    }
}
