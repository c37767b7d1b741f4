//! A command's work on an open store, its notes to the operator, and its errors.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use tokio::sync::mpsc;

use super::output;
use crate::clock::Clock;
use crate::config::{Config, StoreConfig};
use crate::server;
use crate::store::embedded::is_missing;
use crate::store::{ChangeMark, Role, Store, StoreContent, StoreError, Unconfirmed};

/// How long a command waits for the gateways to apply its change, by the contract.
const APPLIED_PATIENCE: Duration = Duration::from_secs(2);
/// How long a command waits for gateways to write back what Redis has lost: they notice a loss within two seconds.
const RESTORATION_PATIENCE: Duration = Duration::from_secs(3);
const RESTORATION_POLL: Duration = Duration::from_millis(100);
/// How long a command waits for a replica of Redis to confirm its change.
const REPLICA_PATIENCE: Duration = Duration::from_millis(500);
/// The most unconfirmed gateways that a message names.
const UNCONFIRMED_NAMED_MAX: usize = 20;
/// The number of pieces of a store's content that are read ahead.
const AHEAD: usize = 1_000;
/// How long a command waits for the store to write pending data.
pub const CLOSE_DEADLINE: Duration = Duration::from_secs(2);

/// A wrong usage of a command that clap cannot detect.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// A stored change that not every gateway is known to have applied.
#[derive(Debug, thiserror::Error)]
#[error("the change is stored, but not confirmed by every gateway: {0}")]
pub struct NotConfirmed(pub String);

/// The mark of a stored change, or why it may not have been published.
pub type Published = Result<ChangeMark, StoreError>;

/// Writes a message to standard error.
pub fn note(text: &str) {
    // A closed standard error is ignored.
    let columns = output::columns_of(io::stderr());
    let _ = writeln!(io::stderr(), "{}", output::broken(text, columns));
}

/// The result of a command with a verdict, whose output was written or not: a failed verdict wins.
pub fn judged(shown: anyhow::Result<()>, verdict: anyhow::Result<()>) -> anyhow::Result<()> {
    if let (Err(error), Err(_)) = (&shown, &verdict)
        && !output::is_closed_pipe(error)
    {
        note(&format!("touchline: {error:#}"));
    }
    verdict.and(shown)
}

/// Runs a command's future to its end.
pub fn on_runtime<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    // One worker beside this thread, so that the store keeps working while a command waits for its operator.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

/// Takes each piece that `read` sends, while it reads on ahead. A failed piece ends both.
pub async fn piped<T>(
    read: impl AsyncFnOnce(mpsc::Sender<T>) -> Result<(), StoreError>,
    mut take: impl AsyncFnMut(T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (sender, mut pieces) = mpsc::channel(AHEAD);
    let take_all = async move {
        while let Some(piece) = pieces.recv().await {
            take(piece).await?;
        }
        anyhow::Ok(())
    };
    let (read, taken) = tokio::join!(read(sender), take_all);
    taken?;
    Ok(read?)
}

/// The store's database file, if it is missing.
pub fn missing_file(store: &StoreConfig) -> Option<PathBuf> {
    match store {
        StoreConfig::Embedded(file) if is_missing(&file.path) => Some(file.path.clone()),
        StoreConfig::Embedded(_) | StoreConfig::Redis(_) => None,
    }
}

/// Checks before a command reads a store that it has its content, and writes a note if keys may be missing. Gateways that run write
/// back what a store has lost; they are waited for, [`RESTORATION_PATIENCE`] at most.
///
/// # Errors
/// If the store was emptied, or never written: all results would be empty. Whether the store can be read is left to the command.
async fn require_content(store: &dyn Store) -> anyhow::Result<()> {
    let patience = Instant::now() + RESTORATION_PATIENCE;
    loop {
        match store.content().await {
            Ok(StoreContent::Whole) | Err(_) => {}
            Ok(StoreContent::Evicted(names)) => note(&format!(
                "Redis evicts keys and counts when its memory is full, and has evicted {names} names since it was started: the result \
                 may lack some. Set maxmemory-policy noeviction"
            )),
            Ok(_) if Instant::now() < patience => {
                tokio::time::sleep(RESTORATION_POLL).await;
                continue;
            }
            Ok(StoreContent::Restoring) => note(
                "Redis has lost keys, and not all are written back yet: the result may lack some. If this remains, start a gateway \
                 that has them",
            ),
            Ok(StoreContent::Unattended) => note(
                "no gateway has run on this Redis yet, or none since it was emptied: then keys and counts are missing until a gateway \
                 that has them starts",
            ),
            Ok(StoreContent::Missing) => bail!(
                "this Redis has no keys: it was emptied or never used, or its address, database or key_prefix is wrong. Correct \
                 store.redis, or start a gateway, which writes back what it has; then repeat the command"
            ),
        }
        return Ok(());
    }
}

/// The state of a store that a command requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Its content: without it, all results would be empty.
    Content,
    /// The file of an embedded store.
    Database,
    /// Nothing: a missing file is created.
    Nothing,
}

