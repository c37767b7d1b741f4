//! A backup: what a store holds, as lines of text.
//!
//! One JSON object a line. The first names the format and the store, then comes a line for each [`Exported`] piece, and the
//! last one counts them and bears the SHA-256 of all before it. Each line ends with `"crc32"`: the checksum of everything from
//! the first byte to here, the checksums of earlier lines left out. So a line that was changed, lost or moved is named, and a
//! file that was cut off is known by what it lacks.
//!
//! Pure but for the reader and writer that it is given; memory is bounded by the longest line. A backup holds the digests of
//! keys, never a key.

use std::io::{self, BufRead, Write};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::export::Exported;

/// The format that is written. Whoever adds anything to a line raises it. Since 2 there are audit entries that are of no key.
pub const FORMAT: u64 = 2;
/// The first format that can be read.
const FIRST_FORMAT: u64 = 1;
/// A line is a key with its trail, or a day of a key: beyond this it is none of ours.
const LINE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// What a line ends with, before its checksum of eight hexadecimal digits.
const SUM_BEGINS: &str = ",\"crc32\":\"";
/// What a line ends with, after it.
const SUM_ENDS: &str = "\"}";

/// What the first line says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The format of the lines.
    pub format: u64,
    /// When the backup was begun.
    pub made: Timestamp,
    /// The program that made it.
    pub by: String,
    /// The kind of store: `embedded` or `redis`.
    pub store: String,
    /// The zone of the quota days.
    pub zone: String,
}

/// What the last line says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    /// Keys.
    pub keys: u64,
    /// Entries of the audit trail.
    pub audit_entries: u64,
    /// Days of keys.
    pub key_days: u64,
    /// Events.
    pub events: u64,
}

