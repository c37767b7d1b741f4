//! Delivering events: signed HTTP POST, until the receiver answers 2xx.
//!
//! The store keeps the pending events and the lease of the gateway that delivers them, so an event outlives the gateway that caused
//! it. Each event is delivered at least once; a receiver recognises a repeated one by its id. Each event is sent by itself, with
//! pauses between attempts that double from a second to five minutes, each varied by up to a quarter.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use tokio::task::JoinSet;

use crate::clock::next_tick;
use crate::config::Webhook;
use crate::policy::threshold_event::{Event, ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER};
use crate::proxy::Gate;
use crate::server::outgoing::{OutgoingClient, shown};
use crate::store::{EVENTS_READ_MAX, NodeName};

/// The pause between two readings of the pending events.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// The same while no webhook is configured.
const LOOK_WITHOUT_WEBHOOK: Duration = Duration::from_secs(1);
/// How long the lease lasts beyond the timeout of an attempt.
const LEASE_SLACK: Duration = Duration::from_secs(10);
/// How long after a reading further events of it may be sent. Together with the timeout of the last attempt, this ends within the lease,
/// which may be 5 s old at a reading: the store renews it no more often.
const LOOK_MAX: Duration = Duration::from_secs(4);
/// The most concurrent attempts.
const AT_ONCE: usize = 8;
/// A store notices within this time that its clock leapt, because it looks at it each second.
const LEAP_NOTICED: Duration = Duration::from_secs(2);
/// The pause if no client can be made because root certificates are missing.
const CLIENT_PAUSE: Duration = Duration::from_secs(30);
/// The pauses after a first failed attempt, and at most, before they are varied.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// Delivers the pending events.
pub struct Courier {
    gate: Arc<Gate>,
    node: NodeName,
    caller: OutgoingClient,
    /// Events that failed.
    failed: HashMap<String, FailedDelivery>,
    /// How many of the oldest events the next reading skips.
    skipped: u64,
    /// When the lease ends at the latest; another gateway may deliver after it.
    lease_end: Instant,
}

#[derive(Debug, Clone, Copy)]
struct FailedDelivery {
    times: u32,
    again: Instant,
}

impl Courier {
    /// A courier on the gateway `node`.
    pub fn new(gate: Arc<Gate>, node: NodeName) -> Courier {
        Courier {
            gate,
            node,
            caller: OutgoingClient::default(),
            failed: HashMap::new(),
            skipped: 0,
            lease_end: Instant::now(),
        }
    }

    /// Delivers until it is dropped.
    pub async fn run(mut self) {
        loop {
            let pause = match self.gate.snapshot().config.events.webhook {
                Some(_) => LOOK_INTERVAL,
                None => LOOK_WITHOUT_WEBHOOK,
            };
            next_tick(pause).await;
            match &self.gate.snapshot().config.events.webhook {
                Some(webhook) => match self.caller.client() {
                    Ok(client) => self.look(webhook, &client).await,
                    Err(error) => {
                        let why = shown(error);
                        tracing::error!(why, "this gateway can deliver no events");
                        self.show_undelivered().await;
                        tokio::time::sleep(CLIENT_PAUSE).await;
                    }
                },
                None => self.rest(),
            }
        }
    }

    /// Forgets attempts: another gateway has the lease, or no webhook is configured.
    fn rest(&mut self) {
        self.failed.clear();
        self.skipped = 0;
        self.note_pending(&[]);
    }

    /// Shows the pending events that no gateway delivers, and leaves them to any that can.
    async fn show_undelivered(&self) {
        let store = &self.gate.store;
        let reading = store.undelivered(&self.node, LEASE_SLACK, 0).await;
        self.note_pending(&reading.ok().flatten().unwrap_or_default());
        // If this fails, the lease ends by itself.
        let _ = store.resign(&self.node).await;
    }

    fn note_pending(&self, events: &[Event]) {
        let (metrics, now) = (&self.gate.metrics, self.gate.store.now());
        let pending = i64::try_from(events.len()).unwrap_or(i64::MAX);
        metrics.webhook_pending.set(pending);
        let ages = events
            .iter()
            .map(|event| now.duration_since(event.since).as_secs());
        metrics.webhook_age.set(ages.max().unwrap_or(0).max(0));
    }

