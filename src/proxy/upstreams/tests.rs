//! Servers of an upstream over time: chosen, failing, resolved anew, inherited.

use std::time::Duration;

use super::*;
use crate::config::Config;

fn configured(upstream: &str) -> (Arc<str>, UpstreamConfig) {
    let text = format!(
        "
tiers: {{pro: {{daily: 5}}}}
endpoints: [{{path: /a, tiers: [pro], upstream: u}}]
upstreams: {{u: {upstream}}}
"
    );
    let config = Config::parse("g.yaml", &text, &|_| None).unwrap();
    config.upstreams[0].clone()
}

/// The ports of the servers that get `times` requests, each ended before the next.
fn asked(upstream: &Upstream, times: usize) -> Vec<u16> {
    let assigned = (0..times).filter_map(|_| upstream.assign(7, &[], &[]));
    assigned
        .map(|assignment| assignment.server.address.port())
        .collect()
}

fn of(ports: &[u16]) -> Vec<SocketAddr> {
    let addresses = ports.iter();
    addresses
        .map(|port| SocketAddr::from(([127, 0, 0, 1], *port)))
        .collect()
}

#[test]
fn servers_take_turns_by_weight() {
    let upstream = Upstream::new(&configured("{servers: [127.0.0.1:1, 127.0.0.1:2]}"), None);
    assert_eq!(asked(&upstream, 4), [1, 2, 1, 2]);
    let weighted = "{servers: [127.0.0.1:1, {address: 127.0.0.1:2, weight: 3}]}";
    let upstream = Upstream::new(&configured(weighted), None);
    let asked = asked(&upstream, 40);
    assert_eq!(asked.iter().filter(|port| **port == 1).count(), 10);
}

#[test]
fn a_request_is_not_sent_to_the_same_server_again_while_there_is_another() {
    let upstream = Upstream::new(&configured("{servers: [127.0.0.1:1, 127.0.0.1:2]}"), None);
    let mut tried = Vec::new();
    for _ in 0..4 {
        let assignment = upstream.assign(7, &tried, &[]).unwrap();
        let known = assignment.server.is_among(&tried);
        assert_eq!(known, tried.len() >= 2, "{tried:?}");
        tried.push(assignment.server.clone());
    }
}

#[test]
fn requests_in_flight_are_counted_until_they_end() {
    let upstream = Upstream::new(
        &configured("{servers: [127.0.0.1:1, 127.0.0.1:2], choice: least_loaded}"),
        None,
    );
    let first = upstream.assign(7, &[], &[]).unwrap();
    let second = upstream.assign(7, &[], &[]).unwrap();
    assert_ne!(first.server.address, second.server.address);
    let address = first.server.address;
    let server = first.server.clone();
    assert_eq!(server.in_flight(), 1);
    drop(first);
    assert_eq!(server.in_flight(), 0);
    let third = upstream.assign(7, &[], &[]).unwrap();
    assert_eq!(third.server.address, address);
}

/// A failure of a server.
fn late() -> Failure {
    Failure::over_time()
}

#[test]
fn a_failing_server_is_left_out_and_the_last_one_is_asked_all_the_same() {
    let metrics = Metrics::new().unwrap();
    let servers = "servers: [127.0.0.1:1, 127.0.0.1:2], ejection: {failures: 2}";
    let upstream = Upstream::new(&configured(&format!("{{{servers}}}")), None);
    let places = upstream.places();
    let [one, other] = places.as_slice() else {
        panic!("{places:?}")
    };
    for _ in 0..2 {
        upstream.note_failed(&Assignment::to(&one.server), &late(), &metrics);
    }
    assert!(!one.server.is_up());
    assert_eq!(asked(&upstream, 3), [2, 2, 2]);
    for _ in 0..2 {
        upstream.note_failed(&Assignment::to(&other.server), &late(), &metrics);
    }
    let mut last = asked(&upstream, 4);
    last.sort_unstable();
    assert_eq!(last, [1, 1, 2, 2], "none is up");
    upstream.note_served(&one.server);
    assert_eq!(asked(&upstream, 3), [1, 1, 1]);
}

#[test]
fn a_long_answer_from_before_an_ejection_does_not_delay_the_trial_after_it() {
    let metrics = Metrics::new().unwrap();
    let ejection = "ejection: {failures: 1, pause: 100ms, pause_max: 100ms}";
    let servers = format!("{{servers: [127.0.0.1:1, 127.0.0.1:2], {ejection}}}");
    let upstream = Upstream::new(&configured(&servers), None);
    let long = upstream.assign(7, &[], &[]).unwrap();
    let server = long.server.clone();
    upstream.note_failed(&long, &late(), &metrics);
    let paused = Instant::now() + Duration::from_millis(100);
    assert!(server.is_usable(paused));
    let trial = Assignment::to(&server);
    assert!(!server.is_usable(paused), "one at a time");
    drop(long);
    assert!(!server.is_usable(paused), "the trial is in flight");
    drop(trial);
    assert!(server.is_usable(paused));
    let trial = Assignment::to(&server);
    upstream.note_served(&server);
    drop(trial);
    assert!(server.is_up());
}

#[test]
fn a_configuration_inherits_what_is_known_of_its_servers() {
    let metrics = Metrics::new().unwrap();
    let text = |more: &str| {
        format!("{{servers: [127.0.0.1:1, 127.0.0.1:2{more}], ejection: {{failures: 1}}}}")
    };
    let before = Upstream::new(&configured(&text("")), None);
    let in_flight = before.assign(7, &[], &[]).unwrap();
    let failing = Assignment::to(&before.places()[1].server);
    before.note_failed(&failing, &late(), &metrics);
    let after = Upstream::new(&configured(&text(", 127.0.0.1:3")), Some(&before));
    let places = after.places();
    assert_eq!(places[0].server.in_flight(), 1);
    assert!(!places[1].server.is_up());
    assert!(places[2].server.is_up());
    drop(in_flight);
    assert_eq!(places[0].server.in_flight(), 0);
}

