//! What a Redis may answer to the charge script. Laws: reading never panics; what is read is what was answered, with nothing below
//! zero; and anything else than the script's own form is an error, never a grant.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redis::Value;
use touchline::store::redis::charge_replies;

fuzz_target!(|bytes: &[u8]| {
    let Ok(value) = redis::parse_redis_value(bytes) else {
        return;
    };
    let calls = match &value {
        Value::Array(items) => items.len().saturating_sub(1),
        _ => 1,
    };
    assert!(charge_replies(&value, calls + 1).is_err(), "{value:?}");
    let Ok(replies) = charge_replies(&value, calls) else {
        return;
    };
    let Value::Array(items) = &value else {
        panic!("{value:?}")
    };
    let Some((Value::Int(now), answers)) = items.split_first() else {
        panic!("{value:?}")
    };
    assert_eq!(replies.len(), answers.len());
    for (answer, reply) in answers.iter().zip(replies) {
        let Value::BulkString(answer) = answer else {
            panic!("{value:?}")
        };
        let answer = std::str::from_utf8(answer).unwrap();
        let parts: Vec<&str> = answer.splitn(5, ' ').collect();
        let numbers: Vec<i64> = parts[..4].iter().map(|part| part.parse().unwrap()).collect();
        assert!((0..=9).contains(&numbers[0]), "{value:?}");
        assert_eq!(i64::try_from(reply.grant).unwrap(), numbers[1].max(0));
        assert_eq!(i64::try_from(reply.used).unwrap(), numbers[2].max(0));
        assert_eq!(reply.version, u64::try_from(numbers[3]).ok());
        assert_eq!((reply.now, reply.record.as_str()), (*now, parts[4]));
    }
});
