//! Endpoints (contract steps 4 to 6): which endpoint a path is, its methods, and its tiers.
//!
//! Patterns match exactly: case and trailing slash matter, `{name}` stands for one non-empty segment, and `{name...}` at the end
//! for one or more. No two patterns of a table match the same path, so the order in the file never matters.

use std::num::NonZeroU32;
use std::sync::Arc;

use http::Method;
use jiff::Timestamp;

use super::key_record::TierName;
use super::maintenance::Maintenance;
use super::rejection::Rejection;
use super::retirement::Retirement;

/// One configured endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The pattern as configured, such as `/api/v1/data/predictions/{fixture_id}`; also its name in logs, metrics and ledger.
    pub pattern: Arc<str>,
    /// The accepted methods, as configured; `HEAD` is accepted wherever `GET` is.
    pub methods: Vec<Method>,
    /// The tiers that include it, in the order of the configuration.
    pub tiers: Vec<TierName>,
    /// Units charged per request, at least 1.
    pub cost: NonZeroU32,
    /// The name of its upstream.
    pub upstream: Arc<str>,
    /// Its announced retirement, if any.
    pub retirement: Retirement,
    /// Its maintenance, if any.
    pub maintenance: Option<Maintenance>,
}

impl Endpoint {
    /// Whether the method is accepted (step 5).
    pub fn takes(&self, method: &Method) -> bool {
        self.methods.contains(method)
            || (method == Method::HEAD && self.methods.contains(&Method::GET))
    }

    /// Whether the tier includes the endpoint (step 6).
    pub fn included_in(&self, tier: &TierName) -> bool {
        self.tiers.contains(tier)
    }

    /// Step 5: accepts the method, or rejects it with 405.
    pub fn admit_method(&self, method: &Method) -> Result<(), Rejection> {
        if self.takes(method) {
            Ok(())
        } else {
            let allow = self.allow();
            Err(Rejection::MethodNotAllowed { allow })
        }
    }

    /// Step 6: accepts the tier, or rejects it with 403.
    pub fn admit_tier(&self, tier: &TierName) -> Result<(), Rejection> {
        if self.included_in(tier) {
            Ok(())
        } else {
            Err(Rejection::TierInsufficient {
                tier: tier.clone(),
                required: self.tiers.clone(),
            })
        }
    }

