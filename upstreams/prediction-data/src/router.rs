//! Paths → answers. The whole HTTP surface of the service reads on this page.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use jiff::Timestamp;
use serde::Serialize;

use crate::access_log::{self, AccessLog};
use crate::answer::{self, List, Problem, Single};
use crate::catalogue::{
    Catalogue, FixtureFilter, InsightKind, MarketKind, OfFixture, RankingMeasure, rank_experts,
};
use crate::data_set::FixtureId;
use crate::fault::{self, Fault, FaultPlan};
use crate::model;
use crate::query::{Page, Parameters, Terms};

/// The health that `/healthz` reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Health {
    /// 200.
    #[default]
    Ready,
    /// 503, asked for on the command line to test health checks.
    StagedDown,
}

/// How the service behaves beside answering.
#[derive(Debug, Default)]
pub struct Behaviour {
    /// Slowness and failures asked for.
    pub fault: FaultPlan,
    /// The health that `/healthz` reports.
    pub health: Health,
    /// Where requests are logged, if anywhere.
    pub access_log: Option<AccessLog>,
}

/// What every handler may look at.
struct Shared {
    catalogue: Catalogue,
    rounds: u16,
    health: Health,
}

type Answer = Result<Response, Problem>;

/// The service as a router.
pub fn router(catalogue: Catalogue, behaviour: Behaviour) -> Router {
    let shared = Arc::new(Shared {
        rounds: catalogue.rounds(),
        health: behaviour.health,
        catalogue,
    });
    let fault = Arc::new(Fault::new(behaviour.fault));
    let resources = Router::new()
        .route("/api/v1/data/markets", get(markets))
        .route("/api/v1/data/predictions", get(predictions))
        .route("/api/v1/data/predictions/{fixture_id}", get(prediction))
        .route("/api/v1/data/insights", get(insights))
        .route("/api/v1/data/sentiment", get(sentiment))
        .route("/api/v1/data/rankings", get(rankings))
        .route_layer(from_fn_with_state(fault, fault::apply));
    let service = Router::new()
        .merge(resources)
        .route("/healthz", get(healthz))
        .fallback(async || Problem::PathUnknown)
        .method_not_allowed_fallback(async || Problem::MethodNotAllowed)
        .with_state(shared)
        .layer(map_response(forbid_sniffing));
    match behaviour.access_log {
        Some(log) => service.layer(from_fn_with_state(log, access_log::record)),
        None => service,
    }
}

async fn markets(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap) -> Answer {
    let mut query = Parameters::parse(uri.query().unwrap_or_default());
    let page = query.page();
    let filter = shared.one_fixture_or_filter(&mut query);
    let kind = query.choice("market", &MarketKind::ALL);
    query.finish().map_err(Problem::InvalidParameters)?;
    let rows = admitted(shared.catalogue.markets(), &filter);
    let rows = rows.filter(|market| kind.is_none_or(|kind| market.market == kind));
    Ok(list(&headers, page, rows.collect()))
}

async fn predictions(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap) -> Answer {
    let mut query = Parameters::parse(uri.query().unwrap_or_default());
    let page = query.page();
    let filter = query.fixture_filter(shared.terms());
    query.finish().map_err(Problem::InvalidParameters)?;
    let rows = admitted(shared.catalogue.predictions(), &filter);
    Ok(list(
        &headers,
        page,
        rows.map(|detail| &detail.summary).collect(),
    ))
}

async fn prediction(
    State(shared): State<Arc<Shared>>,
    fixture_id: Result<Path<String>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
) -> Answer {
    Parameters::parse(uri.query().unwrap_or_default())
        .finish()
        .map_err(Problem::InvalidParameters)?;
    let Path(text) = fixture_id.map_err(|_| Problem::FixtureUnknown)?;
    // Only the one way in which the service writes a number is the number: 02501 and +2501 are not.
    let id = text
        .parse()
        .ok()
        .map(FixtureId)
        .filter(|id| id.to_string() == text)
        .ok_or(Problem::FixtureUnknown)?;
    let found = shared
        .catalogue
        .predictions()
        .iter()
        .find(|prediction| prediction.fixture().id == id);
    match found {
        Some(prediction) => Ok(answer::json(&headers, &Single { data: prediction })),
        None if shared.catalogue.data_set().result(id).is_some() => Err(Problem::FixturePlayed),
        None => Err(Problem::FixtureUnknown),
    }
}

