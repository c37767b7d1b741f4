//! What a Redis may answer to the charge script: the first byte is the number of accounts, the rest the packed answers. Laws: reading
//! never panics; what is read is what was answered, with nothing below zero; one text answers one number of accounts; and a value
//! of another kind is an error, never a grant.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redis::Value;
use touchline::store::redis::charge_replies;

/// Cuts bytes off the front.
fn cut<'b>(rest: &mut &'b [u8], bytes: usize) -> &'b [u8] {
    let (first, after) = rest.split_at(bytes);
    *rest = after;
    first
}

fn double(rest: &mut &[u8]) -> f64 {
    f64::from_le_bytes(cut(rest, 8).try_into().unwrap())
}

fuzz_target!(|bytes: &[u8]| {
    let Some((accounts, packed)) = bytes.split_first() else {
        return;
    };
    let accounts = usize::from(*accounts % 16);
    let text = String::from_utf8_lossy(packed).into_owned();
    for other in [Value::SimpleString(text), Value::Nil, Value::Array(vec![Value::BulkString(packed.to_vec())])] {
        assert!(charge_replies(&other, accounts).is_err(), "{other:?}");
    }
    let value = Value::BulkString(packed.to_vec());
    let Ok(replies) = charge_replies(&value, accounts) else {
        return;
    };
    assert_eq!(replies.len(), accounts);
    assert!(charge_replies(&value, accounts + 1).is_err(), "{packed:?}");
    let mut rest = packed;
    let now = double(&mut rest);
    for reply in replies {
        let code = cut(&mut rest, 1)[0];
        assert!(code <= 9, "{packed:?}");
        let [granted, used, version] = [(); 3].map(|()| double(&mut rest));
        assert_eq!((reply.grant, reply.used), (granted as u64, used as u64));
        assert_eq!(reply.version.is_some(), version >= 0.0);
        assert_eq!(reply.now, now as i64);
        let length = u32::from_le_bytes(cut(&mut rest, 4).try_into().unwrap());
        assert_eq!(reply.record.as_bytes(), cut(&mut rest, length as usize));
    }
    assert!(rest.is_empty(), "{packed:?}");
});