impl Contents {
    /// Counts one more piece.
    pub fn count(&mut self, piece: &Exported) {
        match piece {
            Exported::Key(key) => {
                self.keys += 1;
                self.audit_entries += key.trail.len() as u64;
            }
            Exported::KeyDay(_) => self.key_days += 1,
            Exported::Event(_) => self.events += 1,
            Exported::Audit(_) => self.audit_entries += 1,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct End {
    #[serde(flatten)]
    contents: Contents,
    sha256: String,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Written<'a> {
    TouchlineBackup(&'a Header),
    End(&'a End),
    #[serde(untagged)]
    Piece(&'a Exported),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Read {
    Key(Box<super::export::ExportedKey>),
    KeyDay(Box<super::export::KeyDay>),
    Event(super::export::ExportedEvent),
    Audit(Box<crate::policy::audit::Entry>),
    End(End),
}

#[derive(Deserialize)]
struct FirstLine {
    touchline_backup: FormatOnly,
}

#[derive(Deserialize)]
struct FormatOnly {
    format: u64,
}

#[derive(Deserialize)]
struct WholeFirstLine {
    touchline_backup: Header,
}

/// Writes a backup.
pub struct Writer<W: Write> {
    out: W,
    sums: crc32fast::Hasher,
    digest: Sha256,
    contents: Contents,
}

impl<W: Write> Writer<W> {
    /// Writes the first line.
    pub fn begin(out: W, header: &Header) -> io::Result<Writer<W>> {
        let mut writer = Writer {
            out,
            sums: crc32fast::Hasher::new(),
            digest: Sha256::new(),
            contents: Contents::default(),
        };
        writer.line(&Written::TouchlineBackup(header))?;
        Ok(writer)
    }

    /// Writes one piece.
    pub fn put(&mut self, piece: &Exported) -> io::Result<()> {
        self.contents.count(piece);
        self.line(&Written::Piece(piece))
    }

    /// Writes the last line; answers what was written, and the output.
    pub fn end(mut self) -> io::Result<(Contents, W)> {
        let end = End {
            contents: self.contents.clone(),
            sha256: hex(&self.digest.clone().finalize()),
        };
        self.line(&Written::End(&end))?;
        self.out.flush()?;
        Ok((self.contents, self.out))
    }

    fn line(&mut self, content: &Written<'_>) -> io::Result<()> {
        let mut line = serde_json::to_string(content)?;
        // The brace comes again after the checksum.
        line.pop();
        self.sums.update(line.as_bytes());
        let sum = self.sums.clone().finalize();
        line.push_str(&format!("{SUM_BEGINS}{sum:08x}{SUM_ENDS}\n"));
        self.digest.update(&line);
        self.out.write_all(line.as_bytes())
    }
}

/// Why a backup cannot be read. Tells neither keys nor digests.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Fault {
    /// The line, from 1.
    pub line: u64,
    /// What is wrong, and what to do.
    pub what: String,
}

/// Reads a backup, line by line.
pub struct Reader<R: BufRead> {
    input: R,
    line: u64,
    sums: crc32fast::Hasher,
    digest: Sha256,
    header: Header,
    contents: Contents,
    ended: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads the first line.
    pub fn begin(input: R) -> Result<Reader<R>, Fault> {
        let header = Header {
            format: FORMAT,
            made: Timestamp::UNIX_EPOCH,
            by: String::new(),
            store: String::new(),
            zone: String::new(),
        };
        let mut reader = Reader {
            input,
            line: 0,
            sums: crc32fast::Hasher::new(),
            digest: Sha256::new(),
            header,
            contents: Contents::default(),
            ended: false,
        };
        let Some(line) = reader.bytes()? else {
            return Err(
                reader.fault("the file is empty; name one that touchline store backup made")
            );
        };
        // Before all else, so that a later format's own rules are not held against it.
        let format = serde_json::from_slice::<FirstLine>(&line)
            .map_err(|_| reader.fault("this is not a backup of touchline"))?
            .touchline_backup
            .format;
        if !(FIRST_FORMAT..=FORMAT).contains(&format) {
            return Err(reader.fault(format!(
                "the backup is of format {format} and this touchline reads formats {FIRST_FORMAT} to {FORMAT}: use the touchline that made it, or a \
                 later one"
            )));
        }
        let content = reader.content(&line)?;
        let first: WholeFirstLine = reader.parsed(&content)?;
        reader.header = first.touchline_backup;
        Ok(reader)
    }

    /// What the first line says.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What has been read so far.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// The next piece; `None` after the last one, when the whole file has been found to be as it was written.
    pub fn next_piece(&mut self) -> Result<Option<Exported>, Fault> {
        if self.ended {
            return Ok(None);
        }
        let digest = self.digest.clone();
        let Some(line) = self.bytes()? else {
            return Err(self.fault(
                "the last line of a backup is missing: it was cut off here. Use another copy of it; no part of this one is restored",
            ));
        };
        let content = self.content(&line)?;
        let piece = match self.parsed::<Read>(&content)? {
            Read::Key(key) => Exported::Key(key),
            Read::KeyDay(day) => Exported::KeyDay(day),
            Read::Event(event) => Exported::Event(event),
            Read::Audit(entry) => Exported::Audit(entry),
            Read::End(end) => {
                self.finish(&end, &hex(&digest.finalize()))?;
                return Ok(None);
            }
        };
        self.contents.count(&piece);
        Ok(Some(piece))
    }

    fn finish(&mut self, end: &End, sha256: &str) -> Result<(), Fault> {
        if end.sha256 != sha256 || end.contents != self.contents {
            return Err(self.fault("the preceding lines do not match its digest and counts"));
        }
        self.ended = true;
        match self.bytes()? {
            None => Ok(()),
            Some(_) => Err(self.fault("there is text after the last line of the backup")),
        }
    }

    /// The next line without its end; `None` where the file ends.
    fn bytes(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        let mut line = Vec::new();
        let read = io::Read::take(&mut self.input, LINE_BYTES_MAX).read_until(b'\n', &mut line);
        self.line += 1;
        read.map_err(|error| self.fault(format!("the file cannot be read: {error}")))?;
        if line.is_empty() {
            return Ok(None);
        }
        self.digest.update(&line);
        if line.pop() != Some(b'\n') {
            return Err(self.fault(
                "the file ends in the middle of this line: it was cut off. Use another copy of it; no part of this one is restored",
            ));
        }
        Ok(Some(line))
    }

    /// The JSON text of a line, whose checksum is right.
    fn content(&mut self, line: &[u8]) -> Result<String, Fault> {
        let damaged = "its checksum is wrong: the file is damaged. Use another copy of it; no part of this one is restored";
        let split = std::str::from_utf8(line).ok().and_then(|text| {
            let rest = text.strip_suffix(SUM_ENDS)?;
            let (content, sum) = rest.split_at_checked(rest.len().checked_sub(8)?)?;
            Some((content.strip_suffix(SUM_BEGINS)?, sum))
        });
        let (content, sum) = split.ok_or_else(|| self.fault(damaged))?;
        self.sums.update(content.as_bytes());
        if format!("{:08x}", self.sums.clone().finalize()) != sum {
            return Err(self.fault(damaged));
        }
        Ok(format!("{content}}}"))
    }

    fn parsed<T: serde::de::DeserializeOwned>(&self, content: &str) -> Result<T, Fault> {
        serde_json::from_str(content).map_err(|error| {
            let (kind, column) = (error.classify(), error.column());
            self.fault(format!(
                "it cannot be read ({kind:?} error at column {column}): its checksum is right, but it is not of this format"
            ))
        })
    }

    fn fault(&self, what: impl Into<String>) -> Fault {
        Fault {
            line: self.line,
            what: what.into(),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
