//! What a Redis may answer to the charge script. Laws: reading never panics; what is read is what was answered, with nothing below
//! zero; and anything else than the script's own form is an error, never a grant.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redis::Value;
use touchline::store::redis::charge_reply;

fuzz_target!(|bytes: &[u8]| {
    let Ok(value) = redis::parse_redis_value(bytes) else {
        return;
    };
    let answered = match &value {
        Value::Array(items) => items.clone(),
        _ => Vec::new(),
    };
    let Ok(reply) = charge_reply(value.clone()) else {
        return;
    };
    assert_eq!(answered.len(), 6, "{value:?}");
    let number = |item: &Value| redis::from_redis_value::<i64>(item.clone()).unwrap();
    let numbers: Vec<i64> = answered.iter().take(5).map(number).collect();
    assert!((0..=9).contains(&numbers[0]), "{value:?}");
    assert_eq!(i64::try_from(reply.grant).unwrap(), numbers[1].max(0));
    assert_eq!(i64::try_from(reply.used).unwrap(), numbers[2].max(0));
    assert_eq!(reply.version, u64::try_from(numbers[3]).ok());
    assert_eq!(reply.now, numbers[4]);
});
