//! Connections over HTTP/1 between two exchanges.
//!
//! A request takes a connection without waking another task. pingora's pool has a task and a timer for each idle connection, which took
//! 10,000 of a request's 94,000 instructions (`make instructions`, embedded store). Here a connection is checked when it is taken, and
//! all of them once a second ([`Idle::close_ended`]).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ahash::RandomState;
use futures_util::FutureExt;
use parking_lot::Mutex;
use pingora::protocols::Stream;
use tokio::io::AsyncReadExt;
use tokio::task::coop::unconstrained;
use tokio::task::yield_now;

/// Connections that are kept at most, over all servers.
const KEPT_MAX: usize = 1_024;
/// How many times the connections of a server are taken out to be looked at.
const LOOKS: usize = 64;
/// How long looking at one may take. It takes microseconds, unless its server has sent megabytes that are no answer, such as tickets of
/// TLS; then it is closed.
const LOOK_MAX: Duration = Duration::from_millis(10);
/// Connections of one server that rest at most: a server may have few.
const RESTING_MAX: usize = 8;

/// The connections that are kept, by what they were made with.
#[derive(Default)]
pub struct Idle(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// Of each server the one last used at the end.
    by_settings: HashMap<u64, Vec<IdleConnection>, RandomState>,
    count: usize,
}

struct IdleConnection {
    stream: Stream,
    /// When it can be taken; `None` for at once.
    from: Option<Instant>,
    /// When it is too old; `None` for never.
    until: Option<Instant>,
}

impl Idle {
    /// The connection with these `settings` that was used last, if one is open still at `now`.
    pub fn take(&self, settings: u64, now: Instant) -> Option<Stream> {
        loop {
            let mut waiting = self.0.lock().pop(settings, now)?;
            if waiting.is_open(now) {
                return Some(waiting.stream);
            }
        }
    }

    /// Keeps a connection, to be taken `from` an instant on and `until` it is too old. Closes it if too many of its server rest. If too
    /// many are kept in all, closes the longest idle one of the server with the most, so that neither a busy nor a removed server keeps
    /// others out.
    pub fn keep(
        &self,
        stream: Stream,
        settings: u64,
        from: Option<Instant>,
        until: Option<Instant>,
    ) {
        let _closed;
        let mut kept = self.0.lock();
        let others = kept.by_settings.entry(settings).or_default();
        if from.is_some() {
            let now = Instant::now();
            let resting = others.iter().filter(|one| !one.has_rested(now));
            if resting.count() >= RESTING_MAX {
                return;
            }
        }
        others.push(IdleConnection {
            stream,
            from,
            until,
        });
        kept.count += 1;
        if kept.count > KEPT_MAX {
            // Without the lock, which is released first.
            _closed = kept.longest_idle();
        }
    }

    /// Closes the connections that their servers have closed, and those that are too old. They are taken out for it, few at a time, and
    /// other tasks run in between: over TLS, looking at one decrypts what its server has sent.
    pub async fn close_ended(&self) {
        let servers = self.0.lock().lengths();
        for (settings, length) in servers {
            let mut place = 0;
            for _ in 0..LOOKS.min(length) {
                let mut some = self.0.lock().take(settings, place, length.div_ceil(LOOKS));
                some.retain_mut(|waiting| waiting.is_open(Instant::now()));
                let surplus;
                (place, surplus) = self.0.lock().put_back(settings, place, some);
                drop(surplus);
                yield_now().await;
            }
        }
        let is_used = |_: &u64, waiting: &mut Vec<IdleConnection>| !waiting.is_empty();
        self.0.lock().by_settings.retain(is_used);
    }
}

impl Kept {
    /// How many connections are kept to each server.
    fn lengths(&self) -> Vec<(u64, usize)> {
        let servers = self.by_settings.iter();
        servers
            .map(|(settings, waiting)| (*settings, waiting.len()))
            .collect()
    }

    /// Takes `count` connections from a place in a server's list on, or as many as there are.
    fn take(&mut self, settings: u64, place: usize, count: usize) -> Vec<IdleConnection> {
        let Some(waiting) = self.by_settings.get_mut(&settings) else {
            return Vec::new();
        };
        let end = waiting.len().min(place + count);
        let taken: Vec<IdleConnection> = waiting.drain(place.min(end)..end).collect();
        self.count -= taken.len();
        taken
    }

    /// Puts connections back in their place; returns the place after them, and those that are too many by now.
    fn put_back(
        &mut self,
        settings: u64,
        place: usize,
        mut some: Vec<IdleConnection>,
    ) -> (usize, Vec<IdleConnection>) {
        let surplus = some.split_off(some.len().min(KEPT_MAX.saturating_sub(self.count)));
        let waiting = self.by_settings.entry(settings).or_default();
        let place = place.min(waiting.len());
        let after = place + some.len();
        self.count += some.len();
        waiting.splice(place..place, some);
        (after, surplus)
    }

    /// Takes the longest idle connection of the server with the most.
    fn longest_idle(&mut self) -> Option<IdleConnection> {
        let most = self.by_settings.values_mut().max_by_key(|one| one.len())?;
        self.count -= 1;
        Some(most.remove(0))
    }

    fn pop(&mut self, settings: u64, now: Instant) -> Option<IdleConnection> {
        let waiting = self.by_settings.get_mut(&settings)?;
        let last = waiting.iter().rposition(|one| one.has_rested(now))?;
        self.count -= 1;
        Some(waiting.remove(last))
    }
}

impl IdleConnection {
    fn has_rested(&self, now: Instant) -> bool {
        self.from.is_none_or(|from| from <= now)
    }