/// A configuration and its open store, during one command.
pub struct Session {
    /// The configuration.
    pub config: Config,
    /// The store.
    pub store: Arc<dyn Store>,
}

impl Session {
    /// Opens the store, checks that it has what is expected, runs `work` and closes the store, also after an error.
    ///
    /// # Errors
    /// Also if the store lacks what is expected: a command in the wrong directory would report an empty store.
    pub fn run<T>(
        config: Config,
        expected: Expected,
        work: impl AsyncFnOnce(&Session) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let missing = missing_file(&config.store);
        let here = |path: &Path| std::path::absolute(path).unwrap_or_default();
        if expected != Expected::Nothing
            && let Some(path) = &missing
        {
            bail!(
                "there is no database {}, here {}: run the command in the gateway's working directory, or correct its path \
                 (store.embedded.path, or --from of a copy). `touchline serve`, `keys issue` and `keys import` create a database",
                path.display(),
                here(path).display()
            );
        }
        on_runtime(async {
            let store = server::open_store(&config, Role::Command, Clock::system()).await?;
            if let Some(path) = missing {
                note(&format!(
                    "created the database {}: it has no keys. If a gateway runs, or if there were keys, this is another database, and no \
                     gateway knows the keys in it: check the working directory, store.embedded.path and that its disk is mounted, remove \
                     this one, and repeat the command there",
                    here(&path).display()
                ));
            }
            let session = Session { config, store };
            let outcome = async {
                if expected == Expected::Content {
                    require_content(&*session.store).await?;
                }
                work(&session).await
            };
            let outcome = outcome.await;
            session.store.close(CLOSE_DEADLINE).await;
            outcome
        })
    }

    /// Waits until every gateway has applied a change; without one, the store's last change.
    ///
    /// # Errors
    /// [`NotConfirmed`] with the gateways that have not applied it within the contract's two seconds, and the silent ones, or with the
    /// reason why it was not published. The change is stored all the same.
    pub async fn applied(&self, change: Option<&Published>) -> anyhow::Result<()> {
        if let Some(Ok(_)) = change {
            self.note_replicas().await;
        }
        let mark = match change {
            Some(Err(error)) => bail!(NotConfirmed(not_published(error))),
            Some(Ok(mark)) => Ok(mark.clone()),
            None => self.store.last_change().await,
        };
        let unconfirmed = async { self.store.await_applied(&mark?, APPLIED_PATIENCE).await };
        let unconfirmed = unconfirmed.await.map_err(|error| {
            NotConfirmed(format!(
                "it is unknown whether the gateways applied it: {error}"
            ))
        })?;
        match not_confirmed(&unconfirmed) {
            None => Ok(()),
            Some(text) => Err(NotConfirmed(text).into()),
        }
    }