    /// Before step 8: rejects with the 500 that is not charged if the endpoint is under maintenance at `now`.
    pub fn admit_at(&self, now: Timestamp) -> Result<(), Rejection> {
        match &self.maintenance {
            Some(maintenance) if maintenance.holds(now) => {
                Err(Rejection::Maintenance(maintenance.clone()))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The names of the pattern's parameters, in their order.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        let names = self
            .pattern
            .split('/')
            .filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'));
        names.map(|name| name.strip_suffix(REST).unwrap_or(name))
    }

    /// The accepted methods, `HEAD` after `GET`.
    pub fn allowed(&self) -> Vec<&str> {
        let mut allowed: Vec<&str> = Vec::new();
        for method in &self.methods {
            allowed.push(method.as_str());
            if method == Method::GET && !self.methods.contains(&Method::HEAD) {
                allowed.push("HEAD");
            }
        }
        allowed
    }

    /// The value of the `Allow` header (RFC 9110 section 10.2.1).
    pub fn allow(&self) -> String {
        self.allowed().join(", ")
    }
}

/// Why an endpoint table cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// A pattern is not a path of literal segments and `{parameters}`.
    #[error("{reason}")]
    Malformed {
        /// The mistake and the expected form.
        reason: &'static str,
    },
    /// Two patterns match the same paths.
    #[error("it overlaps with another pattern")]
    Overlap {
        /// The index of that pattern in the list.
        other_index: usize,
    },
}

/// The endpoints of a configuration, found by path.
#[derive(Debug)]
pub struct EndpointTable {
    endpoints: Vec<Arc<Endpoint>>,
    router: matchit::Router<usize>,
}

impl EndpointTable {
    /// A table of `endpoints`, or every problem with the index of its endpoint.
    pub fn new(endpoints: Vec<Endpoint>) -> Result<EndpointTable, Vec<(usize, PatternError)>> {
        let (mut problems, mut router) = (Vec::new(), matchit::Router::new());
        let mut seen: Vec<(usize, Vec<Segment<'_>>)> = Vec::new();
        for (index, endpoint) in endpoints.iter().enumerate() {
            let mut add = || {
                let malformed = |reason| PatternError::Malformed { reason };
                let segments = segments(&endpoint.pattern).map_err(malformed)?;
                let overlapping = seen.iter().find(|(_, other)| overlap(other, &segments));
                if let Some((other_index, _)) = overlapping {
                    let other_index = *other_index;
                    return Err(PatternError::Overlap { other_index });
                }
                // Names of parameters do not matter for matching; numbering them makes equal positions equal for the router.
                let canonical = segments.iter().enumerate();
                let canonical = canonical.map(|(place, segment)| match segment {
                    Segment::Literal(text) => format!("/{text}"),
                    Segment::Parameter(_) => format!("/{{p{place}}}"),
                    Segment::Rest(_) => format!("/{{*p{place}}}"),
                });
                let inserted = router.insert(canonical.collect::<String>(), index);
                seen.push((index, segments));
                inserted.map_err(|_| malformed("it cannot stand beside the other patterns"))
            };
            if let Err(error) = add() {
                problems.push((index, error));
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(EndpointTable {
            endpoints: endpoints.into_iter().map(Arc::new).collect(),
            router,
        })
    }

    /// The endpoint of `path` (step 4). The path has been checked by [`super::target::Target::parse`].
    pub fn find(&self, path: &str) -> Option<&Arc<Endpoint>> {
        self.endpoints.get(*self.router.at(path).ok()?.value)
    }

    /// Step 4: the endpoint of `path`, or the 404.
    pub fn located(&self, path: &str) -> Result<&Arc<Endpoint>, Rejection> {
        self.find(path).ok_or(Rejection::NotFound)
    }

    /// All endpoints in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        self.endpoints.iter()
    }
}

/// The end of the name of a parameter that stands for the rest of a path.
const REST: &str = "...";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Segment<'a> {
    Literal(&'a str),
    Parameter(&'a str),
    /// The last segment: stands for one or more.
    Rest(&'a str),
}

impl<'a> Segment<'a> {
    fn of(text: &'a str) -> Segment<'a> {
        let name = text
            .strip_prefix('{')
            .and_then(|text| text.strip_suffix('}'));
        match name.map(|name| (name, name.strip_suffix(REST))) {
            Some((_, Some(name))) => Segment::Rest(name),
            Some((name, None)) => Segment::Parameter(name),
            None => Segment::Literal(text),
        }
    }
}

fn segments(pattern: &str) -> Result<Vec<Segment<'_>>, &'static str> {
    let rest = pattern
        .strip_prefix('/')
        .ok_or("a path begins with a slash, such as /api/v1/data/markets")?;
    let mut segments = Vec::new();
    for text in rest.split('/') {
        let segment = Segment::of(text);
        if let Some(Segment::Rest(_)) = segments.last() {
            return Err("{name...} matches the rest of a path: nothing can follow it");
        }
        match segment {
            Segment::Parameter(name) | Segment::Rest(name) => {
                let fits = !name.is_empty()
                    && name
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
                if !fits {
                    return Err("a parameter is {name} with characters of a-z, A-Z, 0-9 and _");
                }
                if segments.contains(&Segment::Parameter(name)) {
                    return Err("each parameter of a path needs a different name");
                }
            }
            Segment::Literal(text) if text.contains('*') => {
                return Err("for all paths below this one write {rest...} in place of the *");
            }
            Segment::Literal(text) if text.starts_with(':') => {
                return Err("a parameter is written {id}, not :id");
            }
            Segment::Literal(text) if text.contains(['{', '}']) => {
                return Err(
                    "a parameter fills a whole segment: /predictions/{fixture_id}, not /predictions/fx-{id}",
                );
            }
            Segment::Literal(_) => {}
        }
        segments.push(segment);
    }
    let literal: String = segments
        .iter()
        .map(|segment| match segment {
            Segment::Literal(text) => format!("/{text}"),
            Segment::Parameter(_) | Segment::Rest(_) => "/p".to_owned(),
        })
        .collect();
    match super::target::Target::parse(literal.as_bytes()) {
        Ok(target) if target.query.is_none() => Ok(segments),
        Ok(_) => Err("a path has no query"),
        Err(_) => Err(
            "it has a form that the gateway refuses in requests (see docs/calling-the-api.md, Paths)",
        ),
    }
}

/// Whether some path matches both. A rest matches all segments from its own on, unless they are a single empty one.
fn overlap(one: &[Segment<'_>], other: &[Segment<'_>]) -> bool {
    for place in 0.. {
        let (first, second) = (one.get(place), other.get(place));
        match (first, second) {
            (Some(Segment::Rest(_)), Some(next)) => {
                return *next != Segment::Literal("") || other.len() > place + 1;
            }
            (Some(next), Some(Segment::Rest(_))) => {
                return *next != Segment::Literal("") || one.len() > place + 1;
            }
            (Some(Segment::Literal(one)), Some(Segment::Literal(other))) if one == other => {}
            (Some(Segment::Literal(text)), Some(Segment::Parameter(_)))
            | (Some(Segment::Parameter(_)), Some(Segment::Literal(text)))
                if !text.is_empty() => {}
            (Some(Segment::Parameter(_)), Some(Segment::Parameter(_))) => {}
            (None, None) => return true,
            (Some(_), _) | (_, Some(_)) => return false,
        }
    }
    false
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An endpoint of the tier pro. The only whole one in tests: others change it, so that a new setting is added here only.
    pub(crate) fn endpoint(pattern: &str) -> Endpoint {
        Endpoint {
            pattern: pattern.into(),
            methods: vec![Method::GET],
            tiers: vec!["pro".parse().unwrap()],
            cost: NonZeroU32::MIN,
            upstream: "u".into(),
            retirement: Default::default(),
            maintenance: None,
        }
    }

    fn table(patterns: &[&str]) -> Result<EndpointTable, Vec<(usize, PatternError)>> {
        EndpointTable::new(patterns.iter().map(|pattern| endpoint(pattern)).collect())
    }

    #[test]
    fn a_path_matches_exactly_or_not_at_all() {
        let table = table(&[
            "/d/markets",
            "/d/predictions",
            "/d/predictions/{id}",
            "/d/{a}/x/{b}",
        ])
        .unwrap();
        let found = |path: &str| {
            table
                .find(path)
                .map(|endpoint| endpoint.pattern.to_string())
        };
        assert_eq!(found("/d/markets").as_deref(), Some("/d/markets"));
        assert_eq!(
            found("/d/predictions/fx-1").as_deref(),
            Some("/d/predictions/{id}")
        );
        assert_eq!(found("/d/1/x/2").as_deref(), Some("/d/{a}/x/{b}"));
        for none in [
            "/d/Markets",
            "/d/markets/",
            "/d/market",
            "/d/marketsx",
            "/d/predictions/",
            "/d/predictions/a/b",
            "/d",
            "/",
        ] {
            assert_eq!(found(none), None, "{none}");
        }
    }

    #[test]
    fn a_rest_matches_every_path_below_it_and_nothing_else() {
        let table = table(&["/files/{rest...}", "/files", "/files/", "/{a}/{b}/{c}/x"]);
        // The last pattern also matches /files/b/c/x.
        assert!(table.is_err());
        let table = EndpointTable::new(
            ["/files/{rest...}", "/files", "/files/", "/d/{id}/{rest...}"]
                .map(endpoint)
                .to_vec(),
        )
        .unwrap();
        for (path, pattern) in [
            ("/files/a", Some("/files/{rest...}")),
            ("/files/a/b/c.json", Some("/files/{rest...}")),
            ("/files/a/", Some("/files/{rest...}")),
            ("/files/", Some("/files/")),
            ("/files", Some("/files")),
            ("/filesx", None),
            ("/Files/a", None),
            ("/d/1", None),
            ("/d/1/", None),
            ("/d/1/2", Some("/d/{id}/{rest...}")),
        ] {
            let found = table.find(path).map(|endpoint| &*endpoint.pattern);
            assert_eq!(found, pattern, "{path}");
        }
        let endpoint = table.find("/d/1/2").unwrap();
        assert_eq!(endpoint.parameters().collect::<Vec<_>>(), ["id", "rest"]);
    }

    #[test]
    fn wildcards_of_other_routers_are_refused_with_what_to_write() {
        for (pattern, hint) in [
            ("/a/*", "{rest...}"),
            ("/a/*x", "{rest...}"),
            ("/b/:id", "{id}"),
        ] {
            let problems = table(&[pattern]).unwrap_err();
            let [(0, PatternError::Malformed { reason })] = problems.as_slice() else {
                panic!("{pattern}: {problems:?}");
            };
            assert!(reason.contains(hint), "{reason}");
        }
        assert!(table(&["/a/b:c"]).is_ok());
    }

    #[test]
    fn overlapping_patterns_are_refused_whatever_their_order() {
        for (one, other) in [
            ("/a/b", "/a/b"),
            ("/a/{x}", "/a/b"),
            ("/a/{x}", "/a/{y}"),
            ("/{x}/b", "/a/{y}"),
            ("/a/{r...}", "/a/b"),
            ("/a/{r...}", "/a/{x}"),
            ("/a/{r...}", "/a/b/"),
            ("/a/{r...}", "/{x}/b/c"),
            ("/a/{r...}", "/{q...}"),
        ] {
            for patterns in [[one, other], [other, one]] {
                let problems = table(&patterns).unwrap_err();
                assert!(
                    matches!(
                        problems.as_slice(),
                        [(1, PatternError::Overlap { other_index: 0 })]
                    ),
                    "{patterns:?}"
                );
            }
        }
        assert!(table(&["/a/{x}", "/a/", "/a", "/b/{x}", "/a/{x}/c"]).is_ok());
    }

    #[test]
    fn a_malformed_pattern_is_refused() {
        for bad in [
            "a",
            "",
            "/a/{}",
            "/a/{b",
            "/a/x{b}",
            "/a/{*b}",
            "/{b}/{b}",
            "/a//b",
            "/a/../b",
            "/a?b",
            "/a b",
            "/a;b",
            "/%61",
            "/a/{...}",
            "/a/{b...}/c",
            "/{b}/{b...}",
        ] {
            let problems = table(&[bad]).unwrap_err();
            assert!(
                matches!(problems.as_slice(), [(0, PatternError::Malformed { .. })]),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn all_problems_of_a_table_are_reported_at_once() {
        assert_eq!(table(&["a", "/b", "/b", "/c//d"]).unwrap_err().len(), 3);
    }

    #[test]
    fn path_method_and_tier_each_have_their_refusal() {
        let table = table(&["/a"]).unwrap();
        let (pro, starter) = ("pro".parse().unwrap(), "starter".parse().unwrap());
        assert_eq!(table.located("/b"), Err(Rejection::NotFound));
        let endpoint = table.located("/a").unwrap();
        let allow = "GET, HEAD".to_owned();
        let refused = Err(Rejection::MethodNotAllowed { allow });
        assert_eq!(endpoint.admit_method(&Method::POST), refused);
        assert_eq!(endpoint.admit_method(&Method::HEAD), Ok(()));
        let refused = endpoint.admit_tier(&starter).map_err(|error| error.code());
        assert_eq!(refused, Err("TIER_INSUFFICIENT"));
        assert_eq!(endpoint.admit_tier(&pro), Ok(()));
    }

    #[test]
    fn head_is_taken_wherever_get_is_and_is_listed_in_allow() {
        let endpoint = Endpoint {
            methods: vec![Method::GET, Method::POST],
            ..endpoint("/a")
        };
        assert!(
            endpoint.takes(&Method::HEAD)
                && endpoint.takes(&Method::GET)
                && endpoint.takes(&Method::POST)
        );
        assert!(!endpoint.takes(&Method::DELETE));
        assert_eq!(endpoint.allow(), "GET, HEAD, POST");
        let post = Endpoint {
            methods: vec![Method::POST],
            ..endpoint
        };
        assert!(!post.takes(&Method::HEAD));
    }

    proptest! {
        #[test]
        fn a_table_that_was_accepted_gives_one_answer_in_any_order(patterns in proptest::collection::vec("(/(a|b|\\{x\\}|\\{y\\})){1,3}(/\\{z\\.\\.\\.\\})?", 1..5), path in "(/(a|b|c)){1,3}") {
            let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
            let mut reversed = patterns.clone();
            reversed.reverse();
            match (table(&patterns), table(&reversed)) {
                (Ok(one), Ok(other)) => prop_assert_eq!(one.find(&path), other.find(&path)),
                (one, other) => prop_assert_eq!(one.is_err(), other.is_err()),
            }
        }
    }
}
