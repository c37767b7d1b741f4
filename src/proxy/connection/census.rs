//! The number of connections, in all and of each client address.
//!
//! [`crate::policy::address`] decides under which address a client is counted.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::IntGauge;

/// The limits of the number of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// In all.
    pub all: usize,
    /// Of each client address.
    pub each_address: usize,
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The limit of all connections is reached.
    All,
    /// The limit of the client's address is reached.
    Address,
}

/// The counts of connections.
#[derive(Debug)]
pub struct Census {
    counts: Mutex<Counts>,
    gauge: IntGauge,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    /// Contains only clients with a connection, so never more entries than connections.
    of_address: HashMap<IpAddr, usize>,
}

/// A counted connection; dropping it removes it from the counts.
#[derive(Debug)]
pub struct Seat {
    census: Arc<Census>,
    address: Option<IpAddr>,
}

impl Census {
    /// No connections yet; `gauge` shows the count.
    pub fn new(gauge: IntGauge) -> Arc<Census> {
        Arc::new(Census {
            counts: Mutex::default(),
            gauge,
        })
    }

    /// Counts a connection of a client, if there is room; without an address, in the total only.
    ///
    /// # Errors
    /// With the limit that is reached.
    pub fn seat(self: &Arc<Census>, address: Option<IpAddr>, places: Places) -> Result<Seat, Full> {
        let mut counts = self.counts.lock();
        if counts.all >= places.all {
            return Err(Full::All);
        }
        if let Some(address) = address {
            counts.add(address, places)?;
        }
        counts.all += 1;
        self.gauge.inc();
        Ok(Seat {
            census: self.clone(),
            address,
        })
    }
}

impl Seat {
    /// Counts a connection for this client too that so far counts in the total only, if there is room.
    ///
    /// # Errors
    /// If the limit of the client's address is reached.
    pub fn assign(&mut self, address: Option<IpAddr>, places: Places) -> Result<(), Full> {
        debug_assert!(self.address.is_none(), "a seat is one client's");
        if let Some(address) = address {
            self.census.counts.lock().add(address, places)?;
            self.address = Some(address);
        }
        Ok(())
    }
}

impl Counts {
    fn add(&mut self, address: IpAddr, places: Places) -> Result<(), Full> {
        let count = self.of_address.entry(address).or_default();
        if *count >= places.each_address {
            return Err(Full::Address);
        }
        *count += 1;
        Ok(())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut counts = self.census.counts.lock();
        counts.all -= 1;
        if let Some(address) = self.address
            && let Some(count) = counts.of_address.get_mut(&address)
        {
            *count -= 1;
            if *count == 0 {
                counts.of_address.remove(&address);
            }
        }
        self.census.gauge.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: Places = Places {
        all: 4,
        each_address: 2,
    };

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn no_more_are_counted_than_there_are_places_and_those_that_leave_make_room() {
        let gauge = IntGauge::new("g", "g").unwrap();
        let census = Census::new(gauge.clone());
        let mut seats = vec![
            census.seat(ip("192.0.2.1"), PLACES).unwrap(),
            census.seat(ip("192.0.2.1"), PLACES).unwrap(),
        ];
        assert_eq!(
            census.seat(ip("192.0.2.1"), PLACES).unwrap_err(),
            Full::Address
        );
        seats.push(census.seat(ip("2001:db8::"), PLACES).unwrap());
        seats.push(census.seat(ip("2001:db8::"), PLACES).unwrap());
        assert_eq!(census.seat(ip("192.0.2.2"), PLACES).unwrap_err(), Full::All);
        assert_eq!(gauge.get(), 4);
        seats.pop();
        assert_eq!(
            census.seat(ip("192.0.2.1"), PLACES).unwrap_err(),
            Full::Address
        );
        seats.push(census.seat(ip("2001:db8::"), PLACES).unwrap());
        drop(seats);
        assert_eq!(gauge.get(), 0);
        assert!(census.counts.lock().of_address.is_empty());
    }

    #[test]
    fn a_client_without_an_address_is_counted_in_all_only() {
        let census = Census::new(IntGauge::new("g", "g").unwrap());
        let _seats: Vec<Seat> = (0..4).map(|_| census.seat(None, PLACES).unwrap()).collect();
        assert_eq!(census.seat(None, PLACES).unwrap_err(), Full::All);
    }

    #[test]
    fn a_client_that_is_known_later_is_counted_then() {
        let census = Census::new(IntGauge::new("g", "g").unwrap());
        let mut seats: Vec<Seat> = (0..3).map(|_| census.seat(None, PLACES).unwrap()).collect();
        let client = ip("192.0.2.1");
        let assigned = seats.iter_mut().map(|seat| seat.assign(client, PLACES));
        let assigned: Vec<_> = assigned.collect();
        assert_eq!(assigned, [Ok(()), Ok(()), Err(Full::Address)]);
        assert_eq!(census.seat(client, PLACES).unwrap_err(), Full::Address);
        drop(seats);
        assert!(census.counts.lock().of_address.is_empty());
    }
}
