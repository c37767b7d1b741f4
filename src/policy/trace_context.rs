//! Which trace a request belongs to, by W3C Trace Context (Recommendation of 2021, version 00 of the header), and whether it is
//! recorded.
//!
//! Invariants: a valid trace of the caller is continued with its flags, and the caller decides whether it is recorded. Otherwise
//! a new trace begins, and the configured share of these is recorded.

use super::octets::push_hex;

/// Characters of a header of version 00.
const HEADER_CHARS: usize = 55;
/// The flag for a trace that the caller records.
const SAMPLED: u8 = 0x01;
/// Bits of a trace id that are random whatever system made it (Trace Context level 2, "random trace id").
const RANDOM_BITS: u32 = 56;

/// A trace, as in its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace; never 0.
    pub trace_id: u128,
    /// The caller's span, never 0; `None` if the trace begins here.
    pub parent: Option<u64>,
    /// The flags of the header.
    pub flags: u8,
}

impl TraceContext {
    /// The caller's trace, if the header is valid: `00-<32 hex>-<16 hex>-<2 hex>`, lower case, ids not all zero.
    pub fn of_header(value: &[u8]) -> Option<TraceContext> {
        let text = std::str::from_utf8(value).ok()?;
        let parts: Vec<&str> = text.split('-').collect();
        let ["00", trace, span, flags] = parts.as_slice() else {
            return None;
        };
        let is_hex = |part: &str, length: usize| {
            part.len() == length
                && part
                    .bytes()
                    .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        if !is_hex(trace, 32) || !is_hex(span, 16) || !is_hex(flags, 2) {
            return None;
        }
        let trace_id = u128::from_str_radix(trace, 16).ok()?;
        let parent = u64::from_str_radix(span, 16).ok()?;
        (trace_id != 0 && parent != 0).then_some(TraceContext {
            trace_id,
            parent: Some(parent),
            flags: u8::from_str_radix(flags, 16).ok()?,
        })
    }

    /// A new trace with a random id, recorded with a probability of `recorded_percent`.
    pub fn begin(random: u128, recorded_percent: u8) -> TraceContext {
        let trace_id = random.max(1);
        let part = trace_id & ((1 << RANDOM_BITS) - 1);
        let is_recorded = (part * 100) >> RANDOM_BITS < u128::from(recorded_percent);
        TraceContext {
            trace_id,
            parent: None,
            flags: if is_recorded { SAMPLED } else { 0 },
        }
    }

    /// Whether it is recorded.
    pub fn is_recorded(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The header for a request sent from the span with this id.
    pub fn header(&self, span: u64) -> Vec<u8> {
        let mut header = Vec::with_capacity(HEADER_CHARS);
        header.extend_from_slice(b"00-");
        push_hex(&mut header, self.trace_id.to_be_bytes());
        header.push(b'-');
        push_hex(&mut header, span.to_be_bytes());
        header.push(b'-');
        push_hex(&mut header, [self.flags]);
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<TraceContext> {
        TraceContext::of_header(text.as_bytes())
    }

    #[test]
    fn a_valid_header_is_read_and_written_with_another_span() {
        let sent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = read(sent).unwrap();
        assert!(context.is_recorded());
        assert_eq!(context.parent, Some(0xb7ad_6b71_6920_3331));
        assert_eq!(
            context.header(9),
            b"00-0af7651916cd43dd8448eb211c80319c-0000000000000009-01"
        );
        assert!(!read(&sent.replace("-01", "-00")).unwrap().is_recorded());
        assert!(read(&sent.replace("-01", "-03")).unwrap().is_recorded());
    }

    #[test]
    fn whatever_is_no_header_of_version_00_is_no_trace() {
        let zero = "0".repeat(32);
        for broken in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            &format!("00-{zero}-b7ad6b7169203331-01"),
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
        ] {
            assert_eq!(read(broken), None, "{broken}");
        }
    }

    #[test]
    fn none_all_or_about_the_wanted_share_of_new_traces_is_recorded() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut recorded = |percent| {
            let traces = (0..10_000).map(|_| TraceContext::begin(random.u128(..), percent));
            traces.filter(TraceContext::is_recorded).count()
        };
        assert_eq!((recorded(0), recorded(100)), (0, 10_000));
        assert!((800..1_200).contains(&recorded(10)));
    }
}
