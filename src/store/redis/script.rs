//! The scripts as commands and their replies as values.

use std::borrow::Cow;
use std::sync::OnceLock;

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::link::{Link, LinkError};
use crate::policy::quota::{Code, Reply};

/// The charge.
pub static CHARGE: Script = Script {
    source: include_str!("charge.lua"),
    sha: OnceLock::new(),
};
/// The compare-and-set of a record.
pub static RECORD: Script = Script {
    source: include_str!("record.lua"),
    sha: OnceLock::new(),
};
/// The merge of totals that an earlier process left in its journal.
pub static MERGE_TOTALS: Script = Script {
    source: include_str!("merge_totals.lua"),
    sha: OnceLock::new(),
};

/// The merge of a key's day that was carried here.
pub static MERGE_DAY: Script = Script {
    source: include_str!("merge_day.lua"),
    sha: OnceLock::new(),
};

/// The claim of an event.
pub static CLAIM: Script = Script {
    source: include_str!("claim.lua"),
    sha: OnceLock::new(),
};
/// The right to deliver events.
pub static COURIER: Script = Script {
    source: include_str!("courier.lua"),
    sha: OnceLock::new(),
};

/// The entry of a gateway in the register.
pub static SIGN_IN: Script = Script {
    source: include_str!("sign_in.lua"),
    sha: OnceLock::new(),
};
/// The register of gateways.
pub static REGISTER: Script = Script {
    source: include_str!("register.lua"),
    sha: OnceLock::new(),
};
/// The removal of a gateway that did not sign off.
pub static STRIKE_OFF: Script = Script {
    source: include_str!("strike_off.lua"),
    sha: OnceLock::new(),
};

/// A script and the name that the server gave it.
#[derive(Debug)]
pub struct Script {
    source: &'static str,
    sha: OnceLock<String>,
}

impl Script {
    /// Loads it into the server on a fresh connection. In a cluster every node has scripts of its own.
    pub async fn load(
        &self,
        connection: &mut impl redis::aio::ConnectionLike,
    ) -> Result<(), redis::RedisError> {
        let sha: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(self.source)
            .query_async(connection)
            .await?;
        let _ = self.sha.set(sha);
        Ok(())
    }

    /// Runs it: by its name, and once by its text where the server has forgotten it.
    pub async fn run(
        &self,
        link: &Link,
        keys: &[&str],
        arguments: &Arguments<'_>,
        deadline: Instant,
    ) -> Result<Value, LinkError> {
        if let Some(sha) = self.sha.get() {
            let by_name = arguments.command("EVALSHA", sha, keys);
            match link.query(&by_name, deadline).await {
                Err(LinkError::Refused(error)) if is_unknown_script(&error) => {}
                other => return other,
            }
        }
        link.query(&self.by_text(keys, arguments), deadline).await
    }

    /// The command that runs it by its text.
    pub fn by_text(&self, keys: &[&str], arguments: &Arguments<'_>) -> Cmd {
        arguments.command("EVAL", self.source, keys)
    }
}

fn is_unknown_script(error: &redis::RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript)
}

/// Arguments of a script.
#[derive(Debug, Default)]
pub struct Arguments<'a>(Vec<Argument<'a>>);

#[derive(Debug)]
enum Argument<'a> {
    Text(Cow<'a, str>),
    Number(i64),
}

impl<'a> Arguments<'a> {
    /// No arguments.
    pub fn new() -> Arguments<'a> {
        Arguments::default()
    }

    /// No arguments, but room for so many.
    pub fn with_capacity(count: usize) -> Arguments<'a> {
        Arguments(Vec::with_capacity(count))
    }

    /// One more, text.
    pub fn text(mut self, text: impl Into<Cow<'a, str>>) -> Arguments<'a> {
        self.0.push(Argument::Text(text.into()));
        self
    }

    /// One more, a number.
    pub fn number(mut self, number: i64) -> Arguments<'a> {
        self.0.push(Argument::Number(number));
        self
    }

    /// One more, a count; above 2^53, where the script's numbers end, it is as good as 2^53.
    pub fn count(self, count: u64) -> Arguments<'a> {
        let count = count.min(COUNT_MAX);
        self.number(i64::try_from(count).unwrap_or(i64::MAX))
    }

    fn command(&self, name: &str, script: &str, keys: &[&str]) -> Cmd {
        let bytes: usize = self.0.iter().map(Argument::bytes).sum();
        let bytes = bytes + keys.iter().map(|key| key.len()).sum::<usize>() + script.len();
        let mut command = Cmd::with_capacity(3 + keys.len() + self.0.len(), bytes + 16);
        command.arg(name).arg(script).arg(keys.len());
        for key in keys {
            command.arg(*key);
        }
        for argument in &self.0 {
            match argument {
                Argument::Text(text) => command.arg(text.as_ref()),
                Argument::Number(number) => command.arg(*number),
            };
        }
        command
    }
}

impl Argument<'_> {
    /// About how long it is when it is written.
    fn bytes(&self) -> usize {
        match self {
            Argument::Text(text) => text.len(),
            Argument::Number(_) => 20,
        }
    }
}

/// The largest number that a script reads exactly.
pub const COUNT_MAX: u64 = 1 << 53;

/// The reply of the charge script to so many calls, an answer each.
pub fn charge_replies(value: Value, calls: usize) -> Result<Vec<Reply>, String> {
    let not_these = || format!("the charge script answered something else than {calls} calls");
    let Value::Array(answers) = value else {
        return Err(not_these());
    };
    let [Value::Int(now), answers @ ..] = answers.as_slice() else {
        return Err(not_these());
    };
    if answers.len() != calls {
        return Err(not_these());
    }
    let read = |answer: &Value| {
        let read = match answer {
            Value::BulkString(bytes) => charge_reply(bytes, *now),
            _ => None,
        };
        read.ok_or_else(|| format!("the charge script answered {answer:?}"))
    };
    answers.iter().map(read).collect()
}

/// One of them: `code grant used version record`.
fn charge_reply(answer: &[u8], now: i64) -> Option<Reply> {
    let mut parts = std::str::from_utf8(answer).ok()?.splitn(5, ' ');
    let mut number = || parts.next()?.parse::<i64>().ok();
    let (code, grant, used, version) = (number()?, number()?, number()?, number()?);
    Some(Reply {
        code: Code::from_number(code)?,
        grant: u64::try_from(grant).unwrap_or(0),
        used: u64::try_from(used).unwrap_or(0),
        version: u64::try_from(version).ok(),
        now,
        record: parts.next()?.to_owned(),
    })
}
