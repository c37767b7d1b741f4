//! Redis over TLS, as an ACL user, in a database of its number: the shared suite, and what is refused.

use tokio::sync::OnceCell;
use touchline::clock::Clock;
use touchline::store::redis::{RedisSettings, RedisTls, Servers, open};
use touchline::store::{NodeName, Role, StoreError};

use crate::redis_nodes::{Certificates, Node, words};
use crate::suite::ZONE;
use crate::topologies::{SharedServers, patient};

/// What the store's user needs; no more.
const RIGHTS: &str = "--user touchline on >s3cret ~t* &* +@all -@admin -@dangerous +role +info";
const LOGIN: &str = "user=touchline&pass=s3cret";

struct Server {
    node: Node,
    certificates: Certificates,
}

impl Server {
    async fn shared() -> &'static Server {
        static SERVER: OnceCell<Server> = OnceCell::const_new();
        SERVER
            .get_or_init(|| async {
                let certificates = Certificates::make();
                let arguments = |port| {
                    let mut arguments = certificates.arguments(port);
                    arguments.extend(words("--user default off"));
                    arguments.extend(words(RIGHTS));
                    arguments
                };
                Server {
                    node: Node::start_for(LOGIN, arguments).await,
                    certificates,
                }
            })
            .await
    }

    fn settings(&self) -> RedisSettings {
        let file = |name| self.certificates.file(name);
        RedisSettings {
            database: Some(3),
            username: Some("touchline".into()),
            password: Some("s3cret".into()),
            tls: Some(RedisTls {
                ca_file: Some(file("ca.pem")),
                identity: Some((file("client.pem"), file("client.key"))),
            }),
            ..patient(Servers::Url(format!("rediss://{}", self.node.address())))
        }
    }
}

store_suite!(SharedServers::with(Server::shared().await.settings()));

async fn refusal(settings: RedisSettings) -> String {
    match open(settings, Role::Command, ZONE, Clock::system()).await {
        Err(StoreError::Unavailable(why)) => why,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it opened"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_certificate_a_gateway_is_not_let_in() {
    let mut settings = Server::shared().await.settings();
    settings.tls.as_mut().unwrap().identity = None;
    let why = refusal(settings).await;
    assert!(why.to_lowercase().contains("certificate"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_an_unknown_authority_signed_is_not_talked_to() {
    let other = Certificates::make();
    let mut settings = Server::shared().await.settings();
    settings.tls.as_mut().unwrap().ca_file = Some(other.file("ca.pem"));
    let why = refusal(settings).await;
    assert!(why.to_lowercase().contains("certificate"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_refused_without_being_shown() {
    let settings = RedisSettings {
        password: Some("wr0ng".into()),
        ..Server::shared().await.settings()
    };
    let why = refusal(settings).await;
    assert!(why.contains("WRONGPASS"), "{why}");
    assert!(!why.contains("wr0ng"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_a_password_is_the_one_that_is_used() {
    let users = "--user default on nopass ~other* +@all --user bare on nopass ~t* &* +@all";
    let node = Node::start(|_| words(users)).await;
    let settings = |username: &str| RedisSettings {
        username: Some(username.into()),
        ..patient(Servers::Url(format!("redis://{}", node.address())))
    };
    let role = || Role::Gateway(NodeName("a".into()));
    // The default user has no right to the names of the store.
    open(settings("bare"), role(), ZONE, Clock::system())
        .await
        .unwrap();
    let why = refusal(settings("absent")).await;
    assert!(why.contains("WRONGPASS"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_cannot_be_read_is_reported_at_once() {
    let mut settings = Server::shared().await.settings();
    settings.tls.as_mut().unwrap().ca_file = Some("/none".into());
    let opened = open(settings, Role::Command, ZONE, Clock::system()).await;
    let Err(StoreError::Failed(why)) = opened else {
        panic!("it opened");
    };
    assert!(why.contains("/none"), "{why}");
}
