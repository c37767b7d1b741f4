//! The client behind proxies: whom to believe about a request's origin.
//!
//! A proxy appends to `X-Forwarded-For` the address that it was connected from, so the list is true from its end up to the first
//! address that is not a trusted proxy's: that one is the client, and what stands before it is the client's own claim.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::address::Network;
use super::http1::is_host;

/// Who sent a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// Whoever the connection is with.
    Connected(SocketAddr),
    /// Somebody behind a trusted proxy, whose connection carries the requests of others too.
    Told(IpAddr),
}

impl Client {
    /// The sender of a request that came from `peer` with these values of `X-Forwarded-For`.
    pub fn of<'a>(
        peer: SocketAddr,
        values: impl DoubleEndedIterator<Item = &'a [u8]>,
        trusted: &[Network],
    ) -> Client {
        match client_of(peer.ip(), values, trusted) {
            client if client == peer.ip().to_canonical() => Client::Connected(peer),
            client => Client::Told(client),
        }
    }

    /// Its address.
    pub fn ip(self) -> IpAddr {
        match self {
            Client::Connected(peer) => peer.ip(),
            Client::Told(client) => client,
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Client::Connected(peer) => peer.fmt(f),
            Client::Told(client) => client.fmt(f),
        }
    }
}

/// The only value of `X-Forwarded-Proto`, if it is a scheme that there is.
pub fn scheme_of<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Option<&'static str> {
    match (values.next()?, values.next()) {
        (b"https", None) => Some("https"),
        (b"http", None) => Some("http"),
        _ => None,
    }
}

/// The only value of `X-Forwarded-Host`, if it is a host.
pub fn host_of<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    match (values.next()?, values.next()) {
        (host, None) if is_host(host) => Some(host),
        (_, Some(_)) | (_, None) => None,
    }
}

/// The client of a request that came from `peer` with these values of `X-Forwarded-For`, in the order of the message. It is the
/// peer where that is no trusted proxy; where the list ends or cannot be read before an untrusted address, the last one that was.
fn client_of<'a>(
    peer: IpAddr,
    values: impl DoubleEndedIterator<Item = &'a [u8]>,
    trusted: &[Network],
) -> IpAddr {
    let mut client = peer.to_canonical();
    let entries = values
        .rev()
        .flat_map(|value| value.rsplit(|byte| *byte == b','));
    for entry in entries {
        if !is_trusted(client, trusted) {
            break;
        }
        match address(entry) {
            Some(told) => client = told,
            None => break,
        }
    }
    client
}

/// Whether an address is a trusted proxy's.
pub fn is_trusted(address: IpAddr, trusted: &[Network]) -> bool {
    trusted.iter().any(|network| network.contains(address))
}