    async fn look(&mut self, webhook: &Webhook, client: &reqwest::Client) {
        let (lease, began) = (webhook.timeout + LEASE_SLACK, Instant::now());
        let skipped = std::mem::take(&mut self.skipped);
        let reading = self.gate.store.undelivered(&self.node, lease, skipped);
        let events = match reading.await {
            Ok(Some(events)) => events,
            Ok(None) => return self.rest(),
            Err(error) => {
                tracing::debug!(%error, "pending events cannot be read");
                if self.lease_end <= Instant::now() {
                    self.note_pending(&[]);
                }
                return;
            }
        };
        self.lease_end = began + lease;
        let is_full = events.len() as u64 >= EVENTS_READ_MAX;
        if skipped == 0 {
            self.note_pending(&events);
        }
        if skipped == 0 && !is_full {
            let pending: HashSet<&str> = events.iter().map(|event| &*event.id).collect();
            self.failed.retain(|id, _| pending.contains(&**id));
        }
        let now = Instant::now();
        let is_due = |event: &Event| {
            self.failed
                .get(&event.id)
                .is_none_or(|failed| failed.again <= now)
        };
        let mut due: Vec<Event> = events.into_iter().filter(is_due).collect();
        let too_old = self.count_too_old(&due, webhook).await;
        for event in due.drain(..too_old) {
            if began.elapsed() > LOOK_MAX {
                return;
            }
            self.give_up(&event).await;
        }
        let others = match is_full {
            true => skipped + EVENTS_READ_MAX,
            false => 0,
        };
        if due.is_empty() {
            self.skipped = others;
        }
        sort(&mut due, &self.failed);
        for some in due.chunks(AT_ONCE) {
            if began.elapsed() > LOOK_MAX {
                return;
            }
            // A receiver that refuses is asked for few of them before the next reading, which is of others if there may be more.
            if !self.deliver(some, webhook, client).await {
                self.skipped = others;
                return;
            }
        }
    }

    /// How many of these events, the oldest first, are to be given up: none because of a clock that leapt.
    async fn count_too_old(&self, events: &[Event], webhook: &Webhook) -> usize {
        let now = self.gate.store.now();
        let too_old = events.partition_point(|event| {
            let age = Duration::try_from(now.duration_since(event.since));
            age.is_ok_and(|age| age > webhook.give_up)
        });
        if too_old == 0 {
            return 0;
        }
        tokio::time::sleep(LEAP_NOTICED).await;
        match self.gate.store.health().clock_leap {
            Some(_) => 0,
            None => too_old,
        }
    }

    /// Makes one attempt for each of these events, at the same time; whether all were accepted.
    async fn deliver(
        &mut self,
        events: &[Event],
        webhook: &Webhook,
        client: &reqwest::Client,
    ) -> bool {
        let mut attempts = JoinSet::new();
        for event in events {
            let request = request(client, event, webhook, self.gate.store.now());
            let event = event.clone();
            attempts.spawn(async move { (event, attempt(request).await) });
        }
        let mut all_accepted = true;
        while let Some(joined) = attempts.join_next().await {
            if let Ok((event, outcome)) = joined {
                all_accepted &= outcome.is_ok();
                self.note(&event, outcome).await;
            }
        }
        all_accepted
    }

    async fn note(&mut self, event: &Event, outcome: Result<(), String>) {
        let attempts = &self.gate.metrics.webhook_attempts;
        match outcome {
            Ok(()) => {
                attempts.with_label_values(&["delivered"]).inc();
                self.failed.remove(&event.id);
                self.forget(event).await;
            }
            Err(why) => {
                attempts.with_label_values(&["failed"]).inc();
                let times = self.failed.get(&event.id).map_or(0, |failed| failed.times);
                let pause = PAUSE_MIN
                    .saturating_mul(2_u32.saturating_pow(times))
                    .min(PAUSE_MAX)
                    .mul_f64(0.75 + fastrand::f64() / 2.0);
                let failed = FailedDelivery {
                    times: times.saturating_add(1),
                    again: Instant::now() + pause,
                };
                self.failed.insert(event.id.clone(), failed);
                tracing::warn!(event = event.id, why, again_in = ?pause, "the webhook did not accept an event");
            }
        }
    }

    async fn give_up(&mut self, event: &Event) {
        let attempts = &self.gate.metrics.webhook_attempts;
        attempts.with_label_values(&["given_up"]).inc();
        tracing::error!(
            event = event.id,
            body = event.body,
            "an event was given up: it was not delivered within events.webhook.give_up"
        );
        self.failed.remove(&event.id);
        self.forget(event).await;
    }

