//! HTTP/2 on the wire (RFC 9113 section 4.1): which frames pass, and how many frames a connection may send that cost the sender
//! nothing.
//!
//! The HTTP library below the gateway limits the memory that a peer can occupy, not the work that it can cause: SETTINGS, PING,
//! PRIORITY, WINDOW_UPDATE, empty DATA and unknown frames are answered or ignored without end. Here each kind has a budget that
//! grows with honest use (streams, data, whole answers) or slowly with time. A stream that the library must reset because of what the client
//! sent (CVE-2025-8671, "MadeYouReset") counts as several resets by the client. Time is an argument.

use std::time::{Duration, Instant};

use super::limit_hit::LimitHit;

/// The first bytes of a client over HTTP/2 (RFC 9113 section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A GOAWAY on stream 0 with `ENHANCE_YOUR_CALM` and the last stream 2^31-1: no stream is declared unprocessed.
pub const CALM_DOWN: [u8; 17] = [
    0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0x0b,
];

const HEADER_BYTES: usize = 9;
/// The error code, the whole payload of a RST_STREAM (RFC 9113 section 6.4).
const REASON_BYTES: usize = 4;
/// The kinds of frames (RFC 9113 section 6, RFC 9218 section 7.1).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const PRIORITY_UPDATE: u8 = 16;
/// The flag of the last frame of a stream.
const END_STREAM: u8 = 1;
/// A full budget holds its rate for this many seconds.
const BURST_SECONDS: u32 = 5;
/// The budget for one stream or one DATA frame of ours: clients acknowledge data once or twice, and set a stream's priority when
/// they open it and when it moves. Go's client acknowledges each 4 KiB that a program has read, for the stream and for the connection
/// (`inflowMinRefresh` of golang.org/x/net/http2): with a frame for each KiB it has twice what it needs.
const UPDATES_PER_DATA: f64 = 4.0;
const DATA_BYTES_PER_UPDATE: f64 = 1_024.0;
const UPDATES_PER_STREAM: f64 = 2.0;
const PRIORITIES_PER_STREAM: f64 = 10.0;
/// The number of resets as which a provoked reset counts: clients cancel requests often, and hardly ever violate the protocol.
const RESETS_PER_ERROR: f64 = 4.0;
/// The error codes (RFC 9113 section 7) of streams reset because of what the client sent: PROTOCOL_ERROR, FLOW_CONTROL_ERROR,
/// STREAM_CLOSED, FRAME_SIZE_ERROR. The gateway itself resets streams with NO_ERROR (an upload that is not read), INTERNAL_ERROR,
/// CANCEL (an answer that is cut) or REFUSED_STREAM.
const CLIENTS_ERRORS: [u32; 4] = [PROTOCOL_ERROR, 3, 5, 6];
/// The error code of a stream with a malformed request: a head that cannot be read, a body of another length than announced,
/// trailers that do not end the stream (RFC 9113 section 8.1.1).
const PROTOCOL_ERROR: u32 = 1;
/// Some clients measure the round trip once for each burst of data.
const PINGS_PER_DATA: f64 = 1.0;

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    kind: u8,
    flags: u8,
    payload_bytes: u32,
    /// The error code of a RST_STREAM; 0 for other frames.
    reason: u32,
}

impl Frame {
    /// The bytes of its payload if it is DATA; 0 for other frames.
    pub fn data_bytes(self) -> u32 {
        match self.kind {
            DATA => self.payload_bytes,
            _ => 0,
        }
    }

    /// Whether the frame resets a stream because its request is malformed.
    pub fn is_of_malformed(self) -> bool {
        self.kind == RST_STREAM && self.reason == PROTOCOL_ERROR
    }
}

/// Finds the frames in one direction of a connection, however its bytes are split; by default in the server's.
#[derive(Debug, Clone, Default)]
pub struct Frames {
    /// For a RST_STREAM, including its error code.
    header: [u8; HEADER_BYTES + REASON_BYTES],
    header_bytes: usize,
    /// The bytes to skip: of a payload, or of the preface.
    payload_left: u32,
}

impl Frames {
    /// The client's direction: the preface precedes the first frame.
    pub fn of_client() -> Frames {
        Frames {
            payload_left: PREFACE.len() as u32,
            ..Frames::default()
        }
    }

