//! The charge script against its model: the same random calls, the same replies.

use std::collections::BTreeMap;

use touchline::policy::quota::{Code, Reply};
use touchline::store::redis::CHARGE_SCRIPT;

use crate::redis_server::RedisServer;

// The model of the library's own tests.
#[path = "../../src/policy/quota/tests/ledger_model.rs"]
mod ledger_model;

use ledger_model::{ModelCall, ModelDay, StoredRecord};

const KEYS: u64 = 300;
const CALLS_PER_KEY: u64 = 100;
const PRODUCERS: [&str; 3] = ["a", "b", "c"];
/// One key in this number has a day that is over.
const OVER_EACH: u64 = 10;

/// SplitMix64: small, seeded, the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn up_to(&mut self, max: u64) -> u64 {
        self.next() % (max + 1)
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

/// What one producer believes.
#[derive(Default)]
struct Marks {
    ack: u64,
    rack: u64,
}

fn random_call(
    random: &mut Random,
    marks: &mut BTreeMap<&'static str, Marks>,
    limit: u64,
    (today, day): (i64, i64),
) -> (ModelCall, &'static str, bool) {
    let producer = PRODUCERS[random.up_to(2) as usize];
    let mark = marks.entry(producer).or_default();
    let fresh = random.percent(70);
    let (ack, rack) = if fresh {
        (mark.ack, mark.rack)
    } else {
        (random.up_to(mark.ack), random.up_to(mark.rack))
    };
    let version = match random.up_to(9) {
        0 => 1_763_683_200_000_000 + random.up_to(50),
        1 => 0,
        _ => 1_763_683_200_000_025,
    };
    let packed = if random.percent(90) {
        format!("record {version}")
    } else {
        String::new()
    };
    let (start, end) = match random.up_to(19) {
        0 => (today - 86_400, today),
        1 => (today + 86_400, today + 172_800),
        2 => (today + 3_600 - 86_400, today + 172_800),
        _ => (day, day + 86_400),
    };
    let cost = 1 + random.up_to(3);
    let call = ModelCall {
        producer: producer.into(),
        ack,
        rack,
        want: cost * random.up_to(4),
        cost,
        limit,
        record: StoredRecord { version, packed },
        start,
        end,
        settle_window: 0,
    };
    (call, producer, fresh)
}

fn number(code: Code) -> i64 {
    (0..=5)
        .find(|number| Code::from_number(*number) == Some(code))
        .unwrap()
}

/// The script's answer to a model's reply.
fn output(reply: &Reply, used: i64) -> String {
    let version = reply.version.map_or(-1, |version| version as i64);
    let (code, grant, record) = (number(reply.code), reply.grant, &reply.record);
    format!("{code} {grant} {used} {version} {record}")
}

/// The script's argument for these calls, by the head of the script.
fn packed<'c>(calls: impl Iterator<Item = &'c ModelCall>, settle_window: i64) -> Vec<u8> {
    let mut packed = (settle_window as f64).to_le_bytes().to_vec();
    let mut calls = calls.peekable();
    let mut next = 1;
    while let Some(call) = calls.next() {
        let day = (call.start, call.end);
        if next == 1 {
            packed.extend((day.0 as f64).to_le_bytes());
            packed.extend((day.1 as f64).to_le_bytes());
        }
        let version = call.record.version;
        let (want, cost) = (call.want, call.cost);
        for number in [call.ack, call.rack, want, cost, call.limit, version] {
            packed.extend((number as f64).to_le_bytes());
        }
        packed.push(call.producer.len() as u8);
        packed.extend(call.producer.as_bytes());
        packed.extend((call.record.packed.len() as u32).to_le_bytes());
        packed.extend(call.record.packed.as_bytes());
        next = u8::from(
            calls
                .peek()
                .is_some_and(|next| (next.start, next.end) != day),
        );
        packed.push(next);
    }
    packed
}

/// Cuts a number off.
fn double(rest: &mut &[u8]) -> i64 {
    let (first, after) = rest.split_first_chunk().unwrap();
    *rest = after;
    f64::from_le_bytes(*first) as i64
}