    /// Waits like [`Self::applied`] after the result of the change was written or not.
    ///
    /// # Errors
    /// [`NotConfirmed`], also if the result could not be written; otherwise the error of writing it.
    pub async fn applied_after(
        &self,
        shown: anyhow::Result<()>,
        change: Option<&Published>,
    ) -> anyhow::Result<()> {
        let applied = self.applied(change).await;
        let shown = shown.map_err(|error| match output::is_closed_pipe(&error) {
            true => error,
            false => anyhow!(
                "the change is stored, but its result could not be shown ({error:#}): do not repeat it"
            ),
        });
        judged(shown, applied)
    }

    /// Writes a note if a failover of the store could still lose the change.
    async fn note_replicas(&self) {
        match self.store.await_replicas(REPLICA_PATIENCE).await {
            Ok(replicas) if replicas.connected > 0 && replicas.confirmed == 0 => note(&format!(
                "The change is stored, but none of the {} replicas of Redis confirmed it within {} ms: a failover \
                now could lose it until a gateway restores it.",
                replicas.connected,
                REPLICA_PATIENCE.as_millis()
            )),
            Ok(_) => {}
            Err(error) => note(&format!(
                "The change is stored, but it is unknown whether a replica of Redis has it: {error}"
            )),
        }
    }
}

/// The message about a change that may not have been published.
fn not_published(error: &StoreError) -> String {
    format!(
        "it may not have been published ({error}). A gateway then learns of it with its next charge of the key, or within ten minutes, and \
         may refuse a new key or secret until then. Do not issue, rotate or grant again: that would act once more"
    )
}

/// The message about gateways that have not confirmed a change; `None` if all have.
fn not_confirmed(gateways: &[Unconfirmed]) -> Option<String> {
    let named = |gateway: &Unconfirmed| match gateway.silent_since {
        None => format!(
            "{} (has not confirmed it within {} s)",
            gateway.name,
            APPLIED_PATIENCE.as_secs()
        ),
        Some(since) => format!("{} (silent since {since})", gateway.name),
    };
    let mut text = gateways
        .iter()
        .take(UNCONFIRMED_NAMED_MAX)
        .map(named)
        .collect::<Vec<_>>()
        .join(", ");
    if let Some(more @ 1..) = gateways.len().checked_sub(UNCONFIRMED_NAMED_MAX) {
        text.push_str(&format!(" and {more} more: see `touchline store status`"));
    }
    if gateways.iter().any(|one| one.silent_since.is_some()) {
        text.push_str(
            ". A gateway that cannot reach Redis may accept the keys it knows until its store.redis.max_staleness is over. \
            Remove gateways that are gone for good: `touchline store forget NODE`",
        );
    }
    (!gateways.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::NodeName;

    #[test]
    fn gateways_that_have_not_confirmed_a_change_are_named_up_to_twenty() {
        let gateway = |number: usize, silent_since: Option<&str>| Unconfirmed {
            name: NodeName(format!("web-{number}")),
            silent_since: silent_since.map(|since| since.parse().unwrap()),
        };
        assert_eq!(not_confirmed(&[]), None);
        let late = not_confirmed(&[gateway(1, None)]).unwrap();
        assert_eq!(late, "web-1 (has not confirmed it within 2 s)");
        let since = Some("2026-11-21T12:00:00Z");
        let both = not_confirmed(&[gateway(1, None), gateway(2, since)]).unwrap();
        assert!(both.starts_with(
            "web-1 (has not confirmed it within 2 s), web-2 (silent since 2026-11-21T12:00:00Z). "
        ));
        assert!(both.contains("max_staleness") && both.contains("touchline store forget"));
        let many: Vec<_> = (1..=22).map(|number| gateway(number, since)).collect();
        let message = not_confirmed(&many).unwrap();
        assert!(message.contains("web-20 (") && !message.contains("web-21"));
        assert!(message.contains(" and 2 more: see"), "{message}");
        assert!(!not_confirmed(&many[..20]).unwrap().contains(" more"));
    }
}
