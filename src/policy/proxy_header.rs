//! The header that a proxy sends before the connection's own first byte: the PROXY protocol, versions 1 and 2
//! (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>).
//!
//! Reading it must not consume a byte of what follows, so it is parsed in parts: the version from the first [`START_BYTES`], then
//! the rest of a line, or four bytes more and the length that they announce. Only addresses are read; extensions (TLV) and
//! checksums are skipped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The first bytes, which determine the version; no header is shorter.
pub const START_BYTES: usize = 12;
/// The bytes after the start in version 2, which announce the length of the rest.
pub const ANNOUNCEMENT_BYTES: usize = 4;
/// The longest line of version 1, including its end (section 2.1).
pub const LINE_BYTES_MAX: usize = 107;
/// The most bytes that may follow the announcement in version 2: addresses, and extensions such as a client's certificate.
pub const REST_BYTES_MAX: usize = 4096;
/// The start of every header of version 2 (section 2.2).
const SIGNATURE: &[u8; START_BYTES] = b"\r\n\r\n\0\r\nQUIT\n";
const V1: &[u8] = b"PROXY ";

/// The two forms of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderVersion {
    /// A line of text.
    One,
    /// Binary.
    Two,
}

/// The content of the rest of a header of version 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderContent {
    /// IPv4 addresses and ports.
    Inet,
    /// IPv6 addresses and ports.
    Inet6,
    /// Nothing to read: the proxy's own connection (a health check), or a client without an IP address.
    Own,
}

/// Not a header of the PROXY protocol, or one that is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no valid PROXY protocol header")]
pub struct NoHeader;

/// The version, by the first bytes.
///
/// # Errors
/// If no header begins with these bytes.
pub fn version(start: &[u8; START_BYTES]) -> Result<HeaderVersion, NoHeader> {
    if start == SIGNATURE {
        Ok(HeaderVersion::Two)
    } else if start.starts_with(V1) {
        Ok(HeaderVersion::One)
    } else {
        Err(NoHeader)
    }
}

/// The kind of the rest of a header of version 2, and its length: at most [`REST_BYTES_MAX`].
///
/// # Errors
/// If it has another version, command or family, or is longer.
pub fn announced(
    announcement: [u8; ANNOUNCEMENT_BYTES],
) -> Result<(HeaderContent, usize), NoHeader> {
    let [version_and_command, family, high, low] = announcement;
    let kind = match (version_and_command, family >> 4) {
        (0x20, _) | (0x21, 0 | 3) => HeaderContent::Own,
        (0x21, 1) => HeaderContent::Inet,
        (0x21, 2) => HeaderContent::Inet6,
        _ => return Err(NoHeader),
    };
    let bytes = usize::from(u16::from_be_bytes([high, low]));
    if bytes > REST_BYTES_MAX {
        return Err(NoHeader);
    }
    Ok((kind, bytes))
}

/// The client in a line of version 1, including its CR LF; `None` if the proxy does not know it.
///
/// # Errors
/// If it is not such a line.
pub fn of_line(line: &[u8]) -> Result<Option<SocketAddr>, NoHeader> {
    let line = line.strip_suffix(b"\r\n").ok_or(NoHeader)?;
    let line = std::str::from_utf8(line).map_err(|_| NoHeader)?;
    let words: Vec<&str> = line.split(' ').collect();
    match words.as_slice() {
        // The specification requires to ignore the rest.
        ["PROXY", "UNKNOWN", ..] => Ok(None),
        [
            "PROXY",
            family @ ("TCP4" | "TCP6"),
            source,
            destination,
            source_port,
            destination_port,
        ] => {
            let source = ip(source, family)?;
            ip(destination, family)?;
            port(destination_port)?;
            Ok(Some(SocketAddr::new(source, port(source_port)?)))
        }
        _ => Err(NoHeader),
    }
}

/// The client in the rest of a header of version 2; `None` if the connection is the proxy's own.
///
/// # Errors
/// If it is too short for its kind.
pub fn of_rest(kind: HeaderContent, rest: &[u8]) -> Result<Option<SocketAddr>, NoHeader> {
    let client = match kind {
        HeaderContent::Own => return Ok(None),
        HeaderContent::Inet => client::<4, Ipv4Addr>(rest),
        HeaderContent::Inet6 => client::<16, Ipv6Addr>(rest),
    };
    client.map(Some).ok_or(NoHeader)
}

/// The source, from source, destination and both ports.
fn client<const N: usize, A: From<[u8; N]> + Into<IpAddr>>(rest: &[u8]) -> Option<SocketAddr> {
    let (source, rest) = rest.split_first_chunk::<N>()?;
    let (_, rest) = rest.split_first_chunk::<N>()?;
    let (port, rest) = rest.split_first_chunk::<2>()?;
    rest.split_first_chunk::<2>()?;
    let address = A::from(*source).into();
    Some(SocketAddr::new(address, u16::from_be_bytes(*port)))
}

fn ip(text: &str, family: &str) -> Result<IpAddr, NoHeader> {
    let address: IpAddr = text.parse().map_err(|_| NoHeader)?;
    match address.is_ipv4() == (family == "TCP4") {
        true => Ok(address),
        false => Err(NoHeader),
    }
}