/// A reply as the store's time and a text for each account.
fn read(mut reply: &[u8]) -> (i64, Vec<String>) {
    let rest = &mut reply;
    let now = double(rest);
    let mut answers = Vec::new();
    while let Some((code, after)) = rest.split_first() {
        *rest = after;
        let (grant, used, version) = (double(rest), double(rest), double(rest));
        let (length, after) = rest.split_first_chunk().unwrap();
        let (record, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        *rest = after;
        let record = str::from_utf8(record).unwrap();
        answers.push(format!("{code} {grant} {used} {version} {record}"));
    }
    (now, answers)
}

/// One script call for the calls of several keys: the store's time, and the answer to each.
async fn run(
    connection: &mut redis::aio::MultiplexedConnection,
    sha: &str,
    calls: &[(u64, ModelCall)],
) -> (i64, Vec<String>) {
    let mut command = redis::cmd("EVALSHA");
    command.arg(sha).arg(2 * calls.len());
    for (key, _) in calls {
        command
            .arg(format!("k:{{{key}}}"))
            .arg(format!("q:{{{key}}}:day"));
    }
    let settle_window = calls[0].1.settle_window;
    command.arg(packed(calls.iter().map(|(_, call)| call), settle_window));
    let reply: Vec<u8> = command.query_async(connection).await.unwrap();
    read(&reply)
}

/// A key as the model holds it and its producers know it.
struct ModelKey {
    random: Random,
    day: ModelDay,
    stored: Option<StoredRecord>,
    marks: BTreeMap<&'static str, Marks>,
    limit: u64,
    /// Whether its day is yesterday. Its producers know of units of that day that the store has lost.
    is_over: bool,
}

impl ModelKey {
    fn new(key: u64) -> ModelKey {
        let mut random = Random(key);
        let limit = random.up_to(40);
        let is_over = key.is_multiple_of(OVER_EACH);
        let mut marks: BTreeMap<&'static str, Marks> = BTreeMap::new();
        if is_over {
            for producer in PRODUCERS {
                marks.entry(producer).or_default().ack = random.up_to(20);
            }
        }
        ModelKey {
            random,
            day: ModelDay::default(),
            stored: None,
            marks,
            limit,
            is_over,
        }
    }

    /// Plays the call; what its producer learns from the reply.
    fn play(&mut self, call: &ModelCall, producer: &str, fresh: bool, now: i64) -> Reply {
        let reply = self.day.charge(&mut self.stored, call, now);
        let mark = self.marks.get_mut(producer).unwrap();
        if fresh {
            let kept = reply.grant.min(call.want) / call.cost * call.cost;
            mark.ack += reply.grant;
            mark.rack += reply.grant - kept;
        }
        if self.random.percent(10) && mark.rack < mark.ack {
            mark.rack += 1;
        }
        reply
    }
}

/// The units of a key that came after the day was closed, by when.
async fn adjustments(
    connection: &mut redis::aio::MultiplexedConnection,
    key: u64,
) -> BTreeMap<i64, i64> {
    let fields: BTreeMap<String, i64> = redis::cmd("HGETALL")
        .arg(format!("q:{{{key}}}:day"))
        .query_async(connection)
        .await
        .unwrap();
    let late = fields.into_iter().filter_map(|(field, units)| {
        let came = field.strip_prefix('a')?;
        // A producer may be called a.
        Some((came.parse().ok()?, units))
    });
    late.collect()
}

#[tokio::test]
async fn the_script_and_its_model_agree_on_30_000_random_calls() {
    let server = RedisServer::start().await;
    let mut connection = server.connect().await;
    let sha: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(CHARGE_SCRIPT)
        .query_async(&mut connection)
        .await
        .unwrap();
    let (seconds, _): (i64, i64) = redis::cmd("TIME")
        .query_async(&mut connection)
        .await
        .unwrap();
    // Far from both boundaries, so that the day does not end under the test.
    let today = seconds - 43_200;
    let mut seen: BTreeMap<i64, u64> = BTreeMap::new();
    let mut over_with_credit = 0;
    let mut together: BTreeMap<usize, u64> = BTreeMap::new();
    let mut keys: Vec<ModelKey> = (0..KEYS).map(ModelKey::new).collect();
    let mut sizes = Random(KEYS);
    for turn in 0..CALLS_PER_KEY {
        let mut first = 0;
        while first < keys.len() {
            // As gateways call: for one account, or for several at once.
            let size = (1 + sizes.up_to(11) as usize).min(keys.len() - first);
            let group = &mut keys[first..first + size];
            let mut calls = Vec::new();
            let mut senders = Vec::new();
            let settle_window = if sizes.percent(50) { 86_400 } else { 0 };
            for (place, key) in group.iter_mut().enumerate() {
                if key.random.percent(5) {
                    key.limit = key.random.up_to(60);
                }
                let day = if key.is_over { today - 86_400 } else { today };
                let days = (today, day);
                let (mut call, producer, fresh) =
                    random_call(&mut key.random, &mut key.marks, key.limit, days);
                call.settle_window = settle_window;
                calls.push(((first + place) as u64, call));
                senders.push((producer, fresh));
            }
            let (now, answers) = run(&mut connection, &sha, &calls).await;
            assert_eq!(answers.len(), size);
            for (place, key) in group.iter_mut().enumerate() {
                let (_, call) = &calls[place];
                let (producer, fresh) = senders[place];
                let expected = key.play(call, producer, fresh, now);
                let expected_text = output(&expected, key.day.used);
                assert_eq!(
                    answers[place],
                    expected_text,
                    "key {}, call {turn}: {call:?}",
                    first + place
                );
                *seen.entry(number(expected.code)).or_default() += 1;
                let is_over = expected.code == Code::OtherDay;
                over_with_credit += u64::from(is_over && call.want <= expected.grant);
            }
            *together.entry(size).or_default() += 1;
            first += size;
        }
    }
    let mut adjusted = 0;
    for (number, key) in keys.iter().enumerate() {
        let output = adjustments(&mut connection, number as u64).await;
        assert_eq!(output, key.day.adjustments, "key {number}");
        adjusted += u64::from(!output.is_empty());
    }
    assert!(adjusted > KEYS / 20, "{adjusted} keys were adjusted");
    assert_eq!(seen.values().sum::<u64>(), KEYS * CALLS_PER_KEY);
    assert_eq!(
        seen.keys().copied().collect::<Vec<_>>(),
        [0, 1, 3, 4, 5],
        "every code was met"
    );
    assert!(
        over_with_credit > KEYS / 20,
        "{over_with_credit} calls asked for no more than their credit of a day that is over"
    );
    assert_eq!(together.len(), 12, "calls for 1 to 12 accounts were made");
}
