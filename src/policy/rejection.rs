//! Every error answer of the gateway to a client, in one table: status, code, body, headers.
//!
//! Bodies are `application/problem+json` (RFC 9457) with the type `about:blank`, whose title is the status phrase, except for the
//! 429, whose type and `violated-policies` come from draft-ietf-httpapi-ratelimit-headers-11. `code` never changes. Nothing here
//! names hosts, stores, files or keys: texts are constants, values are numbers, tier names and the request id.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::time::Duration;

use http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use jiff::Timestamp;

use super::json;
use super::key_record::TierName;
use super::limit_hit::LimitHit;
use super::maintenance::Maintenance;
use super::rate_limit::{DAILY_POLICY, QuotaStatus};
use super::target::TargetError;
use super::token_bucket::Rate;
use super::words::counted;

/// The `Retry-After` in seconds after a failure of ours: time for a breaker or an upstream to recover.
const INTERNAL_RETRY_AFTER_SECONDS: u32 = 2;
/// More than the body of nearly every rejection: a 429 has about 400 bytes.
const BODY_BYTES: usize = 512;
/// The problem type of an exhausted quota, from the RateLimit draft.
const QUOTA_EXCEEDED_TYPE: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// Why a request is malformed (400).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Not the head of an HTTP/1 request that every server would read in the same way.
    Head,
    /// A head or a body that did not arrive in time.
    Late,
    /// The target is ambiguous or not allowed.
    Target(TargetError),
    /// HTTP/1.1 without exactly one valid `Host`.
    Host,
    /// Sent without TLS to a port for HTTPS.
    ClearText,
    /// A host to which no request is redirected.
    OtherHost,
    /// A body with a method that accepts none.
    UnexpectedBody,
    /// The framing headers are wrong or contradict each other.
    Framing,
    /// A body that is not framed as its headers state.
    Body,
    /// `Connection` names a header that it must not.
    Connection,
}

impl Malformed {
    fn detail(self) -> &'static str {
        match self {
            Malformed::Head => "The request is not well-formed HTTP/1.1.",
            Malformed::Late => "The request did not arrive in time.",
            Malformed::Target(error) => error.as_str(),
            Malformed::Host => "The request needs exactly one valid Host header.",
            Malformed::ClearText => {
                "The request was sent without TLS to a port that accepts HTTPS only: use an https URL."
            }
            Malformed::OtherHost => "The host of the request is not a host of this API.",
            Malformed::UnexpectedBody => "A request with this method must not have a body.",
            Malformed::Connection => "The Connection header names a header that it must not.",
            Malformed::Framing => {
                "The headers that frame the request body are not valid, or contradict each other."
            }
            Malformed::Body => "The request body is not framed as its headers state.",
        }
    }
}

/// A limit of each gateway on the requests of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Policy `burst`: how fast the key may send requests, by its tier. Requests that steps 4 to 6 refuse count too.
    Burst(Rate),
    /// Policy `usage`: how often the key may read its usage.
    UsageRead,
    /// Policy `concurrent`: how many requests of the key may be in flight, by its tier.
    Concurrent(NonZeroU32),
}

/// A limit of a key that a request exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExceededLimit {
    /// Policy `daily`: the quota.
    Daily,
    /// A limit of each gateway, and the time until it has room: zero if that is unknown.
    OfGateway(Limit, Duration),
}

