//! The remedies for errors of Redis, each for the error of a real server, and that none is for a server which is not there.

use std::time::Duration;

use touchline::clock::Clock;
use touchline::store::redis::{RedisSettings, RedisTls, Servers, open};
use touchline::store::{Role, Store, StoreError};

use crate::redis_nodes::{Certificates, ClusterSet, Node, SentinelSet};
use crate::suite::{ZONE, eventually};
use crate::topologies::{gateway, patient};

const NOT_THERE: &str = "check that Redis runs there";

fn url(url: impl Into<String>) -> Servers {
    Servers::Url(url.into())
}

/// Why a command cannot use these servers.
async fn refusal(settings: RedisSettings) -> String {
    match open(settings, Role::Command, ZONE, Clock::system()).await {
        Err(StoreError::Unavailable(why)) => why,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it opened"),
    }
}

/// Checks that a command on these servers fails with the remedy, at its end and once.
async fn assert_remedy(settings: RedisSettings, remedy: &str) {
    let servers = format!("{:?}", settings.servers);
    let why = refusal(settings).await;
    let (_, given) = why.rsplit_once("; ").unwrap();
    assert!(given.contains(remedy), "{servers}: {why}");
    assert_eq!(why.matches(given).count(), 1, "{servers}: {why}");
    assert!(!why.contains(NOT_THERE), "{servers}: {why}");
    assert!(!why.contains("unavailable"), "{servers}: {why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_error_shows_the_password_that_a_server_quotes() {
    let unknown = ["--rename-command", "AUTH", ""].map(str::to_owned);
    let node = Node::start(|_| unknown.to_vec()).await;
    let settings = RedisSettings {
        password: Some("between-us".into()),
        ..patient(url(format!("redis://{}/0", node.address())))
    };
    let why = refusal(settings).await;
    assert!(why.contains("AUTH") && !why.contains("between"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_a_single_server_has_its_own_remedy() {
    let node = Node::start(|_| Vec::new()).await;
    let address = node.address();
    let of = |path: &str| patient(url(format!("redis://{address}{path}")));
    assert_remedy(of("/99"), "correct store.redis.database").await;
    let cluster = patient(Servers::Cluster(vec![address.clone()]));
    assert_remedy(cluster, "it is no node of a cluster").await;
    let sentinels = patient(Servers::Sentinels {
        sentinels: vec![address.clone()],
        master: "mymaster".into(),
    });
    assert_remedy(sentinels, "it is no sentinel").await;
    let password = RedisSettings {
        password: Some("word".into()),
        ..of("/0")
    };
    assert_remedy(password, "check the user and password of store.redis").await;
    let () = node.ask("RPUSH touchline:zone a").await;
    let () = node.ask("RPUSH touchline:feed a").await;
    assert_remedy(of("/0"), "another program uses names").await;
    let named = refusal(of("/0")).await;
    assert!(named.contains("touchline:zone: \"WRONGTYPE\""), "{named}");
    // A command of an open store.
    let () = node.ask("DEL touchline:zone").await;
    let store = open(of("/0"), Role::Command, ZONE, Clock::system()).await;
    let error = store.unwrap().status().await.unwrap_err();
    let (expected, shown) = ("/0: touchline:feed: \"WRONGTYPE\"", error.to_string());
    assert!(matches!(error, StoreError::Failed(_)), "{error:?}");
    assert!(
        shown.contains(&format!("redis://{address}{expected}")),
        "{shown}"
    );
    assert!(shown.contains("; another program uses names"), "{shown}");
    let () = node.ask("CONFIG SET replica-serve-stale-data no").await;
    let () = node.ask("REPLICAOF 127.0.0.1 1").await;
    assert_remedy(of("/0"), "it is a replica without its master").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_a_connection_has_the_remedy_for_what_is_not_there() {
    let certificates = Certificates::make();
    let clear = Node::start(|_| Vec::new()).await;
    let encrypted = Node::start(|port| certificates.arguments(port)).await;
    for (url, remedy) in [
        (
            "redis://127.0.0.1:1".into(),
            "store.redis in the configuration names it",
        ),
        (format!("rediss://{}", clear.address()), "both use TLS"),
        (format!("redis://{}", encrypted.address()), "both use TLS"),
    ] {
        let why = refusal(RedisSettings::of_url(&url)).await;
        assert!(
            why.contains(NOT_THERE) && why.contains(remedy),
            "{url}: {why}"
        );
    }
    let with = |certificates: &Certificates| RedisSettings {
        tls: Some(RedisTls {
            ca_file: Some(certificates.file("ca.pem")),
            identity: None,
        }),
        ..patient(url(format!("rediss://{}", encrypted.address())))
    };
    assert_remedy(with(&certificates), "store.redis.tls.certificate").await;
    assert_remedy(with(&Certificates::make()), "store.redis.tls.ca_file").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_sentinels_has_a_remedy_for_sentinels() {
    let set = SentinelSet::start().await;
    let of = |master: &str| {
        patient(Servers::Sentinels {
            sentinels: set.addresses(),
            master: master.into(),
        })
    };
    assert_remedy(of("nomaster"), "correct store.redis.master").await;
    let password = RedisSettings {
        sentinel_password: Some("word".into()),
        ..of("mymaster")
    };
    assert_remedy(password, "store.redis.sentinel_password_file").await;
    let sentinel = set.addresses().pop().unwrap();
    let as_server = patient(url(format!("redis://{sentinel}")));
    assert_remedy(as_server, "if it is a sentinel").await;
    let as_node = patient(Servers::Cluster(vec![sentinel]));
    assert_remedy(as_node, "it is no node of a cluster").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_cluster_as_the_only_server_is_named_as_one_to_commands_and_gateways() {
    let set = ClusterSet::start(0).await;
    let owner = set.owner("touchline:zone").await;
    let of = |node: usize, path: &str| url(format!("redis://{}{path}", set.nodes[node].address()));
    let other = (owner + 1) % set.nodes.len();
    assert_remedy(patient(of(owner, "/1")), "without a database").await;
    assert_remedy(
        patient(of(other, "/0")),
        "name its nodes in store.redis.cluster",
    )
    .await;
    // This one can be connected to, and has not all names.
    let store = gateway(of(owner, "/0")).await;
    let health = eventually("the feed's trouble is reported", async || {
        let health = store.health();
        health.keys_trouble.clone().map(|_| health)
    })
    .await;
    assert!(!health.keys.usable, "{health:?}");
    let why = health.keys_trouble.unwrap();
    assert!(why.contains("Moved: "), "{why}");
    assert!(
        why.contains("name its nodes in store.redis.cluster"),
        "{why}"
    );
    store.close(Duration::from_secs(1)).await;
}
