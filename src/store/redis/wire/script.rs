//! The scripts as commands and their replies as values.

use std::sync::OnceLock;

use redis::{Cmd, ToRedisArgs, Value};

use crate::policy::calendar::Day;
use crate::policy::quota::{Code, Reply};

/// A script that does nothing, but does not declare that it writes nothing; servers before Redis 7 cannot load it.
pub static NOTHING: Script = Script::new("#!lua\nreturn 1");
/// The charge.
pub static CHARGE: Script = Script::new(include_str!("../charge.lua"));
/// The compare-and-set of a record.
pub static RECORD: Script = Script::new(include_str!("../record.lua"));
/// The merge of totals that an earlier process left in its journal.
pub static MERGE_TOTALS: Script = Script::new(include_str!("../merge_totals.lua"));

/// The merge of an imported day of a key.
pub static MERGE_DAY: Script = Script::new(include_str!("../merge_day.lua"));

/// The claim of an event.
pub static CLAIM: Script = Script::new(include_str!("../claim.lua"));
/// The right to deliver events.
pub static COURIER: Script = Script::new(include_str!("../courier.lua"));

/// The entry of a gateway in the register.
pub static SIGN_IN: Script = Script::new(include_str!("../sign_in.lua"));
/// The register of gateways.
pub static REGISTER: Script = Script::new(include_str!("../register.lua"));
/// The removal of a gateway that did not sign off.
pub static STRIKE_OFF: Script = Script::new(include_str!("../strike_off.lua"));

/// A script, with its name in the server once it is loaded.
#[derive(Debug)]
pub struct Script {
    source: &'static str,
    sha: OnceLock<String>,
}

impl Script {
    const fn new(source: &'static str) -> Script {
        Script {
            source,
            sha: OnceLock::new(),
        }
    }

    /// The command that loads the script into a server, and returns its name there. In a cluster, each node has its own scripts.
    pub fn loading(&self) -> Cmd {
        redis::cmd("SCRIPT").arg(("LOAD", self.source)).take()
    }

    /// Notes the name under which a server loaded the script.
    pub fn loaded(&self, sha: String) {
        let _ = self.sha.set(sha);
    }

    /// The command that runs it by its name, if it was loaded.
    pub fn by_name(&self, keys: &[impl AsRef<str>], arguments: &impl ToRedisArgs) -> Option<Cmd> {
        let sha = self.sha.get()?;
        Some(command("EVALSHA", sha, keys, arguments))
    }

    /// The command that runs the script by its text.
    pub fn by_text(&self, keys: &[impl AsRef<str>], arguments: &impl ToRedisArgs) -> Cmd {
        command("EVAL", self.source, keys, arguments)
    }
}

fn command(
    name: &str,
    script: &str,
    keys: &[impl AsRef<str>],
    arguments: &impl ToRedisArgs,
) -> Cmd {
    let bytes: usize = keys.iter().map(|key| key.as_ref().len()).sum();
    // A charge, the most frequent call, has two keys for each account.
    let bytes = bytes + script.len() + ACCOUNT_BYTES * keys.len().div_ceil(2);
    let mut command = Cmd::with_capacity(3 + keys.len() + arguments.num_of_args(), bytes + 32);
    command.arg(name).arg(script).arg(keys.len());
    for key in keys {
        command.arg(key.as_ref());
    }
    command.arg(arguments).take()
}

/// The largest number that a script reads exactly.
pub const COUNT_MAX: u64 = 1 << 53;

/// The argument of the charge script: its accounts, packed as `charge.lua` reads them.
#[derive(Debug)]
pub struct ChargeArgument {
    packed: Vec<u8>,
    /// The day of the account before.
    day: Option<Day>,
    /// The position of the byte of the last account that states whether another day follows.
    next: usize,
}