impl ExceededLimit {
    /// The name of the policy; that of a limit of each gateway is also the limit's in the metrics.
    fn policy(self) -> &'static str {
        self.limit_hit().map_or(DAILY_POLICY, LimitHit::as_str)
    }

    fn limit_hit(self) -> Option<LimitHit> {
        match self {
            ExceededLimit::Daily => None,
            ExceededLimit::OfGateway(Limit::UsageRead, _) => Some(LimitHit::Usage),
            ExceededLimit::OfGateway(Limit::Burst(_), _) => Some(LimitHit::Burst),
            ExceededLimit::OfGateway(Limit::Concurrent(_), _) => Some(LimitHit::Concurrent),
        }
    }

    /// The sentence for the client.
    fn detail(self, quota_status: &QuotaStatus) -> Cow<'static, str> {
        match self {
            ExceededLimit::Daily => match quota_status.remaining() {
                Some(remaining) if remaining > 0 => {
                    let left = counted(remaining, "unit", "units");
                    format!("This request costs more than the {left} left of today's quota.")
                }
                _ => {
                    let limit = counted(quota_status.limit, "unit", "units");
                    format!("Today's quota of {limit} is used up.")
                }
            },
            ExceededLimit::OfGateway(Limit::UsageRead, _) => {
                return "Usage is read too often: at most once a second, with short bursts. The daily quota is not touched.".into();
            }
            ExceededLimit::OfGateway(Limit::Burst(rate), _) => format!(
                "Requests come too fast: your tier takes {} a second and {} at once. The daily quota is not touched.",
                rate.tokens_per_second(),
                rate.burst
            ),
            ExceededLimit::OfGateway(Limit::Concurrent(allowed), _) => format!(
                "Too many requests at the same time: your tier takes {allowed}. The daily quota is not touched."
            ),
        }
        .into()
    }
}

/// A refusal, with the values of its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// 400 `BAD_REQUEST`.
    BadRequest(Malformed),
    /// 413 `PAYLOAD_TOO_LARGE`.
    PayloadTooLarge,
    /// 414 `URI_TOO_LONG`.
    UriTooLong,
    /// 431 `HEADERS_TOO_LARGE`.
    HeadersTooLarge,
    /// 401 `MISSING_API_KEY`.
    MissingApiKey,
    /// 401 `INVALID_API_KEY`: one answer for unknown, malformed, duplicated, revoked, suspended and expired keys.
    InvalidApiKey,
    /// 404 `NOT_FOUND`.
    NotFound,
    /// 405 `METHOD_NOT_ALLOWED`.
    MethodNotAllowed {
        /// The methods of the endpoint, as in `Allow`.
        allow: String,
    },
    /// 403 `TIER_INSUFFICIENT`.
    TierInsufficient {
        /// The caller's tier.
        tier: TierName,
        /// The tiers that include the endpoint.
        required: Vec<TierName>,
    },
    /// 429 `RATE_LIMIT_EXCEEDED`, with the quota status of the key in its daily quota, unchanged by this request.
    RateLimitExceeded(ExceededLimit, QuotaStatus),
    /// 500 `INTERNAL_ERROR`: the endpoint is under maintenance, as configured by operators.
    Maintenance(Maintenance),
    /// 500 `INTERNAL_ERROR`: every failure of ours or the upstream's.
    Internal,
}

/// What the problem answers of one configuration have in common.
#[derive(Debug)]
pub struct ProblemTerms {
    /// The `WWW-Authenticate` of a 401 (RFC 9110 section 11.6.1).
    challenge: HeaderValue,
    /// The member `documentation`: a URL.
    documentation: Option<Box<str>>,
}

/// An answer's status, body and the headers specific to its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProblemAnswer {
    /// The status.
    pub status: StatusCode,
    /// `WWW-Authenticate`, `Allow` or `Retry-After`.
    pub header: Option<(HeaderName, HeaderValue)>,
    /// The JSON body.
    pub body: Vec<u8>,
}

/// The media type of every error body.
pub const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

