use super::*;
use crate::policy::audit::{Author, Entry};
use crate::policy::key_record::tests::key_of;
use crate::store::export::{ExportedEvent, ExportedKey, KeyDay, LateUnits, ProducerAccount, Sheet};

fn header() -> Header {
    Header {
        format: FORMAT,
        made: Timestamp::UNIX_EPOCH,
        by: "touchline 0".into(),
        store: "embedded".into(),
        zone: "UTC".into(),
    }
}

fn pieces() -> Vec<Exported> {
    let (_, record) = key_of("pro");
    let key = record.id;
    let trail = vec![Entry::of(&record)];
    let day = KeyDay {
        key,
        date: "2026-11-21".parse().unwrap(),
        start: 0,
        end: 86_400,
        accounts: vec![ProducerAccount {
            producer: "a.0".into(),
            granted: u64::MAX,
            returned: 1,
        }],
        sheets: vec![Sheet {
            producer: "a.1".into(),
            tier: Some("pro".parse().unwrap()),
            endpoint: "/a".into(),
            numbers: vec![1, 2],
            limit: 3,
            granted: 0,
        }],
        late: vec![LateUnits {
            came: 900,
            units: -1,
        }],
    };
    let event = ExportedEvent {
        id: "e".into(),
        claim: None,
        waiting: None,
    };
    let author = Author {
        who: "ann".into(),
        reason: None,
    };
    let epoch = Timestamp::UNIX_EPOCH;
    let forgotten = Entry::of_forgotten("web-1-7", epoch, epoch, &author);
    vec![
        Exported::Key(Box::new(ExportedKey { record, trail })),
        Exported::KeyDay(Box::new(day)),
        Exported::Event(event),
        Exported::Audit(Box::new(forgotten)),
    ]
}

fn written() -> String {
    let mut writer = BackupWriter::begin(Vec::new(), &header()).unwrap();
    for piece in pieces() {
        writer.put(&piece).unwrap();
    }
    let (contents, out) = writer.end().unwrap();
    assert_eq!((contents.keys, contents.audit_entries), (1, 2));
    String::from_utf8(out).unwrap()
}

fn read(text: &str) -> Result<Vec<Exported>, BackupFault> {
    let mut reader = BackupReader::begin(text.as_bytes())?;
    assert_eq!(reader.header().zone, "UTC");
    let mut pieces = Vec::new();
    while let Some(piece) = reader.next_piece()? {
        pieces.push(piece);
    }
    assert!(reader.next_piece()?.is_none());
    Ok(pieces)
}

#[test]
fn what_is_written_is_read_again_and_every_line_is_json() {
    let text = written();
    let output = read(&text).unwrap();
    // The record of a test has a digest of its own each time.
    assert_eq!(output[2..], pieces()[2..]);
    assert_eq!(output.len(), 4);
    for line in text.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
    assert_eq!(text.lines().count(), 6);
}

#[test]
fn a_backup_that_was_cut_off_anywhere_is_refused_and_the_line_named() {
    let text = written();
    for end in 0..text.len() {
        let fault = read(&text[..end]).unwrap_err();
        let whole = text[..end].matches('\n').count() as u64;
        assert_eq!(fault.line, whole + 1, "{fault} after {end} bytes");
    }
}

#[test]
fn a_changed_byte_a_lost_line_and_a_line_in_another_place_are_named() {
    let text = written();
    let lines: Vec<&str> = text.lines().collect();
    for line in 1..=lines.len() {
        let mut changed: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        let middle = changed[line - 1].len() / 2;
        let old = changed[line - 1].as_bytes()[middle];
        let new = if old == b'1' { "2" } else { "1" };
        changed[line - 1].replace_range(middle..=middle, new);
        let fault = read(&(changed.join("\n") + "\n")).unwrap_err();
        assert_eq!(fault.line, line as u64, "{fault}");
    }
    for lost in 1..lines.len() {
        let mut fewer = lines.clone();
        fewer.remove(lost);
        let fault = read(&(fewer.join("\n") + "\n")).unwrap_err();
        assert_eq!(fault.line, lost as u64 + 1, "{fault}");
    }
    let swapped = [lines[0], lines[2], lines[1], lines[3], lines[4], lines[5]].join("\n") + "\n";
    assert_eq!(read(&swapped).unwrap_err().line, 2);
    assert_eq!(read(&(text.clone() + "\n")).unwrap_err().line, 7);
}

#[test]
fn another_format_and_another_file_are_reported_as_what_they_are() {
    let later = written().replacen("\"format\":3", "\"format\":4", 1);
    let fault = read(&later).unwrap_err();
    assert!(fault.to_string().contains("format 4"), "{fault}");
    for other in ["{}\n", "id,key\n", "SQLite format 3\0"] {
        let fault = read(other).unwrap_err();
        assert_eq!(fault.line, 1, "{fault}");
    }
}

#[test]
fn a_line_without_end_is_not_read_to_its_end_and_not_reported_as_cut_off() {
    let endless = io::BufReader::new(io::repeat(b'x'));
    let fault = BackupReader::begin(endless).map(drop).unwrap_err();
    assert_eq!(fault.line, 1);
    assert!(fault.to_string().contains("is longer than"), "{fault}");
}
