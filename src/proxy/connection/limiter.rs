//! The number of connections, in all and of each client address.
//!
//! [`crate::policy::address`] decides under which address a client is counted.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::IntGauge;

use crate::config::Limits;
use crate::policy::limit_hit::LimitHit;

/// Counts the connections and limits their number.
#[derive(Debug)]
pub struct ConnectionLimiter {
    counts: Mutex<ConnectionCounts>,
    /// The most connections, whatever the configuration permits.
    most: usize,
    gauge: IntGauge,
}

#[derive(Debug, Default)]
struct ConnectionCounts {
    all: usize,
    /// Contains only clients with a connection, so never more entries than connections.
    of_address: HashMap<IpAddr, usize>,
}

/// A counted connection; dropping it removes it from the counts.
#[derive(Debug)]
pub struct ConnectionSlot {
    limiter: Arc<ConnectionLimiter>,
    address: Option<IpAddr>,
}

impl ConnectionLimiter {
    /// No connections yet, and never more than `most`, whatever the configuration permits; `gauge` shows the count.
    pub fn new(most: usize, gauge: IntGauge) -> Arc<ConnectionLimiter> {
        Arc::new(ConnectionLimiter {
            counts: Mutex::default(),
            most,
            gauge,
        })
    }

    /// Counts a connection of a client, if there is room; without an address, in the total only.
    ///
    /// # Errors
    /// With the limit that is reached.
    pub fn slot(
        self: &Arc<ConnectionLimiter>,
        address: Option<IpAddr>,
        limits: &Limits,
    ) -> Result<ConnectionSlot, LimitHit> {
        let mut counts = self.counts.lock();
        if counts.all >= limits.connections.min(self.most) {
            return Err(LimitHit::Connections);
        }
        if let Some(address) = address {
            counts.add(address, limits)?;
        }
        counts.all += 1;
        self.gauge.inc();
        Ok(ConnectionSlot {
            limiter: self.clone(),
            address,
        })
    }
}

impl ConnectionSlot {
    /// Counts a connection for this client too that so far counts in the total only, if there is room.
    ///
    /// # Errors
    /// If the limit of the client's address is reached.
    pub fn assign(&mut self, address: Option<IpAddr>, limits: &Limits) -> Result<(), LimitHit> {
        debug_assert!(self.address.is_none(), "a slot is one client's");
        if let Some(address) = address {
            self.limiter.counts.lock().add(address, limits)?;
            self.address = Some(address);
        }
        Ok(())
    }
}

impl ConnectionCounts {
    fn add(&mut self, address: IpAddr, limits: &Limits) -> Result<(), LimitHit> {
        let count = self.of_address.entry(address).or_default();
        if *count >= limits.connections_per_address {
            return Err(LimitHit::ConnectionsPerAddress);
        }
        *count += 1;
        Ok(())
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut counts = self.limiter.counts.lock();
        counts.all -= 1;
        if let Some(address) = self.address
            && let Some(count) = counts.of_address.get_mut(&address)
        {
            *count -= 1;
            if *count == 0 {
                counts.of_address.remove(&address);
            }
        }
        self.limiter.gauge.dec();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::config::Config;

    static LIMITS: LazyLock<Limits> = LazyLock::new(|| {
        let file = include_str!("../../../gateway.yaml");
        let limits = Config::parse("g", file, &|_| None).unwrap().limits;
        Limits {
            connections: 4,
            connections_per_address: 2,
            ..limits
        }
    });

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn no_more_are_counted_than_there_are_places_and_those_that_leave_make_room() {
        let gauge = IntGauge::new("g", "g").unwrap();
        let limiter = ConnectionLimiter::new(usize::MAX, gauge.clone());
        let mut slots = vec![
            limiter.slot(ip("192.0.2.1"), &LIMITS).unwrap(),
            limiter.slot(ip("192.0.2.1"), &LIMITS).unwrap(),
        ];
        assert_eq!(
            limiter.slot(ip("192.0.2.1"), &LIMITS).unwrap_err(),
            LimitHit::ConnectionsPerAddress
        );
        slots.push(limiter.slot(ip("2001:db8::"), &LIMITS).unwrap());
        slots.push(limiter.slot(ip("2001:db8::"), &LIMITS).unwrap());
        assert_eq!(
            limiter.slot(ip("192.0.2.2"), &LIMITS).unwrap_err(),
            LimitHit::Connections
        );
        assert_eq!(gauge.get(), 4);
        slots.pop();
        assert_eq!(
            limiter.slot(ip("192.0.2.1"), &LIMITS).unwrap_err(),
            LimitHit::ConnectionsPerAddress
        );
        slots.push(limiter.slot(ip("2001:db8::"), &LIMITS).unwrap());
        drop(slots);
        assert_eq!(gauge.get(), 0);
        assert!(limiter.counts.lock().of_address.is_empty());
    }

    #[test]
    fn a_client_without_an_address_is_counted_in_all_only() {
        let limiter = ConnectionLimiter::new(usize::MAX, IntGauge::new("g", "g").unwrap());
        let _slots: Vec<ConnectionSlot> = (0..4)
            .map(|_| limiter.slot(None, &LIMITS).unwrap())
            .collect();
        assert_eq!(
            limiter.slot(None, &LIMITS).unwrap_err(),
            LimitHit::Connections
        );
    }

    #[test]
    fn a_client_that_is_known_later_is_counted_then() {
        let limiter = ConnectionLimiter::new(usize::MAX, IntGauge::new("g", "g").unwrap());
        let mut slots: Vec<ConnectionSlot> = (0..3)
            .map(|_| limiter.slot(None, &LIMITS).unwrap())
            .collect();
        let client = ip("192.0.2.1");
        let assigned = slots.iter_mut().map(|slot| slot.assign(client, &LIMITS));
        let assigned: Vec<_> = assigned.collect();
        assert_eq!(
            assigned,
            [Ok(()), Ok(()), Err(LimitHit::ConnectionsPerAddress)]
        );
        assert_eq!(
            limiter.slot(client, &LIMITS).unwrap_err(),
            LimitHit::ConnectionsPerAddress
        );
        drop(slots);
        assert!(limiter.counts.lock().of_address.is_empty());
    }
}
