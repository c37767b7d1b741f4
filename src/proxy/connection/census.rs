//! How many connections there are, in all and of each client address.
//!
//! What a client is counted by is [`crate::policy::address`]'s to say.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::IntGauge;

/// How many there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// In all.
    pub all: usize,
    /// Of each client address.
    pub each_address: usize,
}

/// Why a connection is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// There are as many as there may be.
    All,
    /// The client has as many as it may have.
    Address,
}

/// The connections there are.
#[derive(Debug)]
pub struct Census {
    counts: Mutex<Counts>,
    gauge: IntGauge,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    /// Only clients with a connection are here, so there are never more than connections.
    of_address: HashMap<IpAddr, usize>,
}

/// A counted connection; dropping it takes it off the count.
#[derive(Debug)]
pub struct Seat {
    census: Arc<Census>,
    address: Option<IpAddr>,
}

impl Census {
    /// Nobody yet; `gauge` shows how many there are.
    pub fn new(gauge: IntGauge) -> Arc<Census> {
        Arc::new(Census {
            counts: Mutex::default(),
            gauge,
        })
    }

    /// Counts a connection of a client, if there is room; without an address in all only.
    ///
    /// # Errors
    /// With what is full.
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
    /// Counts a connection that was counted in all only for this client too, if there is room.
    ///
    /// # Errors
    /// If the client has as many connections as it may have.
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
    fn a_client_that_is_told_later_is_counted_then() {
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
