//! The configurations of a process since its start: which runs, and which were refused.

use jiff::Timestamp;
use serde::Serialize;

/// The reloads that are kept for the dashboard.
const RELOADS_MAX: usize = 20;
/// The part of a reason that is kept in the list of reloads; the last reason is also kept whole.
const REASON_BYTES_MAX: usize = 2_000;

/// The running configuration, and why the file is not applied if it is not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigView {
    /// The hash of the running configuration.
    pub hash: String,
    /// When it was applied.
    pub applied: Timestamp,
    /// Why the file, or a certificate that it names, is not applied, if it is not.
    pub refused: Option<RefusedFile>,
    /// The results of the configurations since the start, the newest first; 20 at most.
    #[serde(skip)]
    pub reloads: Vec<Reload>,
}

/// The result of one reload, or of the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reload {
    /// When it was applied or refused.
    pub at: Timestamp,
    /// `applied`, or `refused`: the previous configuration continues, completely or in the part that the reason names.
    pub outcome: &'static str,
    /// What caused it: `start`, `signal`, `change`, or `retry` of one that was refused.
    pub cause: &'static str,
    /// The hash of the configuration that runs since then.
    pub hash: String,
    /// Why the configuration was refused, if it was.
    pub reason: Option<String>,
}

/// A configuration that was not applied, or not completely.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedFile {
    /// When it was refused.
    pub at: Timestamp,
    /// The problems of the file, one a line; or why certificates keep their last contents.
    pub reason: String,
}

impl ConfigView {
    /// The view at the start: the configuration with this hash is the first to run.
    pub fn started(hash: String, now: Timestamp) -> ConfigView {
        ConfigView::running(hash, now, Vec::new()).after(now, "start", None)
    }

    /// The view after a reload: the configuration with this hash runs from now on.
    pub fn applied(&self, hash: String, now: Timestamp, cause: &'static str) -> ConfigView {
        ConfigView::running(hash, now, self.reloads.clone()).after(now, cause, None)
    }

    fn running(hash: String, applied: Timestamp, reloads: Vec<Reload>) -> ConfigView {
        ConfigView {
            hash,
            applied,
            refused: None,
            reloads,
        }
    }

    /// The view after a refusal: the same configuration runs, beside a file that was refused.
    pub fn but_refused(&self, refused: RefusedFile, cause: &'static str) -> ConfigView {
        let mut reason = refused.reason.clone();
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        let at = refused.at;
        let view = ConfigView {
            refused: Some(refused),
            ..self.clone()
        };
        view.after(at, cause, Some(reason))
    }

    /// The view with the reload that led to it.
    fn after(mut self, at: Timestamp, cause: &'static str, reason: Option<String>) -> ConfigView {
        let outcome = if reason.is_none() {
            "applied"
        } else {
            "refused"
        };
        let reload = Reload {
            at,
            outcome,
            cause,
            hash: self.hash.clone(),
            reason,
        };
        self.reloads.insert(0, reload);
        self.reloads.truncate(RELOADS_MAX);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reloads_are_reported_newest_first_and_bounded_and_long_reasons_cut_between_characters() {
        let now = Timestamp::UNIX_EPOCH;
        let mut view = ConfigView::started("a".into(), now);
        assert_eq!(view.reloads.len(), 1);
        let reason = "é".repeat(REASON_BYTES_MAX);
        for _ in 0..RELOADS_MAX {
            let refused = RefusedFile {
                at: now,
                reason: format!("x{reason}"),
            };
            view = view.but_refused(refused, "change");
        }
        view = view.applied("b".into(), now, "retry");
        assert_eq!(view.reloads.len(), RELOADS_MAX);
        let outcomes: Vec<&str> = view.reloads.iter().map(|one| one.outcome).collect();
        assert_eq!(outcomes[..2], ["applied", "refused"]);
        assert_eq!((&*view.reloads[0].hash, &*view.reloads[1].hash), ("b", "a"));
        let kept = view.reloads[1].reason.as_ref().unwrap();
        assert!(kept.len() <= REASON_BYTES_MAX && kept.len() > REASON_BYTES_MAX - 2);
        assert_eq!(view.refused, None);
    }
}