/// The part of one account in a call of the charge script.
#[derive(Debug)]
pub struct AccountCall<'a> {
    /// The name of the account's counts.
    pub producer: &'a str,
    /// Units consumed so far.
    pub ack: u64,
    /// Units refunded so far.
    pub rack: u64,
    /// Units wanted; 0 only merges.
    pub want: u64,
    /// The units of each charge in `want`.
    pub cost: u32,
    /// Units that all producers together may use.
    pub limit: u64,
    /// The version of the record that the waiting requests were checked against.
    pub version: u64,
    /// That record, to repair a lost or older one; empty if there is nothing to repair.
    pub record: &'a str,
    /// The account's day.
    pub day: Day,
}

/// The approximate size of an [`AccountCall`] without its record.
const ACCOUNT_BYTES: usize = 104;

impl ChargeArgument {
    /// An argument without accounts, with room for `accounts`; days are closed `settle_window` seconds after their end.
    pub fn new(settle_window: i64, accounts: usize) -> ChargeArgument {
        let mut packed = Vec::with_capacity(ACCOUNT_BYTES * accounts);
        packed.extend((settle_window as f64).to_le_bytes());
        ChargeArgument {
            packed,
            day: None,
            next: 0,
        }
    }

    /// Adds an account.
    pub fn push(&mut self, account: &AccountCall<'_>) {
        if self.day != Some(account.day) {
            if let (Some(_), Some(next)) = (self.day, self.packed.get_mut(self.next)) {
                *next = 1;
            }
            for second in [account.day.start, account.day.end] {
                self.packed.extend((second as f64).to_le_bytes());
            }
            self.day = Some(account.day);
        }
        for count in [
            account.ack,
            account.rack,
            account.want,
            account.cost.into(),
            account.limit,
            account.version,
        ] {
            self.packed
                .extend((count.min(COUNT_MAX) as f64).to_le_bytes());
        }
        // A producer's name is 25 bytes and the digits of a number, a record a few hundred.
        let producer = account.producer.as_bytes();
        self.packed
            .push(u8::try_from(producer.len()).unwrap_or(u8::MAX));
        self.packed.extend_from_slice(producer);
        let length = u32::try_from(account.record.len()).unwrap_or(u32::MAX);
        self.packed.extend(length.to_le_bytes());
        self.packed.extend_from_slice(account.record.as_bytes());
        self.next = self.packed.len();
        self.packed.push(0);
    }

    /// The one argument of the script.
    pub fn packed(self) -> Vec<u8> {
        self.packed
    }
}

/// Parses the charge script's reply, which has a part for each account; see `charge.lua`.
pub fn charge_replies(value: &Value, accounts: usize) -> Result<Vec<Reply>, String> {
    let Value::BulkString(packed) = value else {
        return Err(format!("the charge script returned {value:?}"));
    };
    let read = || {
        let mut rest = packed.as_slice();
        let now = double(&mut rest)? as i64;
        let mut replies = Vec::with_capacity(accounts);
        for _ in 0..accounts {
            replies.push(charge_reply(&mut rest, now)?);
        }
        rest.is_empty().then_some(replies)
    };
    read().ok_or_else(|| {
        format!("the charge script returned something else than {accounts} accounts: {packed:?}")
    })
}

/// The reply for one account, removed from the front of `rest`.
fn charge_reply(rest: &mut &[u8], now: i64) -> Option<Reply> {
    let [code] = cut(rest)?;
    let code = Code::from_number(code.into())?;
    // The conversion saturates: a negative number becomes 0.
    let (grant, used) = (double(rest)? as u64, double(rest)? as u64);
    let version = double(rest)?;
    let length = usize::try_from(u32::from_le_bytes(cut(rest)?)).ok()?;
    let (record, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(Reply {
        code,
        grant,
        used,
        version: (version >= 0.0).then_some(version as u64),
        now,
        record: std::str::from_utf8(record).ok()?.to_owned(),
    })
}

fn double(rest: &mut &[u8]) -> Option<f64> {
    cut(rest).map(f64::from_le_bytes)
}

/// The first bytes, removed from `rest`.
fn cut<const BYTES: usize>(rest: &mut &[u8]) -> Option<[u8; BYTES]> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*first)
}
