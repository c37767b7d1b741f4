//! `touchline explain`: how a gateway would decide a request with a key, step by step, and which settings decide it. Reads the
//! store and charges nothing; needs neither the key's secret nor a running gateway.

use std::collections::BTreeMap;
use std::io::Write;

use clap::Args;
use http::header::X_CONTENT_TYPE_OPTIONS;
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::against_running::note_tiers_that_do_not_run;
use super::key_argument::KeyArgument;
use super::output::long_table::write_table;
use super::output::{RecordFormat, escape, prose, to_the_second, write_record};
use super::session::{Expected, Session, note};
use crate::config::{Config, SourcePosition, Tier};
use crate::policy::admission::{AdmissionStep, Verdict};
use crate::policy::api_key::KeyId;
use crate::policy::audit::Wanted;
use crate::policy::enforcement::ShadowViolation;
use crate::policy::explanation::{self, Outcome, Question, Step};
use crate::policy::http1::fields::FieldList;
use crate::policy::key_record::KeyRecord;
use crate::proxy::forward::NOSNIFF;
use crate::proxy::gate::problem_terms;
use crate::proxy::respond::{announce, insert_quota_status, refusal_fields};
use crate::proxy::well_formed;

#[derive(Debug, Args)]
pub(super) struct ExplainArguments {
    /// The id of the key (the 12 characters between its two underscores), or the key itself.
    #[arg(long, value_name = "ID")]
    key_id: KeyArgument,
    /// The method.
    #[arg(long, default_value = "GET")]
    method: Method,
    /// The path as the client sends it, with its query if any.
    #[arg(long, value_name = "PATH")]
    path: String,
    /// An instant such as 2026-11-21T14:00:00Z instead of now: it selects the quota day and is compared with the key's expiry. Key and
    /// configuration are the present ones.
    #[arg(long, value_parser = parse_instant, value_name = "INSTANT")]
    at: Option<Timestamp>,
    /// The form of the result.
    #[arg(short, long, value_enum, default_value = "table")]
    output: RecordFormat,
}

fn parse_instant(text: &str) -> Result<Timestamp, &'static str> {
    let hint = "write an instant such as 2026-11-21T14:00:00Z";
    text.parse().map_err(|_| hint)
}

/// The result as JSON.
#[derive(Debug, Serialize)]
struct Explained<'a> {
    key_id: KeyId,
    method: &'a str,
    path: &'a str,
    /// The instant for which the request was explained.
    at: Timestamp,
    /// When the units used were read from the store.
    counted_at: Timestamp,
    result: &'static str,
    would_refuse: Option<&'static str>,
    steps: Vec<StepView>,
    answer: ExplainedAnswer,
}

#[derive(Debug, Serialize)]
struct StepView {
    step: u8,
    check: AdmissionStep,
    verdict: Verdict,
    reason: String,
    configuration: Vec<SourcePosition>,
}

/// The answer to the client.
#[derive(Debug, Serialize)]
struct ExplainedAnswer {
    /// `None` for the upstream's status.
    status: Option<u16>,
    code: Option<&'static str>,
    headers: BTreeMap<String, String>,
    /// The body without its request id.
    body: Option<Value>,
}

/// Explains one request on the configured store.
pub(super) fn run(
    arguments: &ExplainArguments,
    config: Config,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    Session::run(config, Expected::Content, async |session| {
        explain(session, arguments, out).await
    })
}

async fn explain(
    session: &Session,
    arguments: &ExplainArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let counted_at = session.store.server_time().await?;
    let now = arguments.at.unwrap_or(counted_at);
    let config = &session.config;
    let day = config.calendar.day_at(now)?;
    let id = arguments.key_id.id(session).await?;
    let record = session.store.key(id).await?;
    let is_later = |record: &KeyRecord| arguments.at.is_some_and(|at| at < record.created);
    if let Some(record) = record.as_ref().filter(|record| is_later(record)) {
        let created = record.created;
        note(&format!(
            "the key was created at {created}: requests before that are refused"
        ));
    }
    let record = record.filter(|record| !is_later(record));
    let tier = record.as_ref().map(|record| &record.tier);
    let tier = tier.filter(|tier| config.tier(tier).is_some());
    note_tiers_that_do_not_run(config, tier);
    let usage = session.store.usage_of(day.date, day.date, &[id]).await?;
    let tier = record.as_ref().and_then(|record| config.tier(&record.tier));
    let is_unusable = |record: &KeyRecord| record.usable(&record.digest, now).is_err();
    let trail = match record.as_ref().is_some_and(is_unusable) {
        true => {
            let wanted = Wanted {
                key: Some(id),
                ..Wanted::default()
            };
            session.store.audit(wanted).await?
        }
        false => Vec::new(),
    };
    let head = well_formed::judge(&arguments.method, &arguments.path, &config.limits);
    let explanation = explanation::explain(&Question {
        method: &arguments.method,
        head: head.as_deref().map_err(Clone::clone),
        record: record.as_ref(),
        trail: &trail,
        terms: tier.map(Tier::terms),
        endpoints: &config.endpoints,
        day,
        used: usage.iter().map(|usage| usage.used).sum(),
        now,
    });
    let (result, would_refuse) = match &explanation.outcome {
        Outcome::Forwarded(permit) => (
            "forwarded",
            permit.shadow_violation.map(ShadowViolation::as_str),
        ),
        Outcome::Answered(_) => ("answered", None),
        Outcome::Refused(_) => ("refused", None),
    };
    let steps = explanation.steps.into_iter();
    let explained = Explained {
        key_id: id,
        method: arguments.method.as_str(),
        path: &arguments.path,
        at: now,
        counted_at,
        result,
        would_refuse,
        steps: steps.map(|step| StepView::of(step, config)).collect(),
        answer: ExplainedAnswer::of(&explanation.outcome, config, now)?,
    };
    let table = |out: &mut dyn Write| explained.write(out);
    arguments.output.write(out, &explained, table)
}