    /// Calls `found` with each frame whose head ends in `bytes`. Payloads cost nothing.
    pub fn find(&mut self, mut bytes: &[u8], mut found: impl FnMut(Frame)) {
        while !bytes.is_empty() {
            let skipped = if self.payload_left > 0 {
                let skipped = usize::try_from(self.payload_left)
                    .map_or(bytes.len(), |left| left.min(bytes.len()));
                self.payload_left -= u32::try_from(skipped).unwrap_or(self.payload_left);
                skipped
            } else {
                self.find_head(bytes, &mut found)
            };
            bytes = bytes.get(skipped..).unwrap_or_default();
        }
    }

    fn find_head(&mut self, bytes: &[u8], found: &mut impl FnMut(Frame)) -> usize {
        let wanted = self.wanted_bytes();
        let room = self.header.get_mut(self.header_bytes..wanted);
        let room = room.unwrap_or_default();
        let taken = room.len().min(bytes.len());
        for (to, from) in room.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.header_bytes += taken;
        if self.header_bytes == self.wanted_bytes() {
            let [_, _, _, kind, flags, _, _, _, _, reason @ ..] = self.header;
            let payload_bytes = self.payload_bytes();
            let (payload_left, reason) = match self.has_reason() {
                true => (0, u32::from_be_bytes(reason)),
                false => (payload_bytes, 0),
            };
            self.header_bytes = 0;
            self.payload_left = payload_left;
            found(Frame {
                kind,
                flags,
                payload_bytes,
                reason,
            });
        }
        taken
    }

    /// The number of bytes needed to identify the present frame.
    fn wanted_bytes(&self) -> usize {
        match self.header_bytes >= HEADER_BYTES && self.has_reason() {
            true => HEADER_BYTES + REASON_BYTES,
            false => HEADER_BYTES,
        }
    }

    fn payload_bytes(&self) -> u32 {
        let [high, middle, low, ..] = self.header;
        u32::from_be_bytes([0, high, middle, low])
    }

    fn has_reason(&self) -> bool {
        let [_, _, _, kind, ..] = self.header;
        kind == RST_STREAM && self.payload_bytes() as usize == REASON_BYTES
    }

    /// Whether the bytes so far end at the end of a frame, so another frame can be appended.
    pub fn is_between(&self) -> bool {
        self.header_bytes == 0 && self.payload_left == 0
    }
}

/// The frames that a connection may send per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlRates {
    /// RST_STREAM frames.
    pub resets: u32,
    /// Frames of each other kind that cost the sender nothing.
    pub control_frames: u32,
}

impl ControlRates {
    /// A full budget of resets.
    fn resets_full(self) -> f64 {
        f64::from(self.resets * BURST_SECONDS)
    }
}

/// The floods of frames other than resets, which share one rate.
const CONTROL_FLOODS: [LimitHit; 6] = [
    LimitHit::H2Settings,
    LimitHit::H2Ping,
    LimitHit::H2Priority,
    LimitHit::H2WindowUpdate,
    LimitHit::H2EmptyFrames,
    LimitHit::H2OtherFrames,
];

/// A connection's budgets.
#[derive(Debug, Clone)]
pub struct Budgets {
    rates: ControlRates,
    filled: Instant,
    /// In the order of [`CONTROL_FLOODS`].
    control: [f64; CONTROL_FLOODS.len()],
    resets: f64,
    /// The streams that the client has begun.
    pub streams: u64,
}

impl Budgets {
    /// Full budgets: five seconds of each rate.
    pub fn new(rates: ControlRates, now: Instant) -> Budgets {
        Budgets {
            rates,
            filled: now,
            control: CONTROL_FLOODS.map(|_| f64::from(rates.control_frames * BURST_SECONDS)),
            resets: rates.resets_full(),
            streams: 0,
        }
    }

    /// The budget whose end is this flood.
    fn budget(&mut self, flood: LimitHit) -> &mut f64 {
        let mut control = CONTROL_FLOODS.iter().zip(&mut self.control);
        let found = control.find(|(other, _)| **other == flood);
        found.map_or(&mut self.resets, |(_, budget)| budget)
    }