#[test]
fn the_first_check_of_a_server_takes_it_out_and_later_ones_only_in_a_row() {
    let metrics = Metrics::new().unwrap();
    let checked = "{servers: [127.0.0.1:1, 127.0.0.1:2], health: {path: /h, unhealthy_after: 2}}";
    let upstream = Upstream::new(&configured(checked), None);
    let places = upstream.places();
    let note = |place: usize, checked| {
        upstream.note_checked(&places[place].server, checked, &metrics);
        places[place].server.is_up()
    };
    assert!(!note(0, Err("out".into())));
    assert!(note(1, Ok(())) && note(1, Err("late".into())));
    assert!(!note(1, Err("late".into())));
    // A configuration that replaces this one knows them.
    assert!(!note(0, Ok(())) && note(0, Ok(())));
    let after = Upstream::new(&configured(&checked.replace("/h", "/i")), Some(&upstream));
    after.note_checked(&after.places()[0].server, Err("late".into()), &metrics);
    assert!(after.places()[0].server.is_up());
}

#[test]
fn a_configuration_without_checks_forgets_what_they_found() {
    let metrics = Metrics::new().unwrap();
    let checked = "{servers: [127.0.0.1:1, 127.0.0.1:2], health: {path: /h, unhealthy_after: 1}}";
    let before = Upstream::new(&configured(checked), None);
    before.note_checked(&before.places()[0].server, Err("late".into()), &metrics);
    assert_eq!(asked(&before, 2), [2, 2]);
    let unchecked = configured("{servers: [127.0.0.1:1, 127.0.0.1:2]}");
    let after = Upstream::new(&unchecked, Some(&before));
    assert_eq!(asked(&after, 2), [1, 2]);
}

#[test]
fn a_name_that_is_resolved_anew_keeps_the_servers_that_stay() {
    let mut config = configured("{servers: [127.0.0.1:9, 127.0.0.1:1]}");
    config.1.servers[1].name = "data.internal:1".into();
    config.1.servers[1].addresses = of(&[1, 2]);
    let upstream = Upstream::new(&config, None);
    assert_eq!(upstream.names().collect::<Vec<_>>(), ["data.internal:1"]);
    let ports = |upstream: &Upstream| {
        let places = upstream.places();
        let ports = places.iter().map(|place| place.server.address.port());
        ports.collect::<Vec<_>>()
    };
    assert_eq!(ports(&upstream), [9, 1, 2]);
    let staying = upstream.places()[2].server.clone();
    assert!(!upstream.note_resolved("data.internal:1", &of(&[1, 2])));
    assert!(upstream.note_resolved("data.internal:1", &of(&[2, 3])));
    assert_eq!(ports(&upstream), [9, 2, 3]);
    assert!(Arc::ptr_eq(&upstream.places()[1].server, &staying));
    assert!(
        !upstream.note_resolved("data.internal:1", &[]),
        "the resolver's fault"
    );
    assert_eq!(ports(&upstream), [9, 2, 3]);
    // A new configuration is resolved when it is read.
    let after = Upstream::new(&config, Some(&upstream));
    assert_eq!(ports(&after), [9, 1, 2]);
    assert!(Arc::ptr_eq(&after.places()[2].server, &staying));
}

#[test]
fn names_that_are_resolved_at_the_same_time_all_get_their_addresses() {
    let mut config = configured("{servers: [127.0.0.1:1, 127.0.0.1:2]}");
    let names = ["a.internal:1", "b.internal:1"];
    for (server, name) in config.1.servers.iter_mut().zip(names) {
        server.name = name.into();
    }
    let upstream = Upstream::new(&config, None);
    let together = std::sync::Barrier::new(names.len());
    for port in 3..1_000 {
        std::thread::scope(|threads| {
            for name in names {
                let (upstream, together) = (&upstream, &together);
                threads.spawn(move || {
                    together.wait();
                    assert!(upstream.note_resolved(name, &of(&[port])));
                });
            }
        });
        for name in names {
            assert_eq!(upstream.addresses_of(name), of(&[port]));
        }
    }
}

#[test]
fn a_name_without_an_address_is_a_server_that_is_out_until_it_has_one() {
    let mut config = configured("{servers: [127.0.0.1:9, 127.0.0.1:1]}");
    config.1.servers[1].name = "data.internal:1".into();
    config.1.servers[1].addresses = Vec::new();
    let upstream = Upstream::new(&config, None);
    assert_eq!(upstream.unresolved(), ["data.internal:1"]);
    assert_eq!(asked(&upstream, 2), [9, 9]);
    assert!(upstream.note_resolved("data.internal:1", &of(&[1])));
    assert_eq!(upstream.unresolved(), [""; 0]);
    assert_eq!(asked(&upstream, 2), [9, 1]);
    // A configuration that is read while the name does not resolve keeps the servers that it had.
    let after = Upstream::new(&config, Some(&upstream));
    assert_eq!(asked(&after, 2), [9, 1]);
    assert!(Arc::ptr_eq(
        &after.places()[1].server,
        &upstream.places()[1].server
    ));
    config.1.servers.remove(0);
    let none = Upstream::new(&config, None);
    assert!(none.assign(7, &[], &[]).is_none());
}