impl StepView {
    fn of(step: Step, config: &Config) -> StepView {
        let settings = step.settings.iter();
        StepView {
            step: step.check.number(),
            check: step.check,
            verdict: step.verdict,
            reason: step.reason,
            configuration: settings.map(|path| config.places.of(path)).collect(),
        }
    }
}

impl ExplainedAnswer {
    fn of(outcome: &Outcome, config: &Config, now: Timestamp) -> anyhow::Result<ExplainedAnswer> {
        let mut fields = FieldList::default();
        let (status, code, body) = match outcome {
            Outcome::Refused(refusal) => {
                let (rejection, quota_status) = (&refusal.rejection, refusal.quota_status);
                let problem = rejection.problem("", &problem_terms(config), now);
                fields = refusal_fields(&problem, quota_status, refusal.endpoint(), now);
                let mut body: Value = serde_json::from_slice(&problem.body)?;
                if let Some(members) = body.as_object_mut() {
                    members.remove("request_id");
                }
                (Some(problem.status), Some(rejection.code()), Some(body))
            }
            Outcome::Answered(quota_status) => {
                if let Some(quota_status) = quota_status {
                    insert_quota_status(&mut fields, *quota_status, now);
                }
                (Some(StatusCode::OK), None, None)
            }
            Outcome::Forwarded(permit) => {
                insert_quota_status(&mut fields, permit.quota_status, now);
                announce(&mut fields, &permit.endpoint.retirement);
                (None, None, None)
            }
        };
        fields.insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
        Ok(ExplainedAnswer {
            status: status.map(|status| status.as_u16()),
            code,
            headers: by_name(&fields),
            body,
        })
    }
}

/// The headers by name; several of one name are joined in one value, as HTTP permits.
fn by_name(fields: &FieldList) -> BTreeMap<String, String> {
    let mut headers: BTreeMap<String, String> = BTreeMap::new();
    for field in fields.iter() {
        let [name, value] = [field.name, field.value].map(String::from_utf8_lossy);
        headers
            .entry(name.into_owned())
            .and_modify(|all| *all = format!("{all}, {value}"))
            .or_insert_with(|| value.into_owned());
    }
    headers
}

impl Explained<'_> {
    fn write(&self, out: &mut dyn Write) -> anyhow::Result<()> {
        let rows = self.steps.iter().map(|step| {
            let places = step.configuration.iter().map(SourcePosition::to_string);
            // JSON has the names for programs.
            vec![
                step.step.to_string(),
                step.check.to_string(),
                step.verdict.to_string(),
                step.reason.clone(),
                places.collect::<Vec<_>>().join(", "),
            ]
        });
        let rows: Vec<_> = rows.collect();
        let header = ["step", "check", "verdict", "why", "configuration"];
        write_table(out, &header, &["step"], &rows)?;
        let shadow = match self.would_refuse {
            Some(word) => format!("; would_refuse: {word}"),
            None => String::new(),
        };
        let status = match (self.answer.status, self.answer.code) {
            (Some(status), Some(code)) => format!("{status} {code}"),
            (Some(status), None) => status.to_string(),
            (None, _) => "the upstream's answer".to_owned(),
        };
        let line = format!(
            "{} {} at {}: {}{shadow}. The client receives {status}, with",
            self.method,
            self.path,
            to_the_second(self.at),
            self.result
        );
        writeln!(out, "\n{}", prose(&escape(&line)))?;
        let headers = self.answer.headers.iter();
        let headers = headers.map(|(name, value)| (name.as_str(), value.clone()));
        let body = self.answer.body.as_ref();
        let detail = body.and_then(|body| body.get("detail")?.as_str());
        let detail = detail.map(|detail| ("detail", detail.to_owned()));
        write_record(out, &headers.chain(detail).collect::<Vec<_>>())
    }
}