    /// Counts a frame of the client.
    ///
    /// # Errors
    /// With the kind of which there were too many; the connection should be closed.
    pub fn receive(&mut self, frame: Frame, now: Instant) -> Result<(), LimitHit> {
        let ends_stream = frame.flags & END_STREAM != 0;
        let flood = match frame.kind {
            DATA | CONTINUATION if frame.payload_bytes == 0 && !ends_stream => {
                LimitHit::H2EmptyFrames
            }
            DATA | CONTINUATION => return Ok(()),
            HEADERS => {
                self.streams += 1;
                *self.budget(LimitHit::H2WindowUpdate) += UPDATES_PER_STREAM;
                *self.budget(LimitHit::H2Priority) += PRIORITIES_PER_STREAM;
                return Ok(());
            }
            PRIORITY | PRIORITY_UPDATE => LimitHit::H2Priority,
            RST_STREAM => LimitHit::H2Resets,
            SETTINGS => LimitHit::H2Settings,
            PING => LimitHit::H2Ping,
            WINDOW_UPDATE => LimitHit::H2WindowUpdate,
            _ => LimitHit::H2OtherFrames,
        };
        self.take(1.0, flood, now)
    }

    /// Counts a frame of ours. The end of an answer permits a reset, up to a full budget: some clients reset every stream that has
    /// ended.
    ///
    /// # Errors
    /// If it is a reset that the client provoked, and there were too many; the connection should be closed.
    pub fn send(&mut self, frame: Frame, now: Instant) -> Result<(), LimitHit> {
        if matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0 {
            self.resets = (self.resets + 1.0).min(self.rates.resets_full());
        }
        match frame.kind {
            DATA => {
                let by_bytes = f64::from(frame.payload_bytes) / DATA_BYTES_PER_UPDATE;
                *self.budget(LimitHit::H2WindowUpdate) += UPDATES_PER_DATA + by_bytes;
                *self.budget(LimitHit::H2Ping) += PINGS_PER_DATA;
                Ok(())
            }
            RST_STREAM if CLIENTS_ERRORS.contains(&frame.reason) => {
                self.take(RESETS_PER_ERROR, LimitHit::H2Resets, now)
            }
            _ => Ok(()),
        }
    }

    /// Takes from a budget; fails with the `flood` if it was not sufficient.
    fn take(&mut self, frames: f64, flood: LimitHit, now: Instant) -> Result<(), LimitHit> {
        *self.budget(flood) -= frames;
        if *self.budget(flood) < 0.0 {
            self.refill(now);
        }
        match *self.budget(flood) < 0.0 {
            true => Err(flood),
            false => Ok(()),
        }
    }