impl Rejection {
    /// The status, the code, and the gateway's limit that is exceeded.
    fn kind(&self) -> (StatusCode, &'static str, Option<LimitHit>) {
        let of = |status, code| (status, code, None);
        match self {
            Rejection::BadRequest(_) => of(StatusCode::BAD_REQUEST, "BAD_REQUEST"),
            Rejection::PayloadTooLarge => {
                let limit_hit = Some(LimitHit::BodyBytes);
                (
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "PAYLOAD_TOO_LARGE",
                    limit_hit,
                )
            }
            Rejection::UriTooLong => {
                let limit_hit = Some(LimitHit::TargetBytes);
                (StatusCode::URI_TOO_LONG, "URI_TOO_LONG", limit_hit)
            }
            Rejection::HeadersTooLarge => {
                let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                (status, "HEADERS_TOO_LARGE", Some(LimitHit::Headers))
            }
            Rejection::MissingApiKey => of(StatusCode::UNAUTHORIZED, "MISSING_API_KEY"),
            Rejection::InvalidApiKey => of(StatusCode::UNAUTHORIZED, "INVALID_API_KEY"),
            Rejection::NotFound => of(StatusCode::NOT_FOUND, "NOT_FOUND"),
            Rejection::MethodNotAllowed { .. } => {
                of(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED")
            }
            Rejection::TierInsufficient { .. } => of(StatusCode::FORBIDDEN, "TIER_INSUFFICIENT"),
            Rejection::RateLimitExceeded(limit, _) => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                (status, "RATE_LIMIT_EXCEEDED", limit.limit_hit())
            }
            Rejection::Maintenance(_) | Rejection::Internal => {
                of(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_ERROR")
            }
        }
    }

    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        self.kind().0
    }