async fn insights(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap) -> Answer {
    let mut query = Parameters::parse(uri.query().unwrap_or_default());
    let page = query.page();
    let filter = shared.one_fixture_or_filter(&mut query);
    let kind = query.choice("kind", &InsightKind::ALL);
    query.finish().map_err(Problem::InvalidParameters)?;
    let rows = admitted(shared.catalogue.insights(), &filter);
    let rows = rows.filter(|insight| kind.is_none_or(|kind| insight.kind == kind));
    Ok(list(&headers, page, rows.collect()))
}

async fn sentiment(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap) -> Answer {
    let mut query = Parameters::parse(uri.query().unwrap_or_default());
    let page = query.page();
    let filter = shared.one_fixture_or_filter(&mut query);
    query.finish().map_err(Problem::InvalidParameters)?;
    Ok(list(
        &headers,
        page,
        admitted(shared.catalogue.sentiment(), &filter).collect(),
    ))
}

async fn rankings(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap) -> Answer {
    let mut query = Parameters::parse(uri.query().unwrap_or_default());
    let page = query.page();
    let filter = query.fixture_filter(shared.terms());
    let measure = query.choice("by", &RankingMeasure::ALL).unwrap_or_default();
    let picks_max = shared.catalogue.data_set().picks.len();
    let picks_min = query.whole_number("min_picks", 1, picks_max).unwrap_or(1);
    query.finish().map_err(Problem::InvalidParameters)?;
    let rows = rank_experts(shared.catalogue.data_set(), &filter, measure, picks_min);
    Ok(list(&headers, page, rows))
}

#[derive(Serialize)]
struct HealthReport<'a> {
    status: &'a str,
    model: &'a str,
    league: &'a str,
    season: &'a str,
    as_of: Timestamp,
    results: usize,
    upcoming_fixtures: usize,
    notice: &'a str,
}

async fn healthz(State(shared): State<Arc<Shared>>) -> Answer {
    match shared.health {
        Health::Ready => {}
        Health::StagedDown => return Err(Problem::Staged(StatusCode::SERVICE_UNAVAILABLE)),
    }
    let set = shared.catalogue.data_set();
    let report = HealthReport {
        status: "ok",
        model: model::NAME,
        league: &set.league.id,
        season: &set.league.season,
        as_of: set.league.as_of,
        results: set.played.len(),
        upcoming_fixtures: set.upcoming.len(),
        notice: &set.league.notice,
    };
    let body = serde_json::to_vec(&report).map_err(|_| Problem::Internal)?;
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        ),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, body).into_response())
}

/// A browser must not read JSON as anything else.
async fn forbid_sniffing(mut response: Response) -> Response {
    response.headers_mut().insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

impl Shared {
    fn terms(&self) -> Terms<'_> {
        Terms {
            teams: &self.catalogue.data_set().teams,
            rounds: self.rounds,
        }
    }

    fn one_fixture_or_filter(&self, query: &mut Parameters) -> FixtureFilter {
        FixtureFilter {
            fixture_id: query.fixture_id(),
            ..query.fixture_filter(self.terms())
        }
    }
}

fn admitted<'a, T: OfFixture>(
    rows: &'a [T],
    filter: &'a FixtureFilter,
) -> impl Iterator<Item = &'a T> {
    rows.iter().filter(|row| filter.admits(row.fixture()))
}

fn list<T: Serialize>(headers: &HeaderMap, page: Page, rows: Vec<T>) -> Response {
    let (data, pagination) = page.of(rows);
    answer::json(headers, &List { data, pagination })
}
