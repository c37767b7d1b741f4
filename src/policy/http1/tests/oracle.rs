//! The codec compared with a public parser: what both accept they read alike, and what only one accepts is on a list, each case
//! with its reason.

use http::Method;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::answer::{AnswerFault, AnswerHead, AnswerReader};
use super::super::body::{BodyReader, ChunkLimits};
use super::super::framing::{AnswerFraming, Framing};
use super::super::request::{RequestHead, RequestReader};
use super::laws::{ANSWER, REQUEST};
use super::*;
use crate::policy::target::{Absolute, Target};

/// A reason why only one of the two accepts some bytes, and whether it applies here.
type Reason<'a> = (&'static str, &'a dyn Fn() -> bool);

fn assert_listed(bytes: &[u8], reasons: &[Reason<'_>]) {
    assert!(
        reasons.iter().any(|(_, holds)| holds()),
        "accepted by one parser only, for no reason on the list: {}",
        bytes.escape_ascii()
    );
}

fn has_bare_line_feed(bytes: &[u8]) -> bool {
    let mut before = b' ';
    bytes.iter().any(|byte| {
        let bare = *byte == b'\n' && before != b'\r';
        before = *byte;
        bare
    })
}

fn values<'a>(fields: &'a [httparse::Header<'a>], name: &str) -> Vec<&'a [u8]> {
    let named = fields
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case(name));
    named.map(|field| field.value).collect()
}

fn is_too_large(fields: &[httparse::Header<'_>], bytes: &[u8]) -> bool {
    let size: usize = fields
        .iter()
        .map(|field| field.name.len() + field.value.len() + 4)
        .sum();
    size > REQUEST.header_bytes_max
        || fields.len() > REQUEST.header_count_max
        || bytes.len() > REQUEST.header_bytes_max
}

fn names_too_many_options(fields: &[httparse::Header<'_>]) -> bool {
    let options = values(fields, "connection").concat();
    options.split(|byte| *byte == b',').count() > 16
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn theirs(fields: &[httparse::Header<'_>]) -> Pairs {
    let fields = fields.iter();
    fields
        .map(|field| (field.name.as_bytes().to_vec(), field.value.to_vec()))
        .collect()
}

fn ours(fields: &super::super::fields::FieldList) -> Pairs {
    let fields = fields.iter();
    fields
        .map(|field| (field.name.to_vec(), field.value.to_vec()))
        .collect()
}

fn compare_request(bytes: &[u8]) {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut fields);
    let parsed = request.parse(bytes);
    let mut buffer = BytesMut::from(bytes);
    let read = RequestReader::default().take(&mut buffer, &REQUEST);
    match (&read, parsed) {
        (Ok(Some(head)), Ok(httparse::Status::Complete(end))) => {
            assert_eq!(buffer.len(), bytes.len() - end, "{}", bytes.escape_ascii());
            assert_same_request(head, &request);
        }
        (Ok(Some(_)), _) => assert_listed(
            bytes,
            &[(
                "a later minor version is read as 1.1 (RFC 9110 section 2.5)",
                &|| {
                    bytes[..bytes.len() - buffer.len()].windows(9).any(|part| {
                        part.starts_with(b" HTTP/1.") && (b'2'..=b'9').contains(&part[8])
                    })
                },
            )],
        ),
        (_, Ok(httparse::Status::Complete(_))) => assert_only_theirs(bytes, &request),
        (_, _) => {}
    }
}

fn assert_same_request(head: &RequestHead, request: &httparse::Request<'_, '_>) {
    let path = request.path.unwrap();
    assert_eq!(head.method.as_str(), request.method.unwrap());
    let version = match head.version {
        Version::Http10 => 0,
        Version::Http11 => 1,
        Version::Http2 => unreachable!(),
    };
    assert_eq!(Some(version), request.version);
    assert_eq!(ours(&head.fields), theirs(request.headers));
    let target = match Absolute::of(path.as_bytes()) {
        Some(absolute) => {
            assert_eq!(head.host(), Some(absolute.authority));
            absolute.origin_form().into_owned()
        }
        None => {
            let host = values(request.headers, "host");
            assert_eq!(head.host(), host.first().copied());
            path.as_bytes().to_vec()
        }
    };
    let query = head
        .target()
        .unwrap()
        .query
        .map(|query| format!("?{query}"));
    let joined = format!("{}{}", head.path(), query.unwrap_or_default());
    assert_eq!(joined.as_bytes(), target);
    let lengths = values(request.headers, "content-length");
    let framing = match (
        &lengths[..],
        &values(request.headers, "transfer-encoding")[..],
    ) {
        ([], []) => Framing::Empty,
        ([length], []) => {
            let length = std::str::from_utf8(length).unwrap();
            Framing::Length(length.parse().unwrap())
        }
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => Framing::Chunked,
        both => panic!("framed by {both:?}"),
    };
    assert_eq!(head.framing, framing);
}

fn assert_only_theirs(bytes: &[u8], request: &httparse::Request<'_, '_>) {
    let fields = &*request.headers;
    let target = request.path.unwrap().as_bytes();
    let hosts = values(fields, "host");
    let lengths = values(fields, "content-length");
    let codings = values(fields, "transfer-encoding");
    let old = request.version == Some(0);
    assert_listed(
        bytes,
        &[
            ("a bare LF ends a line for some servers only", &|| {
                has_bare_line_feed(bytes)
            }),
            (
                "more than two empty lines before a request are no client's",
                &|| bytes.starts_with(b"\r\n\r\n\r\n"),
            ),
            (
                "a target that servers read in different ways, or not in origin-form",
                &|| {
                    let absolute = Absolute::of(target);
                    let origin = absolute.map(|absolute| absolute.origin_form().into_owned());
                    Target::parse(origin.as_deref().unwrap_or(target)).is_err()
                        || absolute.is_some_and(|absolute| {
                            !is_host(absolute.authority) || absolute.rest.is_empty()
                        })
                },
            ),
            ("a tunnel carries what is not counted", &|| {
                request.method == Some("CONNECT")
            }),
            ("a method longer than any that is registered", &|| {
                request.method.unwrap().len() > 32
            }),
            ("not exactly one valid host", &|| {
                hosts.len() > 1
                    || (!old && hosts.is_empty())
                    || !hosts.iter().all(|host| is_host(host))
            }),
            (
                "a body framed in two ways, or by what servers read differently",
                &|| {
                    lengths.len() + codings.len() > 1
                        || !lengths.iter().all(|value| length(value).is_some())
                        || !codings
                            .iter()
                            .all(|value| value.eq_ignore_ascii_case(b"chunked"))
                        || (old && !codings.is_empty())
                },
            ),
            ("larger than the bounds", &|| {
                is_too_large(fields, bytes) || target.len() > REQUEST.target_bytes_max
            }),
            ("more options of Connection than are looked for", &|| {
                names_too_many_options(fields)
            }),
        ],
    );
}

fn compare_answer(bytes: &[u8], method: &Method) {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut answer = httparse::Response::new(&mut fields);
    let parsed = answer.parse(bytes);
    let mut buffer = BytesMut::from(bytes);
    let read = AnswerReader::new(method).take(&mut buffer, &ANSWER);
    match (&read, parsed) {
        (Ok(Some(head)), Ok(httparse::Status::Complete(end))) => {
            assert_eq!(buffer.len(), bytes.len() - end, "{}", bytes.escape_ascii());
            assert_same_answer(head, &answer, method);
        }
        (Ok(Some(_)), _) => assert_listed(
            bytes,
            &[(
                "a later minor version is read as 1.1 (RFC 9110 section 2.5)",
                &|| bytes.starts_with(b"HTTP/1.") && (b'2'..=b'9').contains(&bytes[7]),
            )],
        ),
        (_, Ok(httparse::Status::Complete(_))) => {
            let fields = &*answer.headers;
            let lengths = values(fields, "content-length");
            let codings = values(fields, "transfer-encoding");
            assert_listed(
                bytes,
                &[
                    ("a bare LF ends a line for some servers only", &|| {
                        has_bare_line_feed(bytes)
                    }),
                    (
                        "empty lines before an answer may be the rest of another",
                        &|| bytes.starts_with(b"\r\n"),
                    ),
                    ("no status (RFC 9110 section 15)", &|| {
                        answer.code.unwrap() < 100
                    }),
                    ("a switch that was not asked for", &|| {
                        read == Err(AnswerFault::Switched)
                    }),
                    (
                        "a body framed in two ways, or in none that was asked for",
                        &|| {
                            let is_other_coding = codings.len() > 1
                                || !codings
                                    .iter()
                                    .all(|value| value.eq_ignore_ascii_case(b"chunked"));
                            let has_length = !lengths.is_empty();
                            let has_coding = !codings.is_empty();
                            has_body(answer.code.unwrap(), method)
                                && (is_other_coding
                                    || has_coding && (has_length || answer.version == Some(0))
                                    || has_length
                                        && agreed_length(lengths.iter().copied()).is_none())
                        },
                    ),
                    ("larger than the bounds", &|| is_too_large(fields, bytes)),
                    ("more options of Connection than are looked for", &|| {
                        names_too_many_options(fields)
                    }),
                ],
            );
        }
        (_, _) => {}
    }
}

/// Whether the fields of an answer frame a body of its own (RFC 9112 section 6.3).
fn has_body(status: u16, method: &Method) -> bool {
    *method != Method::HEAD && !matches!(status, 100..=199 | 204 | 304)
}

/// The number that all of these values have, each once or several times; `None` if they differ or one is no number.
fn common_length(values: &[&[u8]]) -> Option<u64> {
    let text = std::str::from_utf8(&values.join(&b','))
        .unwrap_or_default()
        .to_owned();
    let mut numbers = text.split(',').map(|number| {
        let number = number.trim_matches([' ', '\t']);
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        number.parse::<u64>().ok().filter(|_| is_number)
    });
    let first = numbers.next()??;
    numbers.all(|number| number == Some(first)).then_some(first)
}

fn assert_same_answer(head: &AnswerHead, answer: &httparse::Response<'_, '_>, method: &Method) {
    assert_eq!(Some(head.status.as_u16()), answer.code);
    let version = match head.version {
        Version::Http10 => 0,
        Version::Http11 => 1,
        Version::Http2 => unreachable!(),
    };
    assert_eq!(Some(version), answer.version);
    assert_eq!(ours(&head.fields), theirs(answer.headers));
    let status = answer.code.unwrap();
    let lengths = values(answer.headers, "content-length");
    let framing = match (
        &lengths[..],
        &values(answer.headers, "transfer-encoding")[..],
    ) {
        // Neither may announce a length (RFC 9110 section 8.6).
        (_, _) if matches!(status, 100..=199 | 204) => AnswerFraming::Bodiless(None),
        (lengths, []) if !has_body(status, method) => {
            AnswerFraming::Bodiless(common_length(lengths))
        }
        (_, _) if !has_body(status, method) => AnswerFraming::Bodiless(None),
        ([], []) => AnswerFraming::ByClose,
        (lengths, []) => AnswerFraming::Length(common_length(lengths).unwrap()),
        ([], [coding]) if version == 1 && coding.eq_ignore_ascii_case(b"chunked") => {
            AnswerFraming::Chunked
        }
        both => panic!("framed by {both:?}"),
    };
    assert_eq!(head.framing, framing);
}

/// The most data shown after a chunk's size.
const SHOWN_BYTES: usize = 4_096;

fn compare_chunk(line: &[u8]) {
    let parsed = httparse::parse_chunk_size(line);
    let mut body = BodyReader::new(Framing::Chunked, &ChunkLimits::STANDARD);
    // Bytes after a line that both accept are not part of the line.
    let line = match parsed {
        Ok(httparse::Status::Complete((at, _))) => &line[..at],
        Ok(httparse::Status::Partial) | Err(_) => line,
    };
    let alone = body.read(line);
    match (&alone, parsed) {
        (Ok(_), Ok(httparse::Status::Complete((at, size)))) => {
            let shown = [line, &[b'x'; SHOWN_BYTES]].concat();
            let mut body = BodyReader::new(Framing::Chunked, &ChunkLimits::STANDARD);
            match body.read(&shown) {
                Ok(taken) => {
                    assert_eq!(taken.start, at);
                    assert_eq!(taken.len() as u64, size.min(SHOWN_BYTES as u64));
                }
                Err(fault) => panic!("{fault}: {}", line.escape_ascii()),
            }
        }
        (Ok(taken), Err(_)) => assert_listed(
            line,
            &[
                (
                    "a chunk's extension has any text, a quoted one too",
                    &|| line.contains(&b';'),
                ),
                ("what follows a chunk is no size", &|| !taken.is_empty()),
            ],
        ),
        (Err(_), Ok(httparse::Status::Complete(_))) => {
            let digits = line
                .iter()
                .take_while(|byte| byte.is_ascii_hexdigit())
                .count();
            assert_listed(
                line,
                &[
                    ("no size at all", &|| digits == 0),
                    (
                        "white space behind a size is cut off by some servers only",
                        &|| matches!(line.get(digits), Some(b' ' | b'\t')),
                    ),
                    ("a size above 2^48", &|| digits > 12),
                    ("a control character in an extension", &|| {
                        has_bare_line_feed(line)
                            || line
                                .iter()
                                .any(|byte| byte.is_ascii_control() && !b"\t\r\n".contains(byte))
                    }),
                ],
            );
        }
        (_, _) => {}
    }
}

/// Changes of a few bytes: the position, and the byte that replaces a byte or is inserted before it.
fn changes() -> impl Strategy<Value = Vec<(usize, u8, bool)>> {
    let byte = prop_oneof![
        prop::sample::select(&b"\r\n\t :;,/?%#HT1\x00\x0b\x0c\x7f\x80\xff"[..]),
        any::<u8>(),
    ];
    vec((0usize..400, byte, any::<bool>()), 0..4)
}

fn changed(text: &str, changes: &[(usize, u8, bool)]) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for (at, byte, instead) in changes {
        let at = at % (bytes.len() + 1);
        if *instead && at < bytes.len() {
            bytes[at] = *byte;
        } else {
            bytes.insert(at, *byte);
        }
    }
    bytes
}

/// Fields that a head depends on, and others.
const FIELDS: &str = "((Accept|X-a|Host|Connection|Content-Length|Transfer-Encoding|Expect):[ \t]{0,2}(h:80|a, b|5|0005|5, 5|chunked|close, x|\u{e9}|)[ \t]{0,2}\r\n){0,3}";

/// The fields that frame a body, often enough: one alone in a third of the heads.
const FRAMING: &str =
    "((Transfer-Encoding: (chunked|Chunked|gzip, chunked)|Content-Length: (5|5, 5|6))\r\n){0,2}";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_request_is_read_as_a_public_parser_reads_it(
        line in "(\r\n){0,3}(GET|POST|CONNECT|M-X) (/a\\?b|/|http://h:1/x|http://h\\?q|\\*|/[a-z%2/.;]{0,6}) HTTP/1\\.[0-3]\r\n(Host: h\r\n)?",
        framing in FRAMING,
        fields in FIELDS,
        end in "\r\n(GET)?",
        changes in changes(),
    ) {
        let head = format!("{line}{framing}{fields}{end}");
        compare_request(head.as_bytes());
        compare_request(&changed(&head, &changes));
    }

    #[test]
    fn an_answer_is_read_as_a_public_parser_reads_it(
        line in "(\r\n)?HTTP/1\\.(1|[0-3]) (100|101|200|204|304|404|007|999)( OK| | \u{e9}|)\r\n",
        framing in FRAMING,
        fields in FIELDS,
        end in "\r\n(HTTP)?",
        head_asked: bool,
        changes in changes(),
    ) {
        let head = format!("{line}{framing}{fields}{end}");
        let method = if head_asked { Method::HEAD } else { Method::GET };
        compare_answer(head.as_bytes(), &method);
        compare_answer(&changed(&head, &changes), &method);
    }

    #[test]
    fn a_chunks_size_is_read_as_a_public_parser_reads_it(
        line in "(0{0,3}[0-9a-fA-F]{1,4}|[0-9a-f]{0,18}|[ +x-]{0,2}1)[ \t]{0,2}(;[ -~]{0,6})?\r\n",
        changes in changes(),
    ) {
        compare_chunk(line.as_bytes());
        compare_chunk(&changed(&line, &changes));
    }
}
