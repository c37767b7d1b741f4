//! The client behind proxies: which claims about a request's origin to believe.
//!
//! A proxy appends to `X-Forwarded-For` the address that connected to it, so the list can be trusted from its end up to the first
//! address that is not a trusted proxy's: that one is the client, and entries before it are the client's own claim.

use std::net::{IpAddr, SocketAddr};

use super::address::Network;
use super::http1::is_host;

/// The sender of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestSender {
    /// The peer of the connection.
    Connected(SocketAddr),
    /// A client behind a trusted proxy, whose connection also carries requests of other clients.
    Forwarded(IpAddr),
}

impl RequestSender {
    /// The sender of a request that came from `peer` with these values of `X-Forwarded-For`.
    pub fn of<'a>(
        peer: SocketAddr,
        values: impl DoubleEndedIterator<Item = &'a [u8]>,
        trusted: &[Network],
    ) -> RequestSender {
        match client_of(peer.ip(), values, trusted) {
            client if client == peer.ip().to_canonical() => RequestSender::Connected(peer),
            client => RequestSender::Forwarded(client),
        }
    }

    /// The address of the sender.
    pub fn ip(self) -> IpAddr {
        match self {
            RequestSender::Connected(peer) => peer.ip(),
            RequestSender::Forwarded(client) => client,
        }
    }
}

/// The only value of `X-Forwarded-Proto`, if it is `http` or `https`.
pub fn scheme_of<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Option<&'static str> {
    match (values.next()?, values.next()) {
        (b"https", None) => Some("https"),
        (b"http", None) => Some("http"),
        _ => None,
    }
}

/// The only value of `X-Forwarded-Host`, if it is a valid host.
pub fn host_of<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    match (values.next()?, values.next()) {
        (host, None) if is_host(host) => Some(host),
        (_, Some(_)) | (_, None) => None,
    }
}

/// The client of a request that came from `peer` with these values of `X-Forwarded-For`, in the order of the message: the peer if
/// it is not a trusted proxy; else the last untrusted address; or, if the list ends or cannot be parsed before one, the last
/// address parsed.
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
            Some(address) => client = address,
            None => break,
        }
    }
    client
}

/// Whether the address belongs to a trusted proxy.
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
            // Only trusted proxies are believed.
            ("192.0.2.9", vec!["198.51.100.1"], "192.0.2.9"),
            ("10.0.0.1", vec![], "10.0.0.1"),
            ("10.0.0.1", vec!["198.51.100.1"], "198.51.100.1"),
            ("::ffff:10.0.0.1", vec!["198.51.100.1"], "198.51.100.1"),
            // Entries before the client are its own claim.
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
            // Only proxies.
            ("10.0.0.1", vec!["10.9.9.9, 2001:db8::1"], "10.9.9.9"),
            // Forms.
            ("10.0.0.1", vec!["198.51.100.1:4711"], "198.51.100.1"),
            ("10.0.0.1", vec!["[2001:db9::1]:4711"], "2001:db9::1"),
            ("10.0.0.1", vec!["[2001:db9::1]"], "2001:db9::1"),
            ("10.0.0.1", vec!["2001:db9::1"], "2001:db9::1"),
            ("10.0.0.1", vec!["::ffff:198.51.100.1"], "198.51.100.1"),
            // An entry that cannot be parsed ends the list: the last valid address is the client.
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
    fn a_client_has_a_port_only_where_it_is_known() {
        let peer: SocketAddr = "10.0.0.1:7".parse().unwrap();
        let trusted = ["10.0.0.0/8".parse().unwrap()];
        let sent = |value: &'static str| [value.as_bytes()].into_iter();
        let client = RequestSender::of(peer, sent("198.51.100.1:4711"), &trusted);
        assert_eq!(client, RequestSender::Forwarded(ip("198.51.100.1")));
        let connected = RequestSender::of(peer, sent("198.51.100.1"), &[]);
        assert_eq!(connected, RequestSender::Connected(peer));
    }

    proptest! {
        /// Whatever a client sends through a trusted proxy, its address is the one that the proxy saw.
        #[test]
        fn no_claim_of_a_client_changes_who_it_is(claim in "[0-9a-f:., \\[\\]x]{0,40}") {
            let list = format!("{claim}, 198.51.100.1");
            prop_assert_eq!(client("10.0.0.1", &[&list], &["10.0.0.0/8"]), ip("198.51.100.1"));
            let apart = [claim.as_str(), "198.51.100.1"];
            prop_assert_eq!(client("10.0.0.1", &apart, &["10.0.0.0/8"]), ip("198.51.100.1"));
        }
    }
}
