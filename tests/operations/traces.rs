//! Traces: W3C trace context through the gateway, spans to a collector that speaks OTLP.

use std::time::Duration;

use harness::collector::{Collecting, Collector, ReceivedSpan, SpanKind};
use harness::upstream::Script;
use harness::{Behaviour, Call, Protocol, SLACK, Scene, SceneBuilder, eventually};

use super::{MARKETS, RANKINGS, TOUCHLINE};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLERS_SPAN: &str = "00f067aa0ba902b7";

/// A gateway that exports to a collector, with more YAML of `tracing.otlp`.
fn tracing_to(url: &str, more: &str) -> SceneBuilder {
    let yaml = format!("tracing: {{ otlp: {{ url: \"{url}\", {more} }} }}");
    Scene::builder(TOUCHLINE).spec(move |spec| spec.extra_yaml = yaml)
}

fn sampled(target: &str) -> Call {
    let traceparent = format!("00-{TRACE}-{CALLERS_SPAN}-01");
    Call::get(target).header("traceparent", traceparent)
}

/// The spans of the caller's trace, once there are so many.
async fn spans_of(collector: &Collector, trace: &str, count: usize) -> Vec<ReceivedSpan> {
    eventually("the spans are exported", async || {
        let mut spans = collector.spans();
        spans.retain(|span| span.trace_id == trace);
        (spans.len() >= count).then_some(spans)
    })
    .await
}

async fn counted(scene: &Scene, outcome: &str) -> f64 {
    let series = format!("touchline_trace_spans_total{{outcome=\"{outcome}\"}}");
    scene.metric(&series).await
}

