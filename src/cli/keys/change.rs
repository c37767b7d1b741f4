//! Making one change: on what is stored at that moment, once, and not before whoever is asked has agreed.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::{Context, bail};
use jiff::Timestamp;

use super::{Session, UsageError, existing};
use crate::cli::output::{broken, columns_of, escape};
use crate::config::Config;
use crate::policy::api_key::KeyId;
use crate::policy::audit::{self, Author};
use crate::policy::key_record::{KeyRecord, TierName};
use crate::policy::lifecycle::{self, Change, Loss, Offer};
use crate::store::{ChangeError, ChangeMark, StoreError};

/// How often a change is tried anew: because somebody else changed the key at the same time, or after asking.
const CHANGE_TRIES: usize = 5;

/// Whether the operator has agreed to cut somebody off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Consent {
    /// With `--yes`.
    Given,
    /// Not yet: ask on the terminal.
    Ask,
}

impl Consent {
    /// What `--yes` stands for.
    pub(super) fn of(yes: bool) -> Consent {
        if yes { Consent::Given } else { Consent::Ask }
    }
}

/// What became of a change.
pub(super) struct Outcome {
    /// The store's time when it was made.
    pub(super) now: Timestamp,
    /// The record before.
    pub(super) before: KeyRecord,
    /// The record after, and the place of the change; `None` where the record was so already.
    pub(super) made: Option<(KeyRecord, ChangeMark)>,
}

impl Outcome {
    /// The record as it is now.
    pub(super) fn after(&self) -> &KeyRecord {
        self.made
            .as_ref()
            .map_or(&self.before, |(record, _)| record)
    }
}

/// Makes the change that `wish` tells for the store's time, anew on what is stored whenever somebody else was quicker; so it is
/// made once. `verb` begins the question, such as `Suspend`; `author` goes into the audit trail.
///
/// # Errors
/// [`UsageError`] if somebody would be cut off, nobody agreed and there is no terminal to ask on. Nothing is changed then, nor
/// where the change is refused or the answer was no.
pub(super) async fn make(
    session: &Session,
    id: KeyId,
    verb: &str,
    consent: Consent,
    author: &Author,
    wish: impl Fn(Timestamp) -> anyhow::Result<Change>,
) -> anyhow::Result<Outcome> {
    let mut agreed: Option<Vec<Loss>> = None;
    for _ in 0..CHANGE_TRIES {
        let now = session.store.server_time().await?;
        let before = existing(session, id).await?;
        let change = wish(now)?;
        let Some(after) = change
            .applied_to(&before, now)
            .with_context(|| format!("{id} was not changed"))?
        else {
            return Ok(Outcome {
                now,
                before,
                made: None,
            });
        };
        let losses = lifecycle::losses(&before, &after, now, |tier| offer(&session.config, tier));
        let settled = losses.is_empty() || agreed.as_ref() == Some(&losses);
        if consent == Consent::Ask && !settled {
            ask(&question(verb, &before, &losses), &losses)?;
            // While the operator thought, the time went on and the record may have changed: both are read again.
            agreed = Some(losses);
            continue;
        }
        let after = audit::signed(&before, after, change.action(), author);
        match session.store.update_key(after).await {
            Ok(made) => {
                return Ok(Outcome {
                    now,
                    before,
                    made: Some(made),
                });
            }
            Err(ChangeError::Conflict(_)) => {}
            Err(ChangeError::Store(error @ StoreError::Unavailable(_))) => {
                let unseen = match change {
                    Change::Rotate { .. } => " (its new key was not shown)",
                    Change::Suspend
                    | Change::Resume
                    | Change::Revoke
                    | Change::SetTier(_)
                    | Change::SetExpiry(_)
                    | Change::SetLabel(_)
                    | Change::SetCustomer(_)
                    | Change::Grant { .. } => "",
                };
                bail!(
                    "whether {id} was changed{unseen} is unknown, {error}: look with `touchline keys show {id}` before you try again"
                );
            }
            Err(
                error @ (ChangeError::UnknownKey(_)
                | ChangeError::Exists(_)
                | ChangeError::Store(_)),
            ) => {
                return Err(error.into());
            }
        }
    }
    bail!("somebody else keeps changing the key {id}: nothing was changed, try again")
}

fn offer(config: &Config, name: &TierName) -> Option<Offer> {
    let tier = config.tier(name)?;
    let endpoints = config.endpoints.iter();
    Some(Offer {
        daily: tier.daily.get(),
        endpoints: endpoints
            .filter(|endpoint| endpoint.included_in(name))
            .map(|endpoint| endpoint.pattern.clone())
            .collect(),
    })
}

fn told(losses: &[Loss]) -> String {
    let texts: Vec<String> = losses.iter().map(Loss::to_string).collect();
    texts.join("; ")
}

fn question(verb: &str, record: &KeyRecord, losses: &[Loss]) -> String {
    format!(
        "{verb} the key {} of {} (tier {})?\nThe effect: {}.\nContinue? [y/N] ",
        record.id,
        escape(&record.customer),
        record.tier,
        told(losses)
    )
}

/// Asks on the terminal; anything but yes is no.
fn ask(question: &str, losses: &[Loss]) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() {
        let what = told(losses);
        return Err(UsageError(format!(
            "nothing was changed. The effect would be: {what}. There is no terminal to ask on: add --yes to confirm"
        ))
        .into());
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
