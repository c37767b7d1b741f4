//! `touchline check --against-running`: the effective changes of a file in a running gateway; and the notes of other commands about
//! differences between the two.
//!
//! The running configuration is read from the gateway's admin listener, the number of affected keys from the store. Nothing is
//! changed. Only the gateway itself can check its environment, and the files and names within its reach: it does so when it reads
//! the file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use serde::Serialize;

use super::output::long_table::write_table;
use super::output::{RecordFormat, cells, prose, write_text};
use super::session::{Expected, Session, UsageError, judged, note};
use crate::config::{About, Config, Difference, Effective};
use crate::policy::key_record::{KeyRecord, KeyState, TierName};
use crate::policy::secret::Secret;
use crate::store::keys_at_once;

/// The timeout for the gateway's answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same for a command that works without it.
const PATIENCE_OF_NOTE: Duration = Duration::from_millis(500);
/// The limit on the answer, above the facts of any configuration.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The bytes read from the socket at once.
const PART_BYTES: usize = 16 * 1024;

/// The changes of a file.
#[derive(Debug, Serialize)]
struct ChangeReport {
    /// The hash of the running configuration.
    running: String,
    /// The hash of the file.
    file: String,
    /// Whether the gateway would apply the file while it runs.
    applies: bool,
    differences: Vec<Difference>,
    keys: Vec<Concerned>,
}

/// The keys that a change affects.
#[derive(Debug, Serialize)]
struct Concerned {
    tier: String,
    /// The units a day in the file; `None` if the file does not have the tier.
    daily: Option<u64>,
    /// The keys that have used that many units today and would be refused until the next quota day; for a removed tier, the keys that
    /// have it.
    keys: u64,
}

/// Compares a loaded file with the configuration of the gateway whose admin listener is at `address`, or at the file's own.
pub(super) fn run(
    config: Config,
    address: Option<SocketAddr>,
    output: RecordFormat,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let address = address.unwrap_or(config.listen.admin.address);
    if address.port() == 0 {
        let message = "the file has no admin listener: write its address, such as --against-running=127.0.0.1:9090";
        return Err(UsageError(message.to_owned()).into());
    }
    let running = ask(address, config.listen.admin.token.as_ref(), PATIENCE).map_err(|error| {
        // As a text: a broken pipe of this connection is not one of the output, after which a command has succeeded.
        anyhow!(
            "cannot read the running configuration from the admin listener {address}: {error:#}"
        )
    })?;
    let differences = running.differences(&config.effective);
    let file = config.hash.clone();
    let (keys, unknown) = match concerned(config, &differences) {
        Ok(keys) => (keys, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let needs_restart = differences.iter().any(|one| one.about == About::Restart);
    let held = keys.iter().any(|one| one.daily.is_none() && one.keys > 0);
    let report = ChangeReport {
        running: running.hash,
        file,
        applies: !needs_restart && !held && unknown.is_none(),
        differences,
        keys,
    };
    let shown = output.write(out, &report, |out| write_people(out, &report));
    let reason = match (needs_restart, held, unknown) {
        (true, _, _) => "a change needs a restart",
        (false, true, _) => "it removes a tier that keys have",
        (false, false, Some(error)) => {
            let unknown = error.context("the keys of changed tiers are unknown");
            return judged(shown, Err(unknown));
        }
        (false, false, None) => return shown,
    };
    let refused = anyhow!("the running gateway would refuse this file: {reason}");
    judged(shown, Err(refused))
}

/// Writes a note for each of these tiers that the gateway behind the file's admin listener does not have; none if there is no answer, or
/// if it needs a token: another process may listen there.
pub(super) fn note_tiers_that_do_not_run<'t>(
    config: &Config,
    tiers: impl IntoIterator<Item = &'t TierName>,
) {
    let admin = &config.listen.admin;
    if admin.address.port() == 0 || admin.token.is_some() {
        return;
    }
    let Ok(running) = ask(admin.address, None, PATIENCE_OF_NOTE) else {
        return;
    };
    for tier in tiers.into_iter().filter(|tier| !running.has_tier(tier)) {
        note(&format!(
            "warning: the running gateway has no tier {tier}: requests of its keys get 500 until this file is applied. If it does not \
             apply it within seconds, `touchline check --against-running` shows why"
        ));
    }
}

/// The configuration of the gateway behind an admin listener; `token` is for a listener that requires one.
fn ask(
    address: SocketAddr,
    token: Option<&Secret>,
    patience: Duration,
) -> anyhow::Result<Effective> {
    let mut socket = TcpStream::connect_timeout(&address, patience)?;
    socket.set_read_timeout(Some(patience))?;
    socket.set_write_timeout(Some(patience))?;
    let authorization = token.map_or(String::new(), |token| {
        format!("Authorization: Bearer {}\r\n", token.reveal())
    });
    let request = format!(
        "GET /config HTTP/1.1\r\nHost: {address}\r\n{authorization}Connection: close\r\n\r\n"
    );
    let late = |error: io::Error| match error.kind() {
        // A read that has timed out "would block".
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            anyhow!("no whole answer within {} s", patience.as_secs())
        }
        _ => error.into(),
    };
    socket.write_all(request.as_bytes()).map_err(late)?;
    let end = Instant::now() + patience;
    let (mut answer, mut part) = (Vec::new(), [0; PART_BYTES]);
    while let read @ 1.. = socket.read(&mut part).map_err(late)? {
        answer.extend_from_slice(part.get(..read).unwrap_or_default());
        if Instant::now() > end || answer.len() > ANSWER_BYTES_MAX {
            bail!("the answer takes too long or is too large");
        }
    }
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some("200") => {}
        Some("401") => {
            bail!(
                "the answer is {status:?}: the gateway has another listen.admin.token than this file"
            )
        }
        _ => bail!("the answer is {status:?}: another program, or a gateway of another version"),
    }
    serde_json::from_str(body).context("the answer is unreadable: a gateway of another version")
}

