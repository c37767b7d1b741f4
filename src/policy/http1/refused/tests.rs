use super::*;

#[test]
fn method_and_path_of_a_refused_head_are_read_as_far_as_possible() {
    assert_eq!(
        method_and_path(b"\r\nGET /a?b#c HTTP/1.1\r\n"),
        ("GET".into(), "/a".into())
    );
    assert_eq!(
        method_and_path(b"GET http://u@h/a?b HTTP/1.1\r\n"),
        ("GET".into(), "/a".into())
    );
    assert_eq!(
        method_and_path(b"\x16\x03"),
        ("\u{16}\u{3}".into(), String::new())
    );
    assert_eq!(method_and_path(b""), (String::new(), String::new()));
}

#[test]
fn the_request_id_of_a_refused_head_is_found_where_its_line_is_whole() {
    let found = |head: &str| request_id(head.as_bytes()).map(|id| id.to_vec());
    let one = |id: &str| Some(id.as_bytes().to_vec());
    assert_eq!(
        found("GET / HTTP/1.1\r\nHost: h\r\nx-ReQuest-ID: \t a-1 \r\n\r\n"),
        one("a-1")
    );
    assert_eq!(
        found("GET /\nX-Request-Id:a-1\nX-Request-Id: b\n"),
        one("a-1")
    );
    assert_eq!(
        found("\r\nGET / HTTP/1.1\r\nX-Request-Id: a\r\n folded: x\r\n"),
        one("a")
    );
    for none in [
        "",
        "X-Request-Id: a",
        "X-Request-Id: a\r\n",
        "GET / HTTP/1.1\r\nX-Request-Id: cut",
        "GET / HTTP/1.1\r\nX-Request-Id : a\r\n",
        "GET / HTTP/1.1\r\nX-Request-Ids: a\r\n",
        "GET / HTTP/1.1\r\n\r\nX-Request-Id: body\r\n",
    ] {
        assert_eq!(found(none), None, "{none:?}");
    }
}