/// An address as proxies write it: alone, in brackets, or with a port.
fn address(entry: &[u8]) -> Option<IpAddr> {
    let entry = std::str::from_utf8(entry).ok()?.trim_matches([' ', '\t']);
    let bracketed = || entry.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let alone = entry.parse::<IpAddr>().ok();
    let with_port = || entry.parse::<SocketAddr>().ok().map(|socket| socket.ip());
    alone
        .or_else(bracketed)
        .or_else(with_port)
        .map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn client(peer: &str, values: &[&str], trusted: &[&str]) -> IpAddr {
        let trusted: Vec<Network> = trusted.iter().map(|text| text.parse().unwrap()).collect();
        let values = values.iter().map(|value| value.as_bytes());
        client_of(ip(peer), values, &trusted)
    }

    #[test]
    fn only_a_trusted_proxy_is_believed_and_only_up_to_the_first_stranger() {
        let trusted = ["10.0.0.0/8", "2001:db8::/32"];
        for (peer, values, expected) in [
            // Nobody's word counts but a proxy's.
            ("192.0.2.9", vec!["198.51.100.1"], "192.0.2.9"),
            ("10.0.0.1", vec![], "10.0.0.1"),
            ("10.0.0.1", vec!["198.51.100.1"], "198.51.100.1"),
            ("::ffff:10.0.0.1", vec!["198.51.100.1"], "198.51.100.1"),
            // What stands before the client is its own claim.
            (
                "10.0.0.1",
                vec!["203.0.113.7, 198.51.100.1"],
                "198.51.100.1",
            ),
            (
                "10.0.0.1",
                vec!["203.0.113.7,198.51.100.1 ,\t10.2.3.4"],
                "198.51.100.1",
            ),
            // Several fields are one list.
            (
                "10.0.0.1",
                vec!["203.0.113.7", "198.51.100.1", "10.2.3.4"],
                "198.51.100.1",
            ),
            // Proxies all the way.
            ("10.0.0.1", vec!["10.9.9.9, 2001:db8::1"], "10.9.9.9"),
            // Forms.
            ("10.0.0.1", vec!["198.51.100.1:4711"], "198.51.100.1"),
            ("10.0.0.1", vec!["[2001:db9::1]:4711"], "2001:db9::1"),
            ("10.0.0.1", vec!["[2001:db9::1]"], "2001:db9::1"),
            ("10.0.0.1", vec!["2001:db9::1"], "2001:db9::1"),
            ("10.0.0.1", vec!["::ffff:198.51.100.1"], "198.51.100.1"),
            // What cannot be read ends the list: the last that was told is the client.
            ("10.0.0.1", vec!["198.51.100.1, unknown"], "10.0.0.1"),
            (
                "10.0.0.1",
                vec!["198.51.100.1, unknown, 10.1.1.1"],
                "10.1.1.1",
            ),
            ("10.0.0.1", vec!["198.51.100.1,"], "10.0.0.1"),
            ("10.0.0.1", vec!["198.51.100.1", ""], "10.0.0.1"),
            ("10.0.0.1", vec!["198.51.100.01"], "10.0.0.1"),
            ("10.0.0.1", vec!["\u{a0}198.51.100.1"], "10.0.0.1"),
        ] {
            assert_eq!(client(peer, &values, &trusted), ip(expected), "{values:?}");
        }
        assert_eq!(client("10.0.0.1", &["198.51.100.1"], &[]), ip("10.0.0.1"));
    }

    #[test]
    fn scheme_and_host_are_taken_if_there_is_one_good_value() {
        let values =
            |values: &[&'static str]| values.iter().map(|value| value.as_bytes()).collect();
        for (sent, scheme, host) in [
            (vec!["https"], Some("https"), Some("https")),
            (vec!["http"], Some("http"), Some("http")),
            (vec!["https", "https"], None, None),
            (vec!["https,http"], None, None),
            (vec!["a.example:80"], None, Some("a.example:80")),
            (vec!["a.example/x"], None, None),
            (vec![""], None, None),
            (vec![], None, None),
        ] {
            let sent: Vec<&[u8]> = values(&sent);
            assert_eq!(scheme_of(sent.iter().copied()), scheme);
            let found = host_of(sent.iter().copied());
            assert_eq!(found, host.map(str::as_bytes));
        }
    }

    #[test]
    fn a_client_is_shown_with_its_port_only_where_it_is_known() {
        let peer: SocketAddr = "10.0.0.1:7".parse().unwrap();
        let trusted = ["10.0.0.0/8".parse().unwrap()];
        let sent = |value: &'static str| [value.as_bytes()].into_iter();
        let told = Client::of(peer, sent("198.51.100.1:4711"), &trusted);
        assert_eq!(told, Client::Told(ip("198.51.100.1")));
        assert_eq!(told.to_string(), "198.51.100.1");
        let connected = Client::of(peer, sent("198.51.100.1"), &[]);
        assert_eq!(connected, Client::Connected(peer));
        assert_eq!(connected.to_string(), "10.0.0.1:7");
    }

    proptest! {
        /// Whatever a client sends through a trusted proxy, it is known by the address that the proxy saw.
        #[test]
        fn no_claim_of_a_client_changes_who_it_is(claim in "[0-9a-f:., \\[\\]x]{0,40}") {
            let told = format!("{claim}, 198.51.100.1");
            prop_assert_eq!(client("10.0.0.1", &[&told], &["10.0.0.0/8"]), ip("198.51.100.1"));
            let apart = [claim.as_str(), "198.51.100.1"];
            prop_assert_eq!(client("10.0.0.1", &apart, &["10.0.0.0/8"]), ip("198.51.100.1"));
        }
    }
}
