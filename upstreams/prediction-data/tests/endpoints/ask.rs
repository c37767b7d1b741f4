//! Asking the router, and looking at what it answers.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use prediction_data::catalogue::Catalogue;
use prediction_data::data_set::DataSet;
use prediction_data::router::{Behaviour, router};
use serde_json::Value;
use tower::ServiceExt;

pub const LISTS: [&str; 5] = [
    "markets",
    "predictions",
    "insights",
    "sentiment",
    "rankings",
];

/// An answer with its body read.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    pub fn rows(&self) -> Vec<Value> {
        assert_eq!(
            self.status,
            StatusCode::OK,
            "{}",
            String::from_utf8_lossy(&self.body)
        );
        self.json()["data"].as_array().unwrap().clone()
    }

    pub fn total(&self) -> u64 {
        self.json()["pagination"]["total"].as_u64().unwrap()
    }
}

pub fn service_that(behaviour: Behaviour) -> Router {
    router(Catalogue::new(DataSet::embedded().unwrap()), behaviour)
}

pub fn service() -> Router {
    service_that(Behaviour::default())
}

pub async fn ask(service: &Router, request: Request<Body>) -> Answer {
    let response = service.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: body.collect().await.unwrap().to_bytes().to_vec(),
    }
}

pub async fn get(service: &Router, target: &str) -> Answer {
    ask(service, Request::get(target).body(Body::empty()).unwrap()).await
}

pub async fn data(service: &Router, target: &str) -> Answer {
    get(service, &format!("/api/v1/data/{target}")).await
}

/// Sum in ten-thousandths, which is what probabilities are published in.
pub fn ten_thousandths<'a>(values: impl IntoIterator<Item = &'a Value>) -> i64 {
    values
        .into_iter()
        .map(|value| (value.as_f64().unwrap() * 10_000.0).round() as i64)
        .sum()
}
