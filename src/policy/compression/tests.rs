//! Tables of requests and answers.

use http::header::CONTENT_LENGTH;

use super::*;

const BOTH: &[Coding] = &[Coding::Zstd, Coding::Gzip];

fn rules(codings: &[Coding]) -> Compression {
    Compression {
        codings: codings.to_vec(),
        bytes_min: 1_024,
    }
}

fn fields(pairs: &[(&'static str, &str)]) -> FieldList {
    let mut fields = FieldList::default();
    for (name, value) in pairs {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        fields.append(HeaderName::from_static(name), value);
    }
    fields
}

/// The length of an answer's body, if known, and the other fields.
fn parts(answer: &[(&'static str, &str)]) -> (Option<u64>, FieldList) {
    let mut fields = fields(answer);
    let length = fields
        .first(&CONTENT_LENGTH)
        .and_then(crate::policy::http1::length);
    fields.remove(&CONTENT_LENGTH);
    (length, fields)
}

/// The verdict on a long JSON answer to a client that accepts these codings.
fn chosen(codings: &[Coding], accepted: &[&'static str]) -> BodyCoding {
    let asked: Vec<_> = accepted
        .iter()
        .map(|one| ("accept-encoding", *one))
        .collect();
    let answer = fields(&[("content-type", "application/json")]);
    rules(codings).verdict(&fields(&asked), StatusCode::OK, None, &answer)
}

/// The verdict on an answer to a client that accepts everything.
fn verdict(status: u16, answer: &[(&'static str, &str)]) -> BodyCoding {
    let asked = fields(&[("accept-encoding", "*")]);
    let status = StatusCode::from_u16(status).unwrap();
    let (length, answer) = parts(answer);
    rules(BOTH).verdict(&asked, status, length, &answer)
}

/// The header of an answer after the verdict on it.
fn marked(
    asked: &[(&'static str, &str)],
    status: u16,
    answer: &[(&'static str, &str)],
) -> Vec<(String, String)> {
    let (asked, (length, mut answer)) = (fields(asked), parts(answer));
    let status = StatusCode::from_u16(status).unwrap();
    let verdict = rules(BOTH).verdict(&asked, status, length, &answer);
    verdict.mark(&asked, status, &mut answer);
    if let (Some(bytes), BodyCoding::Plain | BodyCoding::Untouched) = (length, verdict) {
        answer.append(CONTENT_LENGTH, bytes.into());
    }
    let shown = answer.iter().map(|field| {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (text(field.name), text(field.value))
    });
    let mut shown: Vec<_> = shown.collect();
    shown.sort();
    shown
}

#[test]
fn the_coding_is_the_one_that_the_client_likes_best_and_of_equals_our_first() {
    let (gzip, zstd) = (
        BodyCoding::Coded(Coding::Gzip),
        BodyCoding::Coded(Coding::Zstd),
    );
    for (accepted, expected) in [
        (&["gzip"][..], gzip),
        (&["GZip"], gzip),
        (&["x-gzip"], gzip),
        (&["gzip, zstd"], zstd),
        (&["gzip", "zstd"], zstd),
        (&["gzip, deflate, br"], gzip),
        (&["gzip;q=1, zstd;q=0.999"], gzip),
        (&["gzip;q=0.5,zstd;q=0.5"], zstd),
        (&["gzip ; q=0.5 , zstd ; Q=0.501"], zstd),
        (&["gzip;q=0.001"], gzip),
        (&["*"], zstd),
        (&["*;q=0.5, gzip"], gzip),
        (&["zstd;q=0, *"], gzip),
        (&["identity;q=0, gzip;q=0.1"], gzip),
        (&["identity;q=0.5, gzip;q=0.5"], gzip),
        (&["identity, gzip"], gzip),
        (&["gzip, *;q=0"], gzip),
        (&[",, gzip ,"], gzip),
        (&["gzip;q=1.000"], gzip),
        (&["gzip;q=1."], gzip),
    ] {
        assert_eq!(chosen(BOTH, accepted), expected, "{accepted:?}");
    }
    assert_eq!(chosen(&[Coding::Gzip, Coding::Zstd], &["zstd, gzip"]), gzip);
    assert_eq!(chosen(&[Coding::Gzip], &["zstd, gzip;q=0.1"]), gzip);
}

#[test]
fn a_client_that_asks_for_no_coding_of_ours_gets_none() {
    for accepted in [
        &[][..],
        &[""],
        &["identity"],
        &["br"],
        &["gzip;q=0"],
        &["gzip;q=0.0, zstd;q=0.000"],
        &["*;q=0"],
        &["*;q=0, identity;q=0"],
        &["identity;q=1, gzip;q=0.5"],
        &["gzip;q=0.5, zstd;q=0, *"],
        // Invalid members are ignored.
        &["gzip;q=2"],
        &["gzip;q=1.001"],
        &["gzip;q=0.1234"],
        &["gzip;q=-1"],
        &["gzip;q="],
        &["gzip;q=.5"],
        &["gzip;q=0,5"],
        &["gzip;q=a"],
        &["gzip;level=9"],
        &["gzip;q=1;q=1"],
        &["gzip zstd"],
        &["\"gzip\""],
        &["gzip\u{e9}"],
    ] {
        assert_eq!(chosen(BOTH, accepted), BodyCoding::Plain, "{accepted:?}");
    }
    assert_eq!(chosen(&[Coding::Gzip], &["zstd"]), BodyCoding::Plain);
}

#[test]
fn a_client_that_forbids_change_gets_the_answer_as_it_is() {
    let asked = fields(&[
        ("accept-encoding", "gzip"),
        ("cache-control", "no-transform"),
    ]);
    let answer = fields(&[("content-type", "text/plain")]);
    let verdict = rules(BOTH).verdict(&asked, StatusCode::OK, None, &answer);
    assert_eq!(verdict, BodyCoding::Plain);
}

#[test]
fn types_that_become_smaller_are_compressed_and_no_others() {
    for kind in [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/problem+json",
        "application/vnd.api+json;v=1",
        "application/atom+xml",
        "application/xml",
        "application/javascript",
        "application/x-ndjson",
        "application/csv",
        "application/openapi+yaml",
        "text/csv",
        "text/html",
        "text/event-stream",
        "TEXT/plain",
        "image/svg+xml",
    ] {
        let verdict = verdict(200, &[("content-type", kind)]);
        assert_eq!(verdict, BodyCoding::Coded(Coding::Zstd), "{kind}");
    }
    for kind in [
        "",
        "json",
        "application",
        "application/",
        "/json",
        "application/octet-stream",
        "application/zip",
        "application/grpc",
        "application/pdf",
        "application/jsonx",
        "application/json+zip",
        "image/png",
        "image/json",
        "video/mp4",
        "multipart/byteranges",
    ] {
        let verdict = verdict(200, &[("content-type", kind)]);
        assert_eq!(verdict, BodyCoding::Untouched, "{kind}");
    }
    assert_eq!(verdict(200, &[]), BodyCoding::Untouched);
}

#[test]
fn what_is_short_coded_sealed_partial_or_forbidden_goes_as_it_is() {
    let json = ("content-type", "application/json");
    for field in [
        ("content-length", "0"),
        ("content-length", "1023"),
        ("content-encoding", "gzip"),
        ("content-encoding", "identity, br"),
        ("content-encoding", "made-up"),
        ("content-range", "bytes 0-1023/2048"),
        ("cache-control", "max-age=60, No-Transform"),
        ("cache-control", "ext=\"never ends"),
        ("content-digest", "sha-256=:AA==:"),
        ("repr-digest", "sha-256=:AA==:"),
        ("digest", "sha-256=AA=="),
        ("content-md5", "AA=="),
        ("signature", "sig=:AA==:"),
    ] {
        assert_eq!(
            verdict(200, &[json, field]),
            BodyCoding::Untouched,
            "{field:?}"
        );
    }
    for field in [
        ("content-length", "1024"),
        ("content-encoding", "identity"),
        ("content-encoding", ""),
        ("cache-control", "ext=\"no-transform\", max-age=60"),
        ("etag", "\"e\""),
    ] {
        let verdict = verdict(200, &[json, field]);
        assert_eq!(verdict, BodyCoding::Coded(Coding::Zstd), "{field:?}");
    }
    for status in [100, 103, 204, 205, 206] {
        assert_eq!(verdict(status, &[json]), BodyCoding::Untouched, "{status}");
    }
    for status in [200, 201, 202, 203, 300, 404, 409, 422, 451] {
        let verdict = verdict(status, &[json]);
        assert_eq!(verdict, BodyCoding::Coded(Coding::Zstd), "{status}");
    }
}

#[test]
fn the_header_states_what_was_done_and_what_it_depends_on() {
    let asked = ("accept-encoding", "gzip");
    let whole = [
        ("content-type", "text/csv"),
        ("content-length", "5000"),
        ("content-encoding", "identity"),
        ("accept-ranges", "bytes"),
        ("etag", "\"a\""),
        ("vary", "Accept"),
        ("vary", "X-API-Key"),
    ];
    let own = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect()
    };
    let coded = own(&[
        ("content-encoding", "gzip"),
        ("content-type", "text/csv"),
        ("etag", "W/\"a\""),
        ("vary", "Accept, X-API-Key, accept-encoding"),
    ]);
    assert_eq!(marked(&[asked], 200, &whole), coded);
    let plain = own(&[
        ("accept-ranges", "bytes"),
        ("content-encoding", "identity"),
        ("content-length", "5000"),
        ("content-type", "text/csv"),
        ("etag", "\"a\""),
        ("vary", "Accept, X-API-Key, accept-encoding"),
    ]);
    assert_eq!(marked(&[], 200, &whole), plain);
    let short = [("content-length", "5"), ("content-type", "text/csv")];
    assert_eq!(marked(&[asked], 200, &short), own(&short));
}

#[test]
fn vary_is_added_once_and_everything_stays_everything() {
    for (values, expected) in [
        (&[][..], "accept-encoding"),
        (&["*"], "*"),
        (&["accept-encoding"], "accept-encoding"),
        (&["Accept, ACCEPT-ENCODING"], "Accept, ACCEPT-ENCODING"),
        (&["Accept"], "Accept, accept-encoding"),
        (&["Accept-Encoding-2"], "Accept-Encoding-2, accept-encoding"),
    ] {
        let values: Vec<_> = values.iter().map(|one| ("vary", *one)).collect();
        let mut fields = fields(&values);
        vary(&mut fields);
        vary(&mut fields);
        let all: Vec<_> = fields.all(&VARY).collect();
        assert_eq!(all, [expected.as_bytes()]);
    }
}

#[test]
fn a_strong_tag_becomes_weak_a_weak_one_stays_and_what_is_none_goes() {
    for (tag, expected) in [
        ("\"a\"", Some("W/\"a\"")),
        ("W/\"a\"", Some("W/\"a\"")),
        ("\"\"", Some("W/\"\"")),
        ("a", None),
    ] {
        let mut fields = fields(&[("etag", tag)]);
        weaken(&mut fields);
        assert_eq!(fields.first(&ETAG), expected.map(str::as_bytes));
    }
}

#[test]
fn a_304_calls_the_answer_as_the_client_has_it() {
    for (held, tag, expected) in [
        ("W/\"a\"", "\"a\"", "W/\"a\""),
        ("\"b\", W/\"a\"", "\"a\"", "W/\"a\""),
        ("\"a\"", "\"a\"", "\"a\""),
        ("W/\"ab\"", "\"a\"", "\"a\""),
        ("*", "\"a\"", "\"a\""),
        ("W/\"a\"", "W/\"a\"", "W/\"a\""),
    ] {
        let headers = marked(&[("if-none-match", held)], 304, &[("etag", tag)]);
        let expected = [("etag", expected), ("vary", "accept-encoding")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(headers, expected, "{held}");
    }
}