    /// Removes a finished event from the store; if that fails, the event is delivered once more.
    async fn forget(&self, event: &Event) {
        if let Err(error) = self.gate.store.delivered(event).await {
            tracing::warn!(%error, event = event.id, "a delivered event could not be removed from the store");
        }
    }
}

/// Sorts by failures, and events with as many by age: those that the receiver refuses hold up no others.
fn sort(due: &mut [Event], failed: &HashMap<String, FailedDelivery>) {
    due.sort_by_key(|event| failed.get(&event.id).map_or(0, |failed| failed.times));
}

fn request(
    client: &reqwest::Client,
    event: &Event,
    webhook: &Webhook,
    now: Timestamp,
) -> reqwest::RequestBuilder {
    let sent = now.as_second();
    client
        .post(webhook.url.reveal())
        .timeout(webhook.timeout)
        .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .header(ID_HEADER, &event.id)
        .header(TIMESTAMP_HEADER, sent)
        .header(SIGNATURE_HEADER, webhook.secret.sign(event, sent))
        .body(event.body.clone())
}

/// Makes one attempt.
async fn attempt(request: reqwest::RequestBuilder) -> Result<(), String> {
    match request.send().await {
        Ok(answer) if answer.status().is_success() => Ok(()),
        Ok(answer) => Err(format!("the answer was {}", answer.status())),
        Err(error) => Err(shown(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::policy::api_key::{KeyId, os_entropy};
    use crate::policy::calendar::Calendar;
    use crate::policy::rate_limit::QuotaStatus;
    use crate::policy::threshold_event::{Share, ThresholdEvent};
    use crate::proxy::gate::tests::gate;
    use crate::store::{Claim, Delivery};

    #[test]
    fn events_that_were_refused_more_often_are_sent_later_whatever_their_age() {
        let event = |id: &str| Event {
            id: id.into(),
            since: Timestamp::UNIX_EPOCH,
            body: String::new(),
        };
        let mut due = ["refused-often", "refused-once", "older", "newer"].map(event);
        let refused = |id: &str, times| {
            let again = Instant::now();
            (id.to_owned(), FailedDelivery { times, again })
        };
        let failed = [refused("refused-often", 9), refused("refused-once", 1)];
        sort(&mut due, &failed.into());
        let order = due.each_ref().map(|event| &*event.id);
        assert_eq!(order, ["older", "newer", "refused-once", "refused-often"]);
    }

    #[tokio::test]
    async fn events_that_wait_for_another_attempt_hold_up_no_newer_one() {
        // It accepts no connection, so that each attempt fails.
        let receiver = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let webhook = receiver.local_addr().unwrap();
        let text = format!(
            "tiers: {{pro: {{daily: 5}}}}
endpoints: [{{path: /a, tiers: [pro], upstream: u}}]
upstreams: {{u: {{servers: [127.0.0.1:9000]}}}}
events: {{webhook: {{url: \"http://{webhook}/\", secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw, timeout: 100ms}}}}
"
        );
        let config = Config::parse("g.yaml", &text, &|_| None).unwrap();
        let webhook = config.events.webhook.clone().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let gate = gate(config, &directory).await;
        let node = NodeName("a".into());
        let mut courier = Courier::new(gate.clone(), node.clone());
        let (now, mut newest) = (gate.store.now(), String::new());
        let day = Calendar::of_zone("UTC").unwrap().day_at(now).unwrap();
        for age in (0..=EVENTS_READ_MAX).rev() {
            let reached = ThresholdEvent {
                key: KeyId::generate(&mut os_entropy),
                tier: "pro".parse().unwrap(),
                quota_status: QuotaStatus {
                    limit: 5,
                    used: Some(4),
                    day,
                },
                share: Share::of_percent(80).unwrap(),
                at: now - Duration::from_secs(age),
            };
            let claimed = gate.store.claim(&reached, &node, Delivery::Wanted).await;
            assert_eq!(claimed.unwrap(), Claim::Made);
            let refused = FailedDelivery {
                times: 9,
                again: Instant::now() + Duration::from_secs(3_600),
            };
            newest = reached.id();
            courier.failed.insert(newest.clone(), refused);
        }
        courier.failed.remove(&newest);
        let client = courier.caller.client().unwrap();
        // The first reading is of the older ones.
        for is_tried in [false, true] {
            courier.look(&webhook, &client).await;
            assert_eq!(courier.failed.contains_key(&newest), is_tried);
        }
    }
}