    /// The stable code for programs.
    pub fn code(&self) -> &'static str {
        self.kind().1
    }

    /// The outcome in logs and metrics: the code, but for maintenance, which operators plan and clients see as a failure.
    pub fn outcome(&self) -> &'static str {
        match self {
            Rejection::Maintenance(_) => "maintenance",
            other => other.code(),
        }
    }

    /// The gateway's limit that the request exceeded; the daily quota is none of them.
    pub fn limit_hit(&self) -> Option<LimitHit> {
        self.kind().2
    }

    /// The policy of a 429, as in `violated-policies` and the access log.
    pub fn policy(&self) -> Option<&'static str> {
        let Rejection::RateLimitExceeded(limit, _) = self else {
            return None;
        };
        Some(limit.policy())
    }

    /// The same rejection with the caller's present quota status, if it states one.
    pub fn at(mut self, now_at: QuotaStatus) -> Rejection {
        if let Rejection::RateLimitExceeded(_, quota_status) = &mut self {
            *quota_status = now_at;
        }
        self
    }

    /// The sentence for the client.
    pub fn detail(&self) -> Cow<'_, str> {
        Cow::Borrowed(match self {
            Rejection::BadRequest(malformed) => malformed.detail(),
            Rejection::PayloadTooLarge => "The request body is larger than this service accepts.",
            Rejection::UriTooLong => "The request target is longer than this service accepts.",
            Rejection::HeadersTooLarge => {
                "The request headers are larger or more than this service accepts."
            }
            Rejection::MissingApiKey => "Send your API key in the X-API-Key header.",
            Rejection::InvalidApiKey => {
                "The API key is not valid: it is mistyped, unknown, revoked or its subscription has ended."
            }
            Rejection::NotFound => "There is no such endpoint.",
            Rejection::MethodNotAllowed { allow } => {
                return format!("This endpoint takes {allow} only.").into();
            }
            Rejection::TierInsufficient { tier, required } => {
                let names: Vec<&str> = required.iter().map(TierName::as_str).collect();
                let names = names.join(", ");
                return format!(
                    "Your tier, {tier}, does not include this endpoint. It is included in: {names}."
                )
                .into();
            }
            Rejection::RateLimitExceeded(limit, quota_status) => return limit.detail(quota_status),
            Rejection::Maintenance(maintenance) => maintenance.detail(),
            Rejection::Internal => {
                "The request could not be served. It was not charged; please try again."
            }
        })
    }

    /// The whole answer.
    pub fn problem(&self, request_id: &str, terms: &ProblemTerms, now: Timestamp) -> ProblemAnswer {
        ProblemAnswer {
            status: self.status(),
            header: self.header(&terms.challenge, now),
            body: self.body(request_id, terms, now),
        }
    }

    fn header(&self, challenge: &HeaderValue, now: Timestamp) -> Option<(HeaderName, HeaderValue)> {
        let retry_after: HeaderValue = match self {
            Rejection::MissingApiKey | Rejection::InvalidApiKey => {
                return Some((WWW_AUTHENTICATE, challenge.clone()));
            }
            Rejection::MethodNotAllowed { allow } => {
                return Some((ALLOW, HeaderValue::from_str(allow).ok()?));
            }
            Rejection::RateLimitExceeded(limit, quota_status) => match limit {
                ExceededLimit::Daily => quota_status.day.seconds_left(now).into(),
                ExceededLimit::OfGateway(_, wait) => whole_seconds(*wait).into(),
            },
            Rejection::Maintenance(maintenance) => maintenance.retry_after_seconds(now).into(),
            Rejection::Internal => INTERNAL_RETRY_AFTER_SECONDS.into(),
            Rejection::BadRequest(_)
            | Rejection::PayloadTooLarge
            | Rejection::UriTooLong
            | Rejection::HeadersTooLarge
            | Rejection::NotFound
            | Rejection::TierInsufficient { .. } => return None,
        };
        Some((RETRY_AFTER, retry_after))
    }

    /// The text of the body; that of a 429 follows draft-ietf-httpapi-ratelimit-headers-11, section "Problem Types".
    fn body(&self, request_id: &str, terms: &ProblemTerms, now: Timestamp) -> Vec<u8> {
        let status = self.status();
        let (problem_type, title) = match self.policy() {
            None => ("about:blank", status.canonical_reason().unwrap_or_default()),
            Some(DAILY_POLICY) => (
                QUOTA_EXCEEDED_TYPE,
                "Request cannot be satisfied as assigned quota has been exceeded",
            ),
            // The daily quota may be untouched.
            Some(_) => (QUOTA_EXCEEDED_TYPE, "Too many requests at once"),
        };
        let mut out = Vec::with_capacity(BODY_BYTES);
        json::push_text(&mut out, "{\"type\":", problem_type);
        json::push_text(&mut out, ",\"title\":", title);
        json::push_number(&mut out, ",\"status\":", status.as_u16());
        json::push_text(&mut out, ",\"detail\":", &self.detail());
        json::push_text(&mut out, ",\"code\":", self.code());
        json::push_text(&mut out, ",\"request_id\":", request_id);
        if let Some(documentation) = &terms.documentation {
            json::push_text(&mut out, ",\"documentation\":", documentation);
        }
        if let Rejection::TierInsufficient { tier, required } = self {
            json::push_text(&mut out, ",\"tier\":", tier.as_str());
            out.extend_from_slice(b",\"required_tiers\":[");
            for (at, tier) in required.iter().enumerate() {
                let comma = if at == 0 { "" } else { "," };
                json::push_text(&mut out, comma, tier.as_str());
            }
            out.push(b']');
        }
        if let Rejection::RateLimitExceeded(limit, quota_status) = self {
            json::push_number(&mut out, ",\"limit\":", quota_status.limit);
            if let Some(used) = quota_status.used {
                json::push_number(&mut out, ",\"used\":", used);
            }
            let reset = Timestamp::from_second(quota_status.day.end).unwrap_or(now);
            json::push_text(&mut out, ",\"reset\":", &reset.to_string());
            json::push_text(&mut out, ",\"violated-policies\":[", limit.policy());
            out.push(b']');
        }
        out.push(b'}');
        out
    }
}

impl ProblemTerms {
    /// The terms for a `realm` that has been checked to be a plain quoted string, and the URL of the errors' documentation.
    pub fn new(realm: &str, documentation: Option<&str>) -> ProblemTerms {
        let challenge = HeaderValue::try_from(format!("ApiKey realm=\"{realm}\""));
        ProblemTerms {
            challenge: challenge.unwrap_or(HeaderValue::from_static("ApiKey")),
            documentation: documentation.map(Box::from),
        }
    }