    /// Adds what time has granted. Done only when a budget is used up, so that honest connections never pay for it.
    fn refill(&mut self, now: Instant) {
        let passed = now
            .saturating_duration_since(self.filled)
            .min(Duration::from_secs(BURST_SECONDS.into()));
        self.filled = now;
        let control = passed.as_secs_f64() * f64::from(self.rates.control_frames);
        self.control
            .iter_mut()
            .for_each(|budget| *budget += control);
        self.resets += passed.as_secs_f64() * f64::from(self.rates.resets);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATES: ControlRates = ControlRates {
        resets: 2,
        control_frames: 2,
    };

    fn frame(kind: u8) -> Frame {
        Frame {
            kind,
            flags: 0,
            payload_bytes: 8,
            reason: 0,
        }
    }

    fn reset(reason: u32) -> Frame {
        Frame {
            reason,
            payload_bytes: 4,
            ..frame(RST_STREAM)
        }
    }

    fn bytes_of(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn the_end_of_an_answer_permits_a_reset_and_saves_none_beyond_a_full_budget() {
        let start = Instant::now();
        let mut budgets = Budgets::new(RATES, start);
        let end_of = |kind| Frame {
            flags: END_STREAM,
            ..frame(kind)
        };
        for kind in [0, 1].into_iter().cycle().take(1_000) {
            assert_eq!(budgets.send(end_of(kind), start), Ok(()));
            assert_eq!(budgets.receive(frame(RST_STREAM), start), Ok(()));
        }
        for _ in 0..1_000 {
            assert_eq!(budgets.send(end_of(1), start), Ok(()));
            assert_eq!(budgets.send(frame(0), start), Ok(()));
        }
        for _ in 0..10 {
            assert_eq!(budgets.receive(frame(RST_STREAM), start), Ok(()));
        }
        let flood = Err(LimitHit::H2Resets);
        assert_eq!(budgets.receive(frame(RST_STREAM), start), flood);
    }

    #[test]
    fn each_kind_has_a_budget_that_time_refills() {
        let floods = [
            (4, LimitHit::H2Settings),
            (6, LimitHit::H2Ping),
            (2, LimitHit::H2Priority),
            (16, LimitHit::H2Priority),
            (8, LimitHit::H2WindowUpdate),
            (3, LimitHit::H2Resets),
            (7, LimitHit::H2OtherFrames),
            (200, LimitHit::H2OtherFrames),
        ];
        for (kind, flood) in floods {
            let start = Instant::now();
            let mut budgets = Budgets::new(RATES, start);
            for _ in 0..10 {
                assert_eq!(budgets.receive(frame(kind), start), Ok(()));
            }
            assert_eq!(budgets.receive(frame(kind), start), Err(flood));
            let later = start + Duration::from_secs(1);
            assert_eq!(budgets.receive(frame(kind), later), Ok(()), "{flood:?}");
            assert_eq!(budgets.receive(frame(kind), later), Err(flood), "{flood:?}");
        }
    }

    #[test]
    fn requests_and_what_is_read_of_the_answers_pay_for_updates() {
        let start = Instant::now();
        let mut budgets = Budgets::new(RATES, start);
        for _ in 0..1_000 {
            assert_eq!(budgets.receive(frame(1), start), Ok(()));
            assert_eq!(budgets.receive(frame(0), start), Ok(()));
            assert_eq!(budgets.send(frame(0), start), Ok(()));
            for kind in [8, 8, 8, 8, 6, 2] {
                assert_eq!(budgets.receive(frame(kind), start), Ok(()));
            }
        }
        assert_eq!(budgets.streams, 1_000);
    }

    #[test]
    fn data_without_content_is_counted_unless_it_ends_its_stream() {
        let start = Instant::now();
        let mut budgets = Budgets::new(RATES, start);
        let empty = |flags| Frame {
            kind: 0,
            flags,
            payload_bytes: 0,
            reason: 0,
        };
        for _ in 0..100 {
            assert_eq!(budgets.receive(empty(END_STREAM), start), Ok(()));
        }
        for _ in 0..10 {
            assert_eq!(budgets.receive(empty(0), start), Ok(()));
        }
        assert_eq!(
            budgets.receive(empty(0), start),
            Err(LimitHit::H2EmptyFrames)
        );
    }

    #[test]
    fn resets_that_the_client_provokes_take_more_of_its_budget_and_ours_take_none() {
        let start = Instant::now();
        let mut budgets = Budgets::new(RATES, start);
        for ours in [0, 2, 7, 8] {
            for _ in 0..100 {
                assert_eq!(budgets.send(reset(ours), start), Ok(()));
            }
        }
        for provoked in [1, 3] {
            assert_eq!(budgets.send(reset(provoked), start), Ok(()));
        }
        assert_eq!(budgets.receive(reset(8), start), Ok(()));
        assert_eq!(budgets.send(reset(5), start), Err(LimitHit::H2Resets));
        // An excess is deducted later.
        let later = start + Duration::from_secs(2);
        assert_eq!(budgets.receive(reset(8), later), Ok(()));
        assert_eq!(budgets.send(reset(6), later), Err(LimitHit::H2Resets));
    }

    #[test]
    fn the_error_code_of_a_reset_is_read_and_no_other_payload() {
        let sent = [
            bytes_of(RST_STREAM, 0, &[0, 0, 1, 2]),
            bytes_of(8, 0, &[0, 0, 0, 9]),
            // A frame that no peer accepts.
            bytes_of(RST_STREAM, 0, &[0, 0, 0, 3, 0]),
        ];
        let (mut frames, mut found) = (Frames::default(), Vec::new());
        for byte in sent.concat() {
            frames.find(&[byte], |frame| found.push((frame.kind, frame.reason)));
        }
        assert_eq!(found, [(RST_STREAM, 0x102), (8, 0), (RST_STREAM, 0)]);
        assert!(frames.is_between());
    }

    proptest! {
        #[test]
        fn frames_are_found_however_the_bytes_are_cut(
            sent in proptest::collection::vec((0u8..12, 0u8..4, 0usize..40), 0..12),
            cuts in proptest::collection::vec(1usize..20, 0..40),
        ) {
            let mut bytes = PREFACE.to_vec();
            for (kind, flags, length) in &sent {
                bytes.extend(bytes_of(*kind, *flags, &vec![0xff; *length]));
            }
            let (mut frames, mut found) = (Frames::of_client(), Vec::new());
            let (mut rest, mut cuts) = (bytes.as_slice(), cuts.into_iter());
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(cuts.next().unwrap_or(7).min(rest.len()));
                frames.find(piece, |frame| found.push((frame.kind, frame.flags, frame.payload_bytes as usize)));
                rest = after;
            }
            prop_assert_eq!(found, sent);
            prop_assert!(frames.is_between());
        }
    }
}
