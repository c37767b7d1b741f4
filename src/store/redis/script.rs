//! The scripts as commands and their replies as values.

use std::sync::OnceLock;

use redis::{Cmd, FromRedisValue, Value};
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
        arguments: &Arguments,
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
    pub fn by_text(&self, keys: &[&str], arguments: &Arguments) -> Cmd {
        arguments.command("EVAL", self.source, keys)
    }
}

fn is_unknown_script(error: &redis::RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript)
}

/// Arguments of a script.
#[derive(Debug, Default)]
pub struct Arguments(Vec<Argument>);

#[derive(Debug)]
enum Argument {
    Text(String),
    Number(i64),
}

impl Arguments {
    /// No arguments.
    pub fn new() -> Arguments {
        Arguments::default()
    }

    /// One more, text.
    pub fn text(mut self, text: impl Into<String>) -> Arguments {
        self.0.push(Argument::Text(text.into()));
        self
    }

    /// One more, a number.
    pub fn number(mut self, number: i64) -> Arguments {
        self.0.push(Argument::Number(number));
        self
    }

    /// One more, a count; above 2^53, where the script's numbers end, it is as good as 2^53.
    pub fn count(self, count: u64) -> Arguments {
        let count = count.min(COUNT_MAX);
        self.number(i64::try_from(count).unwrap_or(i64::MAX))
    }

    fn command(&self, name: &str, script: &str, keys: &[&str]) -> Cmd {
        let mut command = Cmd::with_capacity(3 + keys.len() + self.0.len(), 256);
        command.arg(name).arg(script).arg(keys.len());
        for key in keys {
            command.arg(*key);
        }
        for argument in &self.0 {
            match argument {
                Argument::Text(text) => command.arg(text),
                Argument::Number(number) => command.arg(*number),
            };
        }
        command
    }
}

/// The largest number that a script reads exactly.
pub const COUNT_MAX: u64 = 1 << 53;

/// The reply of the charge script.
pub fn charge_reply(value: Value) -> Result<Reply, String> {
    let read = <(i64, i64, i64, i64, i64, String)>::from_redis_value(value);
    let (code, grant, used, version, now, record) =
        read.map_err(|error| format!("the charge script answered {error}"))?;
    let code =
        Code::from_number(code).ok_or_else(|| format!("the charge script answered code {code}"))?;
    Ok(Reply {
        code,
        grant: u64::try_from(grant).unwrap_or(0),
        used: u64::try_from(used).unwrap_or(0),
        version: u64::try_from(version).ok(),
        now,
        record,
    })
}
