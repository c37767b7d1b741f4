//! How a month is billed.

use crate::config::check::Check;
use crate::config::outline::Path;
use crate::config::scalar::Scalar;
use crate::config::text::{BillingText, Section};
use crate::policy::billing::{Months, Rules, UnusedKeys};

pub(super) fn billing(check: &mut Check<'_>, at: &Path, section: Section<BillingText>) -> Rules {
    let text = check.section(at, section).unwrap_or_default();
    let default = Rules::default();
    Rules {
        months: check.leaf_or(&at.key("months"), &text.months, default.months),
        unused_keys: check.leaf_or(
            &at.key("unused_keys"),
            &text.unused_keys,
            default.unused_keys,
        ),
    }
}

impl Scalar for Months {
    const WHAT: &'static str = "a way to bill months";
    const HINT: &'static str = "write by_day or whole";
    const CHOICES: &'static [&'static str] = &["by_day", "whole"];

    fn parse(text: &str) -> Option<Months> {
        match text {
            "by_day" => Some(Months::ByDay),
            "whole" => Some(Months::Whole),
            _ => None,
        }
    }

    fn show(&self) -> String {
        self.as_str().to_owned()
    }
}

impl Scalar for UnusedKeys {
    const WHAT: &'static str = "a way to bill unused keys";
    const HINT: &'static str = "write bill or skip";
    const CHOICES: &'static [&'static str] = &["bill", "skip"];

    fn parse(text: &str) -> Option<UnusedKeys> {
        match text {
            "bill" => Some(UnusedKeys::Bill),
            "skip" => Some(UnusedKeys::Skip),
            _ => None,
        }
    }

    fn show(&self) -> String {
        self.as_str().to_owned()
    }
}
