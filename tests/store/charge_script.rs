//! The charge script against its model: the same random calls, the same replies.

use std::collections::BTreeMap;

use touchline::policy::quota::{Code, KeyDay, ModelCall, StoredRecord};
use touchline::store::redis::CHARGE_SCRIPT;

use crate::redis_server::RedisServer;

const KEYS: u64 = 300;
const CALLS_PER_KEY: u64 = 100;

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
    today: i64,
) -> (ModelCall, &'static str, bool) {
    let producer = ["a", "b", "c"][random.up_to(2) as usize];
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
        _ => (today, today + 86_400),
    };
    let call = ModelCall {
        producer: producer.into(),
        ack,
        rack,
        want: random.up_to(5),
        limit,
        record: StoredRecord { version, packed },
        start,
        end,
        settle_window: if random.percent(50) { 86_400 } else { 0 },
    };
    (call, producer, fresh)
}

fn number(code: Code) -> i64 {
    (0..=5)
        .find(|number| Code::from_number(*number) == Some(code))
        .unwrap()
}

/// Code, grant, count, version, the store's time and the record.
type ScriptReply = (i64, u64, i64, i64, i64, String);

async fn run(
    connection: &mut redis::aio::MultiplexedConnection,
    sha: &str,
    key: u64,
    call: &ModelCall,
) -> ScriptReply {
    redis::cmd("EVALSHA")
        .arg(sha)
        .arg(2)
        .arg(format!("k:{{{key}}}"))
        .arg(format!("q:{{{key}}}:day"))
        .arg(&call.producer)
        .arg(call.ack)
        .arg(call.rack)
        .arg(call.want)
        .arg(call.limit)
        .arg(call.record.version)
        .arg(&call.record.packed)
        .arg(call.start)
        .arg(call.end)
        .arg(call.end + 3_024_000)
        .arg(call.settle_window)
        .query_async(connection)
        .await
        .unwrap()
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
    let mut adjusted = 0;
    for key in 0..KEYS {
        let mut random = Random(key);
        let (mut day, mut stored, mut marks) = (KeyDay::default(), None, BTreeMap::new());
        let mut limit = random.up_to(40);
        for turn in 0..CALLS_PER_KEY {
            if random.percent(5) {
                limit = random.up_to(60);
            }
            let (call, producer, fresh) = random_call(&mut random, &mut marks, limit, today);
            let reply = run(&mut connection, &sha, key, &call).await;
            let expected = day.charge(&mut stored, &call, reply.4);
            let version = expected.version.map_or(-1, |version| version as i64);
            let model = (
                number(expected.code),
                expected.grant,
                day.used,
                version,
                reply.4,
                expected.record,
            );
            assert_eq!(reply, model, "key {key}, call {turn}: {call:?}");
            *seen.entry(reply.0).or_default() += 1;
            let mark = marks.get_mut(producer).unwrap();
            if fresh {
                let kept = reply.1.min(call.want);
                mark.ack += reply.1;
                mark.rack += reply.1 - kept;
            }
            if random.percent(10) && mark.rack < mark.ack {
                mark.rack += 1;
            }
        }
        let told = adjustments(&mut connection, key).await;
        assert_eq!(told, day.adjustments, "key {key}");
        adjusted += u64::from(!told.is_empty());
    }
    assert!(adjusted > KEYS / 20, "{adjusted} keys were adjusted");
    assert_eq!(seen.values().sum::<u64>(), KEYS * CALLS_PER_KEY);
    assert_eq!(
        seen.keys().copied().collect::<Vec<_>>(),
        [0, 1, 3, 4, 5],
        "every code was met"
    );
}