/// Digits without a leading zero.
fn port(text: &str) -> Result<u16, NoHeader> {
    let port: u16 = text.parse().map_err(|_| NoHeader)?;
    match port.to_string() == text {
        true => Ok(port),
        false => Err(NoHeader),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_of_version_1_are_read_and_nothing_like_them() {
        for (line, expected) in [
            (
                "PROXY TCP4 192.0.2.1 10.0.0.1 4711 443\r\n",
                Ok(Some("192.0.2.1:4711")),
            ),
            (
                "PROXY TCP6 2001:db8::1 ::1 4711 443\r\n",
                Ok(Some("[2001:db8::1]:4711")),
            ),
            ("PROXY UNKNOWN\r\n", Ok(None)),
            ("PROXY UNKNOWN ff:: fe:: 1 2\r\n", Ok(None)),
            ("PROXY TCP4 192.0.2.1 10.0.0.1 4711 443\n", Err(NoHeader)),
            ("PROXY TCP4 2001:db8::1 ::1 4711 443\r\n", Err(NoHeader)),
            ("PROXY TCP6 192.0.2.1 10.0.0.1 4711 443\r\n", Err(NoHeader)),
            ("PROXY TCP4 192.0.2.1 10.0.0.1 4711\r\n", Err(NoHeader)),
            (
                "PROXY TCP4 192.0.2.1 10.0.0.1 4711 443 1\r\n",
                Err(NoHeader),
            ),
            ("PROXY TCP4 192.0.2.1  10.0.0.1 4711 443\r\n", Err(NoHeader)),
            ("PROXY TCP4 192.0.2.1 10.0.0.1 04711 443\r\n", Err(NoHeader)),
            ("PROXY TCP4 192.0.2.1 10.0.0.1 +4711 443\r\n", Err(NoHeader)),
            ("PROXY TCP4 192.0.2.1 10.0.0.1 65536 443\r\n", Err(NoHeader)),
            ("PROXY TCP4 192.0.2.1 x 4711 443\r\n", Err(NoHeader)),
            ("proxy TCP4 192.0.2.1 10.0.0.1 4711 443\r\n", Err(NoHeader)),
            ("GET / HTTP/1.1\r\n", Err(NoHeader)),
        ] {
            let expected = expected.map(|address| address.map(|text| text.parse().unwrap()));
            assert_eq!(of_line(line.as_bytes()), expected, "{line:?}");
        }
    }

    #[test]
    fn the_start_determines_the_version_and_what_follows() {
        assert_eq!(version(b"PROXY TCP4 1"), Ok(HeaderVersion::One));
        assert_eq!(version(b"PROXY UNKNOW"), Ok(HeaderVersion::One));
        assert_eq!(version(SIGNATURE), Ok(HeaderVersion::Two));
        assert_eq!(version(b"GET / HTTP/1"), Err(NoHeader));
        assert_eq!(version(b"\x16\x03\x01\0\0\0\0\0\0\0\0\0"), Err(NoHeader));
        for (announcement, expected) in [
            ([0x21, 0x11, 0, 12], Ok((HeaderContent::Inet, 12))),
            ([0x21, 0x21, 0, 40], Ok((HeaderContent::Inet6, 40))),
            ([0x21, 0x31, 0, 216], Ok((HeaderContent::Own, 216))),
            ([0x21, 0x00, 0, 0], Ok((HeaderContent::Own, 0))),
            ([0x20, 0x11, 0, 12], Ok((HeaderContent::Own, 12))),
            ([0x21, 0x11, 16, 0], Ok((HeaderContent::Inet, 4096))),
            ([0x21, 0x11, 16, 1], Err(NoHeader)),
            ([0x22, 0x11, 0, 12], Err(NoHeader)),
            ([0x11, 0x11, 0, 12], Err(NoHeader)),
            ([0x21, 0x41, 0, 12], Err(NoHeader)),
        ] {
            assert_eq!(announced(announcement), expected, "{announcement:?}");
        }
    }

    #[test]
    fn addresses_of_version_2_are_read_and_extensions_passed_over() {
        let inet = [192, 0, 2, 1, 10, 0, 0, 1, 0x12, 0x67, 1, 187];
        let client = Some("192.0.2.1:4711".parse().unwrap());
        assert_eq!(of_rest(HeaderContent::Inet, &inet), Ok(client));
        let extended = [&inet[..], &[3, 0, 4, 1, 2, 3, 4]].concat();
        assert_eq!(of_rest(HeaderContent::Inet, &extended), Ok(client));
        assert_eq!(of_rest(HeaderContent::Inet, &inet[..11]), Err(NoHeader));
        assert_eq!(of_rest(HeaderContent::Inet6, &inet), Err(NoHeader));
        assert_eq!(of_rest(HeaderContent::Own, &inet), Ok(None));
        let mut inet6 = [0; 36];
        inet6[..2].copy_from_slice(&[0x20, 0x01]);
        inet6[33] = 9;
        let client = Some("[2001::]:9".parse().unwrap());
        assert_eq!(of_rest(HeaderContent::Inet6, &inet6), Ok(client));
    }

    proptest! {
        #[test]
        fn what_a_proxy_writes_is_read_again(v6: bool, bits: u128, source_port: u16) {
            let (family, source): (_, IpAddr) = if v6 {
                ("TCP6", Ipv6Addr::from_bits(bits).into())
            } else {
                ("TCP4", Ipv4Addr::from_bits(bits as u32).into())
            };
            let line = format!("PROXY {family} {source} {source} {source_port} 443\r\n");
            prop_assert!(line.len() <= LINE_BYTES_MAX);
            prop_assert_eq!(of_line(line.as_bytes()), Ok(Some(SocketAddr::new(source, source_port))));
        }

        #[test]
        fn no_bytes_make_it_panic(start: [u8; START_BYTES], rest: Vec<u8>) {
            let _ = version(&start);
            let _ = of_line(&rest);
            for kind in [HeaderContent::Inet, HeaderContent::Inet6, HeaderContent::Own] {
                let _ = of_rest(kind, &rest);
            }
        }
    }
}