/// The keys affected by tiers with fewer units and by removed tiers. Reads the store only if there are such tiers.
fn concerned(config: Config, differences: &[Difference]) -> anyhow::Result<Vec<Concerned>> {
    let lowered: BTreeMap<TierName, Option<u64>> = differences
        .iter()
        .filter(|one| one.about == About::Tier && one.fact == "daily" && one.from.is_some())
        .filter_map(|one| {
            let name: TierName = one.name.parse().ok()?;
            let next = config.tier(&name).map(|tier| tier.daily.get());
            // A limit from a variable of the gateway is unknown here, and may be higher.
            let from = one.from.as_deref().and_then(|from| from.parse().ok());
            (next < Some(from.unwrap_or(u64::MAX))).then_some((name, next))
        })
        .collect();
    if lowered.is_empty() {
        return Ok(Vec::new());
    }
    let another_store = |one: &Difference| {
        let is_of_store = one.name.starts_with("store.") || one.name == "quota.timezone";
        one.about == About::Restart && is_of_store
    };
    if differences.iter().any(another_store) {
        // Another store, or its days in another zone, has other keys than the running gateway.
        return Ok(Vec::new());
    }
    Session::run(config, Expected::Database, async |session| {
        let keys = session.store.all_keys().await?;
        let now = session.store.server_time().await?;
        let today = session.config.calendar.day_at(now)?.date;
        let mut used = BTreeMap::new();
        let ids = session.store.ledger_keys(today, today).await?;
        for batch in ids.chunks(keys_at_once(today, today)) {
            let usage = session.store.usage_of(today, today, batch).await?;
            used.extend(usage.iter().map(|day| (day.key, day.used)));
        }
        let concerned = lowered.into_iter().map(|(tier, daily)| {
            let counts = |key: &&KeyRecord| {
                let used = used.get(&key.id).copied().unwrap_or(0);
                match daily {
                    Some(daily) => {
                        key.state == KeyState::Active && used >= key.limit_on(today, daily)
                    }
                    None => key.state != KeyState::Revoked,
                }
            };
            let of_tier = keys.iter().filter(|key| key.tier == tier);
            Concerned {
                tier: tier.to_string(),
                daily,
                keys: of_tier.filter(counts).count() as u64,
            }
        });
        Ok(concerned.collect())
    })
}

fn write_people(out: &mut dyn Write, report: &ChangeReport) -> anyhow::Result<()> {
    if report.differences.is_empty() {
        let (running, file) = (&report.running, &report.file);
        let text = format!("nothing changes in effect: {running} runs, the file is {file}\n");
        return write_text(out, text);
    }
    let cell = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let rows = report.differences.iter().map(|one| {
        let mut row = cells(one, &["about", "name", "fact"])?;
        row.extend([cell(&one.from), cell(&one.to)]);
        Ok(row)
    });
    let rows: serde_json::Result<Vec<_>> = rows.collect();
    write_table(
        out,
        &["about", "name", "fact", "running", "file"],
        &[],
        &rows?,
    )?;
    let mut notes = String::new();
    for one in &report.keys {
        let tier = &one.tier;
        let _ = match one.daily {
            Some(daily) => writeln!(
                notes,
                "active keys of {tier} that have used {daily} units or more today, not counting grants, and would be refused until the next quota day: {}",
                one.keys
            ),
            None => writeln!(notes, "keys of the removed tier {tier}: {}", one.keys),
        };
    }
    write_text(out, prose(&notes))
}
