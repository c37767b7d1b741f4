//! Client addresses: the networks that contain them, and the address under which limits count a client.
//!
//! An IPv6 client is counted by its /64, which one subscriber has to himself; an IPv4 address written as IPv6
//! (`::ffff:192.0.2.1`) is the IPv4 address.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;

/// The host of `host:port`, an IPv6 address without its brackets.
pub fn host_of(server: &str) -> &str {
    let host = server.rsplit_once(':').map_or("", |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// The usable addresses of a name: the IPv4 addresses, or else the IPv6 addresses; sorted and without duplicates, in whatever
/// order the resolver returned them.
pub fn of_one_family(mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    if addresses.iter().any(SocketAddr::is_ipv4) {
        addresses.retain(SocketAddr::is_ipv4);
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// The bits of an IPv4-mapped IPv6 address that precede the IPv4 address.
const MAPPED_PREFIX: u8 = 96;

/// A block of addresses in CIDR notation (RFC 4632, RFC 4291 section 2.3). Invariant: no bit after the prefix is set, and no
/// network consists of IPv4-mapped addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network(IpNet);

/// Why a text is not a [`Network`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Not an address, or an invalid prefix length after the slash.
    #[error("write an address or a network, such as 192.0.2.1, 10.0.0.0/8 or \"2001:db8::/32\"")]
    Malformed,
    /// Bits after the prefix are set, so another network was meant or it is mistyped.
    #[error("bits are set after the prefix: did you mean {0}?")]
    HostBits(Network),
}

impl Network {
    /// Whether the network contains the address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkError::Malformed)?;
        let written = match prefix {
            None => IpNet::from(address),
            Some(prefix) => prefix
                .parse::<u8>()
                .ok()
                .filter(|number| number.to_string() == prefix) // no sign and no leading zero
                .and_then(|number| IpNet::new(address, number).ok())
                .ok_or(NetworkError::Malformed)?,
        };
        let written = canonical(written);
        let network = Network(written.trunc());
        if network.0 == written {
            Ok(network)
        } else {
            Err(NetworkError::HostBits(network))
        }
    }
}

/// The network of IPv4 addresses if it is written as one of IPv4-mapped addresses (RFC 4291 section 2.5.5.2).
fn canonical(written: IpNet) -> IpNet {
    let address = written.addr().to_canonical();
    let prefix = written.prefix_len().checked_sub(MAPPED_PREFIX);
    let mapped = prefix.filter(|_| address.is_ipv4());
    let network = mapped.and_then(|prefix| IpNet::new(address, prefix).ok());
    network.unwrap_or(written)
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The address under which a client is counted: its own, or its /64 for IPv6; `None` in `exempt` networks.
pub fn counted(client: IpAddr, exempt: &[Network]) -> Option<IpAddr> {
    let address = client.to_canonical();
    if exempt.iter().any(|network| network.contains(address)) {
        return None;
    }
    Some(match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_is_used_by_one_family_in_one_order() {
        let used = |texts: &[&str]| {
            let addresses = texts.iter().map(|text| text.parse().unwrap()).collect();
            let used = of_one_family(addresses).into_iter();
            used.map(|address| address.to_string()).collect::<Vec<_>>()
        };
        let mixed = ["[::1]:1", "10.0.0.2:1", "10.0.0.1:1", "10.0.0.2:1"];
        assert_eq!(used(&mixed), ["10.0.0.1:1", "10.0.0.2:1"]);
        assert_eq!(used(&["[::2]:1", "[::1]:1"]), ["[::1]:1", "[::2]:1"]);
        assert_eq!(used(&[]), [""; 0]);
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_holds_its_addresses_up_to_both_ends() {
        for (written, inside, outside) in [
            (
                "10.0.0.0/8",
                vec!["10.0.0.0", "10.255.255.255", "::ffff:10.1.1.1"],
                vec!["9.255.255.255", "11.0.0.0", "::a00:1"],
            ),
            (
                "192.0.2.1",
                vec!["192.0.2.1"],
                vec!["192.0.2.0", "192.0.2.2"],
            ),
            (
                "0.0.0.0/0",
                vec!["0.0.0.0", "255.255.255.255"],
                vec!["::", "2001:db8::1"],
            ),
            ("::/0", vec!["::", "ffff::"], vec!["192.0.2.1"]),
            (
                "2001:db8::/32",
                vec!["2001:db8::", "2001:db8:ffff::1"],
                vec!["2001:db7:ffff::", "2001:db9::"],
            ),
            (
                "::ffff:10.0.0.0/104",
                vec!["10.0.0.0", "10.255.255.255", "::ffff:10.1.1.1"],
                vec!["9.255.255.255", "11.0.0.0", "::a00:1"],
            ),
            (
                "::ffff:0:0/96",
                vec!["0.0.0.0", "::ffff:255.255.255.255"],
                vec!["::", "2001:db8::1"],
            ),
            (
                "::ffff:192.0.2.1",
                vec!["192.0.2.1"],
                vec!["192.0.2.0", "::c000:201"],
            ),
            (
                "192.0.2.128/25",
                vec!["192.0.2.128", "192.0.2.255"],
                vec!["192.0.2.127"],
            ),
        ] {
            let network = network(written);
            for address in inside {
                assert!(network.contains(ip(address)), "{address} in {written}");
            }
            for address in outside {
                assert!(!network.contains(ip(address)), "{address} in {written}");
            }
        }
    }

    #[test]
    fn what_is_no_network_is_refused_and_one_with_host_bits_named() {
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.0/08",
            "::/129",
            "10/8",
            "a.example/8",
            "10.0.0.0/",
            "10.0.0.0/8/8",
        ] {
            assert_eq!(
                text.parse::<Network>(),
                Err(NetworkError::Malformed),
                "{text}"
            );
        }
        for text in ["10.1.2.3/8", "::ffff:10.1.2.3/104"] {
            let error = text.parse::<Network>().unwrap_err();
            assert!(error.to_string().contains("did you mean 10.0.0.0/8?"));
        }
    }

    #[test]
    fn ipv6_clients_are_known_by_their_64_and_exempt_ones_by_nothing() {
        let exempt = ["127.0.0.0/8", "::1"].map(|text| text.parse().unwrap());
        let one = counted(ip("2001:db8:1:2:3:4:5:6"), &exempt);
        assert_eq!(one, Some(ip("2001:db8:1:2::")));
        assert_eq!(one, counted(ip("2001:db8:1:2::"), &exempt));
        assert_ne!(one, counted(ip("2001:db8:1:3::"), &exempt));
        assert_eq!(
            counted(ip("::ffff:192.0.2.1"), &exempt),
            Some(ip("192.0.2.1"))
        );
        for loopback in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(counted(ip(loopback), &exempt), None);
            assert!(counted(ip(loopback), &[]).is_some());
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_again(bits: u128, prefix in 0u8..=128, v4: bool) {
            let written = if v4 {
                IpNet::new(IpAddr::V4((bits as u32).into()), prefix.min(32))
            } else {
                IpNet::new(IpAddr::V6(bits.into()), prefix)
            };
            let network = Network(written.unwrap().trunc());
            let address = network.0.addr();
            prop_assert_eq!(network.to_string().parse(), Ok(network));
            prop_assert!(v4 || address.to_canonical().is_ipv4() || network.contains(address));
        }
    }
}