    fn is_open(&mut self, now: Instant) -> bool {
        // In clear, the first byte of what was sent ends the look.
        let begun = self.stream.get_ssl_digest().map(|_| Instant::now());
        let is_quiet = self.until.is_none_or(|until| now < until) && self.is_quiet();
        is_quiet && begun.is_none_or(|begun| begun.elapsed() <= LOOK_MAX)
    }

    /// Whether nothing can be read: neither the end nor bytes that no exchange asked for.
    fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        // Without tokio's budget, which would make a connection look quiet.
        let read = unconstrained(self.stream.read(&mut byte));
        read.now_or_never().is_none()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const SERVER: u64 = 7;
    /// The end of a time that no test reaches.
    fn late() -> Option<Instant> {
        Instant::now().checked_add(Duration::from_secs(60))
    }

    /// A connection, and the server's end of it.
    async fn connection() -> (Stream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let made = TcpStream::connect(listener.local_addr().unwrap());
        let (made, accepted) = tokio::join!(made, listener.accept());
        let stream = pingora::protocols::l4::stream::Stream::from(made.unwrap());
        (Box::new(stream), accepted.unwrap().0)
    }

    fn kept(idle: &Idle) -> usize {
        let kept = idle.0.lock();
        let all: usize = kept.by_settings.values().map(Vec::len).sum();
        assert_eq!(all, kept.count);
        all
    }

    /// Looks until all are closed, because the system takes a moment to pass on what a server does.
    async fn closes_all(idle: &Idle) {
        while kept(idle) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            idle.close_ended().await;
        }
    }

    #[tokio::test]
    async fn the_connection_used_last_is_taken_and_each_once() {
        let idle = Idle::default();
        let (mut ids, mut servers) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let (stream, server) = connection().await;
            ids.push(stream.id());
            servers.push(server);
            idle.keep(stream, SERVER, None, late());
        }
        assert!(idle.take(SERVER + 1, Instant::now()).is_none());
        let taken: Vec<_> = std::iter::from_fn(|| idle.take(SERVER, Instant::now())).collect();
        assert_eq!(
            taken.iter().map(|one| one.id()).collect::<Vec<_>>(),
            [ids[1], ids[0]]
        );
        assert_eq!(kept(&idle), 0);
    }

    #[tokio::test]
    async fn one_that_its_server_has_closed_or_written_to_is_closed() {
        let idle = Idle::default();
        let (stream, server) = connection().await;
        idle.keep(stream, SERVER, None, late());
        idle.close_ended().await;
        assert_eq!(kept(&idle), 1);
        drop(server);
        closes_all(&idle).await;
        let (stream, mut server) = connection().await;
        idle.keep(stream, SERVER, None, late());
        server.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        closes_all(&idle).await;
    }

    #[tokio::test]
    async fn one_that_is_too_old_is_not_taken() {
        let idle = Idle::default();
        let (stream, _server) = connection().await;
        idle.keep(stream, SERVER, None, Some(Instant::now()));
        assert!(idle.take(SERVER, Instant::now()).is_none());
        assert_eq!(kept(&idle), 0);
    }

    #[tokio::test]
    async fn one_that_rests_is_not_taken_before_others_or_its_time() {
        let idle = Idle::default();
        let now = Instant::now();
        let rest = now + Duration::from_secs(1);
        let (first, _server) = connection().await;
        let (resting, _other_server) = connection().await;
        let ids = [first.id(), resting.id()];
        idle.keep(first, SERVER, None, late());
        idle.keep(resting, SERVER, Some(rest), late());
        assert_eq!(idle.take(SERVER, now).map(|one| one.id()), Some(ids[0]));
        assert!(idle.take(SERVER, now).is_none());
        assert_eq!(idle.take(SERVER, rest).map(|one| one.id()), Some(ids[1]));
        assert_eq!(kept(&idle), 0);
    }

    #[tokio::test]
    async fn few_connections_of_a_server_rest() {
        let idle = Idle::default();
        let mut servers = Vec::new();
        for _ in 0..2 * RESTING_MAX {
            let (stream, server) = connection().await;
            idle.keep(stream, SERVER, late(), late());
            servers.push(server);
        }
        assert_eq!(kept(&idle), RESTING_MAX);
        let (stream, _server) = connection().await;
        idle.keep(stream, SERVER, None, late());
        assert!(idle.take(SERVER, Instant::now()).is_some());
    }

    #[tokio::test]
    async fn the_longest_idle_one_of_the_server_with_the_most_makes_room() {
        let idle = Idle::default();
        let (other, _other_server) = connection().await;
        idle.keep(other, SERVER + 1, None, late());
        let (first, mut first_server) = connection().await;
        idle.keep(first, SERVER, None, late());
        let (second, _second_server) = connection().await;
        idle.keep(second, SERVER, None, late());
        // As many more as there may be, but for the sockets.
        idle.0.lock().count = KEPT_MAX;
        let (third, _third_server) = connection().await;
        idle.keep(third, SERVER + 2, None, late());
        let mut byte = [0];
        let end = first_server.read(&mut byte);
        let end = tokio::time::timeout(Duration::from_secs(10), end).await;
        assert_eq!(end.expect("it is closed").unwrap(), 0);
        assert_eq!(idle.0.lock().count, KEPT_MAX);
        for settings in [SERVER, SERVER + 1, SERVER + 2] {
            assert!(idle.take(settings, Instant::now()).is_some());
            assert!(idle.take(settings, Instant::now()).is_none());
        }
    }
}
