//! Making one change: once, on the record as stored at that moment, and only after the operator's confirmation if one is needed.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::{Context, bail};
use jiff::Timestamp;

use super::named::existing;
use crate::cli::output::{broken, columns_of, escape};
use crate::cli::session::{Published, Session, UsageError};
use crate::config::Config;
use crate::policy::api_key::KeyId;
use crate::policy::audit::{self, Author};
use crate::policy::key_record::{KeyRecord, TierName};
use crate::policy::lifecycle::{self, KeyChange, Loss, TierOffer};
use crate::store::{ChangeError, ChangeMark, StoreError};

/// How often a change is attempted: another command may change the key at the same time, or while the operator is asked.
const CHANGE_TRIES: usize = 5;

/// Whether the operator has confirmed that a client loses access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Consent {
    /// Confirmed with `--yes`.
    Given,
    /// Not confirmed: ask on the terminal.
    Ask,
}

/// A change that is stored: the record after it, and its mark, or why it may not have been published.
pub(super) type StoredChange = (KeyRecord, Published);

/// The change that a store made, published or not.
pub(super) fn stored(
    changed: Result<(KeyRecord, ChangeMark), ChangeError>,
) -> Result<StoredChange, ChangeError> {
    match changed {
        Ok((record, mark)) => Ok((record, Ok(mark))),
        Err(ChangeError::Unpublished(record, error)) => Ok((*record, Err(error))),
        Err(error) => Err(error),
    }
}

/// The outcome of a change.
pub(super) struct ChangeOutcome {
    /// The store's time of the change.
    pub(super) now: Timestamp,
    /// The record before the change.
    pub(super) before: KeyRecord,
    /// The change; `None` if the record was already so.
    pub(super) made: Option<StoredChange>,
}

impl ChangeOutcome {
    /// The present record.
    pub(super) fn after(&self) -> &KeyRecord {
        self.made
            .as_ref()
            .map_or(&self.before, |(record, _)| record)
    }
}

/// Makes a change once: if another command changes the record first, the change is applied to the new record. `author` is recorded
/// in the audit trail.
///
/// # Errors
/// [`UsageError`] if a client would lose something, the change is not confirmed and there is no terminal to ask on. Nothing is changed then,
/// nor if the change is refused or the answer is no.
pub(super) async fn make(
    session: &Session,
    id: KeyId,
    consent: Consent,
    author: &Author,
    change: &KeyChange,
) -> anyhow::Result<ChangeOutcome> {
    let mut agreed: Option<Vec<Loss>> = None;
    for _ in 0..CHANGE_TRIES {
        let now = session.store.server_time().await?;
        let before = existing(session, id).await?;
        let Some(after) = change
            .applied_to(&before, now)
            .with_context(|| format!("{id} was not changed"))?
        else {
            return Ok(ChangeOutcome {
                now,
                before,
                made: None,
            });
        };
        let losses = lifecycle::losses(&before, &after, now, |tier| offer(&session.config, tier));
        let settled = losses.is_empty() || agreed.as_ref() == Some(&losses);
        if consent == Consent::Ask && !settled {
            ask(&question(verb(change), &before, &losses), &losses)?;
            // Time passed while the operator was asked, and the record may have changed: both are read again.
            agreed = Some(losses);
            continue;
        }
        let after = audit::signed(&before, after, change.action(), author);
        match stored(session.store.update_key(after).await) {
            Err(ChangeError::Conflict(_)) => {}
            Err(ChangeError::Store(error @ StoreError::Unavailable(_))) => {
                let unseen = match matches!(change, KeyChange::Rotate { .. }) {
                    true => " (its new key was not shown)",
                    false => "",
                };
                bail!(
                    "it is unknown whether {id} was changed{unseen}, {error}: check with `touchline keys show {id}` before you try again"
                );
            }
            made => {
                return Ok(ChangeOutcome {
                    now,
                    before,
                    made: Some(made?),
                });
            }
        }
    }
    bail!("other commands keep changing the key {id}: nothing was changed, try again")
}

fn offer(config: &Config, name: &TierName) -> Option<TierOffer> {
    let tier = config.tier(name)?;
    let endpoints = config.endpoints.iter();
    Some(TierOffer {
        daily: tier.daily.get(),
        endpoints: endpoints
            .filter(|endpoint| endpoint.included_in(name))
            .map(|endpoint| endpoint.pattern.clone())
            .collect(),
    })
}

fn effects(losses: &[Loss]) -> String {
    let texts: Vec<String> = losses.iter().map(Loss::to_string).collect();
    texts.join("; ")
}

/// The beginning of the question whether to make a change.
fn verb(change: &KeyChange) -> &'static str {
    match change {
        KeyChange::Rotate { .. } => "Rotate",
        KeyChange::Suspend => "Suspend",
        KeyChange::Resume => "Resume",
        KeyChange::Revoke => "Revoke",
        KeyChange::SetTier(_) => "Change the tier of",
        KeyChange::SetExpiry(_) => "End the subscription of",
        KeyChange::SetLabel(_) => "Label",
        KeyChange::SetCustomer(_) => "Reassign",
        KeyChange::Grant { .. } => "Grant to",
    }
}

fn question(verb: &str, record: &KeyRecord, losses: &[Loss]) -> String {
    format!(
        "{verb} the key {} of {} (tier {})?\nThe effect: {}.\nContinue? [y/N] ",
        record.id,
        escape(&record.customer),
        record.tier,
        effects(losses)
    )
}

/// Asks on the terminal; any answer but yes is no.
fn ask(question: &str, losses: &[Loss]) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() {
        let what = effects(losses);
        bail!(UsageError(format!(
            "nothing was changed. The effect would be: {what}. There is no terminal to ask on: add --yes to confirm"
        )));
    }
    let mut terminal = io::stderr();
    let question = broken(question, columns_of(io::stderr()));
    write!(terminal, "{question}")?;
    terminal.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if !is_yes(&answer) {
        bail!("nothing was changed");
    }
    Ok(())
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::key_record::tests::key_of;

    #[test]
    fn only_yes_is_yes() {
        assert!(is_yes("y\n") && is_yes(" YES\r\n"));
        assert!(!is_yes("") && !is_yes("\n") && !is_yes("yep") && !is_yes("n"));
    }

    #[test]
    fn an_offer_is_what_the_configuration_gives_a_tier() {
        let config = Config::parse("g", include_str!("../../../gateway.yaml"), &|_| None).unwrap();
        let of = |tier: &str| offer(&config, &tier.parse().unwrap());
        let (starter, pro) = (of("starter").unwrap(), of("pro").unwrap());
        assert_eq!((starter.daily, pro.daily), (1_000, 3_000));
        let insights = "/api/v1/data/insights".into();
        assert!(pro.endpoints.contains(&insights) && !starter.endpoints.contains(&insights));
        assert_eq!(of("gold"), None);
    }

    #[test]
    fn a_question_names_the_key_its_holder_and_every_loss() {
        let (_, mut record) = key_of("pro");
        record.customer = "A\u{1b}cme".into();
        let losses = [
            Loss::Units { from: 3, to: 1 },
            Loss::Endpoints(vec!["/a".into(), "/b".into()]),
        ];
        assert_eq!(
            question("Change the tier of", &record, &losses),
            format!(
                "Change the tier of the key {} of A\\u{{1b}}cme (tier pro)?\nThe effect: its daily quota falls from 3 to 1; it loses /a, /b.\nContinue? [y/N] ",
                record.id
            )
        );
    }
}