    /// The URL of the errors' documentation.
    pub fn documentation(&self) -> Option<&str> {
        self.documentation.as_deref()
    }
}

/// A wait in whole seconds, rounded up, at least one.
fn whole_seconds(wait: Duration) -> u64 {
    let seconds = wait.as_nanos().div_ceil(1_000_000_000).max(1);
    u64::try_from(seconds).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::calendar::Day;

    fn now() -> Timestamp {
        "2026-11-21T23:59:00Z".parse().unwrap()
    }

    fn body(rejection: &Rejection) -> serde_json::Value {
        serde_json::from_slice(
            &rejection
                .problem("r-1", &ProblemTerms::new("touchline", None), now())
                .body,
        )
        .unwrap()
    }

    #[test]
    fn a_quota_is_counted_in_units_as_costs_are() {
        let detail = |used| {
            let quota_status = QuotaStatus {
                limit: 10,
                used: Some(used),
                day: day(),
            };
            body(&exceeded(quota_status, ExceededLimit::Daily))["detail"].clone()
        };
        assert_eq!(detail(10), "Today's quota of 10 units is used up.");
        let one = "This request costs more than the 1 unit left of today's quota.";
        assert_eq!(detail(9), one);
    }

    #[test]
    fn every_body_carries_the_six_common_members() {
        let quota_status = QuotaStatus {
            limit: 10,
            used: Some(10),
            day: day(),
        };
        for rejection in [
            Rejection::BadRequest(Malformed::Host),
            Rejection::PayloadTooLarge,
            Rejection::UriTooLong,
            Rejection::HeadersTooLarge,
            Rejection::MissingApiKey,
            Rejection::InvalidApiKey,
            Rejection::NotFound,
            Rejection::MethodNotAllowed {
                allow: "GET, HEAD".into(),
            },
            Rejection::TierInsufficient {
                tier: "starter".parse().unwrap(),
                required: vec!["pro".parse().unwrap()],
            },
            exceeded(quota_status, ExceededLimit::Daily),
            of_gateway(quota_status, Limit::UsageRead, Duration::from_millis(1)),
            burst(quota_status, Duration::ZERO),
            of_gateway(
                quota_status,
                Limit::Concurrent(NonZeroU32::MIN),
                Duration::ZERO,
            ),
            Rejection::Internal,
        ] {
            let body = body(&rejection);
            for member in ["type", "title", "detail", "code", "request_id"] {
                assert!(
                    body[member].as_str().is_some_and(|text| !text.is_empty()),
                    "{member} of {rejection:?}"
                );
            }
            assert_eq!(body["status"], rejection.status().as_u16());
            assert_eq!(body["request_id"], "r-1");
        }
    }

    fn exceeded(quota_status: QuotaStatus, limit: ExceededLimit) -> Rejection {
        Rejection::RateLimitExceeded(limit, quota_status)
    }

    fn of_gateway(quota_status: QuotaStatus, limit: Limit, wait: Duration) -> Rejection {
        exceeded(quota_status, ExceededLimit::OfGateway(limit, wait))
    }

    fn burst(quota_status: QuotaStatus, wait: Duration) -> Rejection {
        let number = |number| NonZeroU32::new(number).unwrap();
        let rate = Rate::per_second(number(3), number(40));
        of_gateway(quota_status, Limit::Burst(rate), wait)
    }

    #[test]
    fn a_429_of_a_rate_names_it_with_its_numbers_and_waits_whole_seconds() {
        let quota_status = QuotaStatus {
            limit: 1_000,
            used: Some(7),
            day: day(),
        };
        let allowed = NonZeroU32::new(10).unwrap();
        let concurrent = of_gateway(quota_status, Limit::Concurrent(allowed), Duration::ZERO);
        for (rejection, policy, part, seconds) in [
            (
                burst(quota_status, Duration::from_nanos(1)),
                "burst",
                "3 a second and 40 at once",
                1,
            ),
            (
                burst(quota_status, Duration::from_millis(1_001)),
                "burst",
                "3 a second",
                2,
            ),
            (concurrent, "concurrent", "takes 10.", 1),
        ] {
            let body = body(&rejection);
            assert_eq!(body["violated-policies"], serde_json::json!([policy]));
            assert_eq!(rejection.policy(), Some(policy));
            assert_eq!(body["title"], "Too many requests at once");
            assert_eq!((&body["limit"], &body["used"]), (&1_000.into(), &7.into()));
            let detail = body["detail"].as_str().unwrap();
            assert!(detail.contains(part), "{detail}");
            let header = rejection
                .problem("r", &ProblemTerms::new("t", None), now())
                .header;
            assert_eq!(header, Some((RETRY_AFTER, HeaderValue::from(seconds))));
        }
    }

    fn day() -> Day {
        let calendar = crate::policy::calendar::Calendar::of_zone("UTC").unwrap();
        calendar.day_at(now()).unwrap()
    }

    #[test]
    fn a_403_names_the_callers_tier_and_those_that_include_the_endpoint() {
        let rejection = Rejection::TierInsufficient {
            tier: "starter".parse().unwrap(),
            required: vec!["pro".parse().unwrap(), "enterprise".parse().unwrap()],
        };
        let body = body(&rejection);
        assert_eq!(body["tier"], "starter");
        assert_eq!(
            body["required_tiers"],
            serde_json::json!(["pro", "enterprise"])
        );
    }

    #[test]
    fn a_429_states_limit_use_reset_and_when_to_retry() {
        let quota_status = QuotaStatus {
            limit: 1_000,
            used: Some(1_000),
            day: day(),
        };
        let rejection = exceeded(quota_status, ExceededLimit::Daily);
        let body = body(&rejection);
        assert_eq!(body["limit"], 1_000);
        assert_eq!(body["used"], 1_000);
        assert_eq!(body["reset"], "2026-11-22T00:00:00Z");
        assert_eq!(body["violated-policies"], serde_json::json!(["daily"]));
        assert_eq!(
            rejection
                .problem("r", &ProblemTerms::new("t", None), now())
                .header,
            Some((RETRY_AFTER, HeaderValue::from(60)))
        );
    }

    #[test]
    fn a_429_of_usage_names_its_own_policy_and_waits_whole_seconds() {
        let quota_status = QuotaStatus {
            limit: 1_000,
            used: None,
            day: day(),
        };
        for (milliseconds, seconds) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2)] {
            let wait = Duration::from_millis(milliseconds);
            let rejection = of_gateway(quota_status, Limit::UsageRead, wait);
            let body = body(&rejection);
            assert_eq!(body["violated-policies"], serde_json::json!(["usage"]));
            assert_eq!(body["used"], serde_json::Value::Null);
            let header = rejection
                .problem("r", &ProblemTerms::new("t", None), now())
                .header;
            assert_eq!(header, Some((RETRY_AFTER, HeaderValue::from(seconds))));
        }
    }

    #[test]
    fn a_body_links_to_the_documentation_that_is_configured() {
        let linked = |documentation| {
            let terms = ProblemTerms::new("touchline", documentation);
            let body = Rejection::NotFound.problem("r", &terms, now()).body;
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            body.get("documentation").cloned()
        };
        let page = "https://docs.example/errors?a=\"b\"";
        assert_eq!(linked(Some(page)), Some(page.into()));
        assert_eq!(linked(None), None);
    }

    #[test]
    fn a_401_challenges_with_the_realm() {
        let terms = ProblemTerms::new("football data", None);
        let problem = Rejection::MissingApiKey.problem("r", &terms, now());
        let expected = HeaderValue::from_static("ApiKey realm=\"football data\"");
        assert_eq!(problem.header, Some((WWW_AUTHENTICATE, expected)));
    }
}