#[tokio::test]
async fn a_recorded_request_is_exported_in_its_callers_trace_and_shows_no_key() {
    let collector = Collector::start().await;
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "Bearer of-the-collector\n").unwrap();
    let header = format!(
        "sample: 0%, header: {{ name: Authorization, value_file: \"{}\" }}",
        secret.path().display()
    );
    let mut scene = tracing_to(&collector.url(), &header).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let answer = client.call(sampled(MARKETS).key(&key)).await;
    assert_eq!(answer.status, 200);
    let spans = spans_of(&collector, TRACE, 4).await;
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    let request = format!("GET {MARKETS}");
    assert_eq!(
        names,
        [request.as_str(), "authenticate", "charge", "upstream"]
    );
    let (whole, parts) = spans.split_first().unwrap();
    assert_eq!(
        (whole.parent.as_str(), whole.kind),
        (CALLERS_SPAN, SpanKind::Server)
    );
    assert_eq!(whole.attribute("http.route"), Some(MARKETS));
    assert_eq!(whole.attribute("http.response.status_code"), Some("200"));
    assert_eq!(whole.attribute("touchline.key_id"), Some(key.id.as_str()));
    assert_eq!(whole.attribute("touchline.tier"), Some("starter"));
    assert_eq!(whole.attribute("touchline.outcome"), Some("served"));
    let id = answer.header("x-request-id");
    assert_eq!(whole.attribute("touchline.request_id"), id);
    for part in parts {
        assert_eq!(part.parent, whole.id, "{part:?}");
        assert!(
            whole.began <= part.began && part.began <= part.ended,
            "{part:?}"
        );
        assert!(part.ended <= whole.ended && !part.is_failed, "{part:?}");
    }
    // The upstream goes on below the span of its own request.
    let recorded = scene.upstream.recorded();
    let passed_on = format!("00-{TRACE}-{}-01", spans[3].id);
    assert_eq!(recorded[0].values("traceparent"), [passed_on]);
    assert_eq!(spans[3].kind, SpanKind::Client);
    eventually("they are counted", async || {
        (counted(&scene, "exported").await == 4.0).then_some(())
    })
    .await;
    for head in collector.heads() {
        let head = head.to_lowercase();
        assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
        assert!(head.contains("application/x-protobuf"), "{head}");
        assert!(
            head.contains("authorization: bearer of-the-collector"),
            "{head}"
        );
    }
    let secret = key.key.as_bytes();
    for body in collector.bodies() {
        assert!(!body.windows(secret.len()).any(|part| part == secret));
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn refused_and_failed_requests_are_reported_with_what_became_of_them() {
    let collector = Collector::start().await;
    let scene = tracing_to(&collector.url(), "sample: 0%").start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    scene
        .upstream
        .always(Behaviour::Answer(Script::json(503, "{}")));
    assert_eq!(client.call(sampled(RANKINGS).key(&key)).await.status, 403);
    assert_eq!(client.call(sampled(MARKETS).key(&key)).await.status, 500);
    assert_eq!(client.call(sampled(MARKETS)).await.status, 401);
    let spans = spans_of(&collector, TRACE, 2 + 4 + 1).await;
    let requests: Vec<_> = spans
        .iter()
        .filter(|span| span.kind == SpanKind::Server)
        .map(|span| (span.attribute("touchline.outcome").unwrap(), span.is_failed))
        .collect();
    assert_eq!(
        requests,
        [
            ("TIER_INSUFFICIENT", false),
            ("INTERNAL_ERROR", true),
            ("MISSING_API_KEY", false),
        ]
    );
    let upstream: Vec<_> = spans
        .iter()
        .filter(|span| span.name == "upstream")
        .collect();
    assert!(upstream.iter().all(|span| span.is_failed), "{upstream:?}");
    assert_eq!(upstream.len(), 1);
}

#[tokio::test]
async fn cut_answers_and_servers_that_cannot_be_reached_are_shown_as_failures() {
    let collector = Collector::start().await;
    let mut scene = tracing_to(&collector.url(), "sample: 0%").start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    scene.upstream.always(Behaviour::CloseMidBody { after: 10 });
    assert!(!client.call(sampled(MARKETS).key(&key)).await.complete);
    scene.upstream.stop().await;
    assert_eq!(client.call(sampled(MARKETS).key(&key)).await.status, 500);
    let spans = spans_of(&collector, TRACE, 4 + 4).await;
    let of = |name: &str| spans.iter().filter(|span| span.name == name).count();
    assert!(of("upstream") >= 2, "{spans:?}");
    let failed = spans.iter().filter(|span| span.kind != SpanKind::Internal);
    assert!(failed.into_iter().all(|span| span.is_failed), "{spans:?}");
}

#[tokio::test]
async fn a_request_that_is_sent_again_has_a_span_for_each_attempt() {
    let collector = Collector::start().await;
    let scene = tracing_to(&collector.url(), "sample: 0%")
        .more_servers(1)
        .start()
        .await;
    scene.upstream.always(Behaviour::ResetBeforeHeader);
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    // Servers are taken in turn: one of two requests meets the one that breaks off.
    let mut trace = String::new();
    for number in 1..=2 {
        if scene.upstream.count() == 0 {
            trace = format!("{number:032x}");
            let traceparent = format!("00-{trace}-{CALLERS_SPAN}-01");
            let call = Call::get(MARKETS).header("traceparent", traceparent);
            assert_eq!(client.call(call.key(&key)).await.status, 200);
        }
    }
    let spans = spans_of(&collector, &trace, 5).await;
    let (first, second) = (&spans[3], &spans[4]);
    for (attempt, tried) in [(first, None), (second, Some("1"))] {
        assert_eq!(attempt.name, "upstream");
        assert_eq!(attempt.parent, spans[0].id);
        assert_eq!(attempt.attribute("http.request.resend_count"), tried);
    }
    assert!(first.is_failed && !second.is_failed, "{spans:?}");
    assert!(first.ended <= second.began, "{spans:?}");
    for (attempt, server) in [
        (first, scene.upstream.address()),
        (second, scene.more_upstreams[0].address()),
    ] {
        let [host, port] = [server.ip().to_string(), server.port().to_string()];
        assert_eq!(attempt.attribute("server.address"), Some(&*host));
        assert_eq!(attempt.attribute("server.port"), Some(&*port));
    }
    let reported = scene.upstream.recorded()[0].values("traceparent");
    assert!(reported[0].contains(&first.id), "{reported:?}");
}

#[tokio::test]
async fn spans_that_the_collector_cannot_use_are_dropped_at_once_and_the_gateway_is_named_to_it() {
    let collector = Collector::start().await;
    collector.set(Collecting::Refuses(400));
    let scene = tracing_to(&collector.url(), "sample: 100%").start().await;
    let key = scene.issue("pro").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    eventually("the spans are given up", async || {
        (counted(&scene, "dropped").await == 4.0).then_some(())
    })
    .await;
    assert_eq!(collector.heads().len(), 1, "asked once");
    let log = scene.gateways[0].output();
    let line = log.lines().find(|line| line.contains("\"node\":")).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    let node = line["node"].as_str().unwrap().as_bytes();
    let body = &collector.bodies()[0];
    assert!(body.windows(node.len()).any(|part| part == node));
}

#[tokio::test]
async fn spans_that_the_collector_rejects_in_an_accepted_export_are_dropped_with_its_reason() {
    let collector = Collector::start().await;
    collector.set(Collecting::Rejects(3));
    let scene = tracing_to(&collector.url(), "sample: 100%").start().await;
    let key = scene.issue("pro").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    eventually("the spans are counted", async || {
        let (exported, dropped) = (
            counted(&scene, "exported").await,
            counted(&scene, "dropped").await,
        );
        (exported + dropped == 4.0).then(|| assert_eq!((exported, dropped), (1.0, 3.0)))
    })
    .await;
    assert_eq!(collector.heads().len(), 1, "asked once");
    eventually("the reason is logged", async || {
        let log = scene.gateways[0].output();
        let mut lines = log.lines();
        let line = lines.find(|line| line.contains("rejected spans"))?;
        assert!(line.contains("over the limit of this tenant"), "{line}");
        Some(())
    })
    .await;
}

#[tokio::test]
async fn what_is_not_sampled_is_not_exported_and_of_new_traces_only_the_share() {
    let collector = Collector::start().await;
    let mut scene = tracing_to(&collector.url(), "sample: 0%").start().await;
    let key = scene.issue("pro").await;
    let client = scene.client(Protocol::Http1);
    let other = TRACE.replace('4', "5");
    for _ in 0..20 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        let unsampled = format!("00-{other}-{CALLERS_SPAN}-00");
        let call = Call::get(MARKETS).header("traceparent", unsampled);
        assert_eq!(client.call(call.key(&key)).await.status, 200);
    }
    for recorded in scene.upstream.recorded() {
        assert!(recorded.values("traceparent")[0].ends_with("-00"));
    }
    assert_eq!(client.call(sampled(MARKETS).key(&key)).await.status, 200);
    spans_of(&collector, TRACE, 4).await;
    assert_eq!(collector.spans().len(), 4);

    // Every trace that begins here, from the next request on.
    scene.spec.extra_yaml = scene.spec.extra_yaml.replace("sample: 0%", "sample: 100%");
    scene.gateways[0].configure(&scene.spec);
    eventually("the share holds", async || {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        let last = scene.upstream.recorded().pop().unwrap();
        last.values("traceparent")[0].ends_with("-01").then_some(())
    })
    .await;
    let last = scene.upstream.recorded().pop().unwrap();
    let trace = last.values("traceparent")[0][3..35].to_owned();
    let spans = spans_of(&collector, &trace, 4).await;
    assert_eq!(spans[0].parent, "");
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_collector_that_is_unavailable_fails_no_request_and_what_is_dropped_is_counted() {
    let collector = Collector::start().await;
    collector.set(Collecting::Refuses(503));
    let mut scene = tracing_to(&collector.url(), "sample: 100%").start().await;
    let key = scene.issue("pro").await;
    let client = scene.client(Protocol::Http1);
    for _ in 0..20 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    eventually("the spans are given up", async || {
        (counted(&scene, "dropped").await >= 80.0).then_some(())
    })
    .await;
    // Tried again before that.
    assert!(collector.heads().len() >= 3);
    assert_eq!(counted(&scene, "exported").await, 0.0);
    collector.set(Collecting::Takes);
    assert_eq!(client.call(sampled(MARKETS).key(&key)).await.status, 200);
    spans_of(&collector, TRACE, 4).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_hangs_holds_up_no_request_and_the_queue_has_an_end() {
    let collector = Collector::start().await;
    collector.set(Collecting::Hangs);
    let mut scene = tracing_to(&collector.url(), "sample: 100%, timeout: 1m")
        .start()
        .await;
    let key = scene.issue("enterprise").await;
    // More than wait in the queue and in one batch.
    let calls = (0..4).map(|_| {
        let (client, key) = (scene.client(Protocol::Http1), key.clone());
        tokio::spawn(async move {
            for _ in 0..700 {
                assert_eq!(client.get(&key, MARKETS).await.status, 200);
            }
        })
    });
    for one in calls.collect::<Vec<_>>() {
        one.await.unwrap();
    }
    eventually("some are dropped", async || {
        (counted(&scene, "dropped").await > 0.0).then_some(())
    })
    .await;
    for line in scene.gateways[0].logged(2_800).await {
        let milliseconds = line["duration_ms"].as_f64().unwrap();
        assert!(
            Duration::from_secs_f64(milliseconds / 1e3) < SLACK,
            "{line}"
        );
    }
    assert_eq!(collector.spans(), []);
    // It ends all the same.
    let status = scene.gateways[0].terminate();
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn spans_that_wait_when_export_is_switched_off_are_dropped_and_counted() {
    let collector = Collector::start().await;
    collector.set(Collecting::Hangs);
    let mut scene = tracing_to(&collector.url(), "sample: 100%, timeout: 1m")
        .start()
        .await;
    let key = scene.issue("pro").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    eventually("the first batch is on its way", async || {
        (!collector.heads().is_empty()).then_some(())
    })
    .await;
    for _ in 0..5 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    scene.gateways[0].logged(6).await;
    let mut spec = scene.spec.clone();
    spec.extra_yaml = String::new();
    scene.gateways[0].configure(&spec);
    scene.gateways[0].process().hang_up();
    eventually("the configuration without export runs", async || {
        let applied = "touchline_config_reloads_total{outcome=\"applied\"}";
        (scene.metric(applied).await > 0.0).then_some(())
    })
    .await;
    collector.set(Collecting::Takes);
    eventually("the spans that waited are dropped", async || {
        (counted(&scene, "dropped").await == 20.0).then_some(())
    })
    .await;
    assert_eq!(counted(&scene, "exported").await, 4.0);
    assert_eq!(collector.spans().len(), 4);
    scene.assert_ledgers_agree().await;
}

// On two threads: waiting for the gateway's end holds one of them up, and the collector needs one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_that_wait_are_exported_when_the_gateway_ends() {
    let collector = Collector::start().await;
    let mut scene = tracing_to(&collector.url(), "sample: 100%").start().await;
    let key = scene.issue("pro").await;
    let client = scene.client(Protocol::Http1);
    for _ in 0..10 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    scene.gateways[0].logged(10).await;
    assert!(scene.gateways[0].terminate().success());
    let output = scene.gateways[0].output();
    assert_eq!(collector.spans().len(), 40, "{output}");
}
