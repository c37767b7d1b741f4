//! A backup: the exported content of a store as lines of text.
//!
//! Each line is a JSON object. The first names the format and the store, each following line is an [`Exported`] item, and the last one
//! has their numbers and the SHA-256 of all lines before it. Each line ends with `"crc32"`: the checksum of everything from the first
//! byte to here, without the checksums of earlier lines. So an error names the line that was changed, lost or moved, and a file that
//! was cut off is recognized by its missing last line.
//!
//! Pure except for the reader and writer passed in. Memory is bounded by the longest line. A backup has the digests of keys, never a
//! key.

use std::io::{self, BufRead, Write};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::export::Exported;

/// The format of written backups. Raise it with every addition to a line. Since 2 there are audit entries that belong to no key, since 3
/// ended secrets of keys.
pub const FORMAT: u64 = 3;
/// The oldest format that can be read.
const FIRST_FORMAT: u64 = 1;
/// The longest line in bytes, with its end. A line is a key with its trail, a day of a key, an event or an entry of the audit trail, all
/// far shorter.
const LINE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// The text before a line's checksum of eight hexadecimal digits.
const SUM_BEGINS: &str = ",\"crc32\":\"";
/// The text after a line's checksum.
const SUM_ENDS: &str = "\"}";
/// The text with which the last line begins, and no other.
const LAST_BEGINS: &str = "{\"end\":";

/// The content of the first line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The format of the lines.
    pub format: u64,
    /// When the backup was started.
    pub made: Timestamp,
    /// The program that made it.
    pub by: String,
    /// The kind of store: `embedded` or `redis`.
    pub store: String,
    /// The zone of the quota days.
    pub zone: String,
}

/// The numbers of items, as the last line has them.
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
    /// Counts one more item.
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
enum WrittenLine<'a> {
    TouchlineBackup(&'a Header),
    End(&'a End),
    #[serde(untagged)]
    Piece(&'a Exported),
}

#[derive(Deserialize)]
struct LastLine {
    end: End,
}

#[derive(Deserialize)]
struct FirstLine {
    touchline_backup: Header,
}

/// Writes a backup.
pub struct BackupWriter<W: Write> {
    out: W,
    sums: crc32fast::Hasher,
    digest: Sha256,
    contents: Contents,
}

impl<W: Write> BackupWriter<W> {
    /// Writes the first line.
    pub fn begin(out: W, header: &Header) -> io::Result<BackupWriter<W>> {
        let mut writer = BackupWriter {
            out,
            sums: crc32fast::Hasher::new(),
            digest: Sha256::new(),
            contents: Contents::default(),
        };
        writer.line(&WrittenLine::TouchlineBackup(header))?;
        Ok(writer)
    }

    /// Writes one item.
    pub fn put(&mut self, piece: &Exported) -> io::Result<()> {
        self.contents.count(piece);
        self.line(&WrittenLine::Piece(piece))
    }

    /// Writes the last line; returns the numbers of written items, and the output.
    pub fn end(mut self) -> io::Result<(Contents, W)> {
        let end = End {
            contents: self.contents.clone(),
            sha256: format!("{:x}", self.digest.clone().finalize()),
        };
        self.line(&WrittenLine::End(&end))?;
        self.out.flush()?;
        Ok((self.contents, self.out))
    }

    fn line(&mut self, content: &WrittenLine<'_>) -> io::Result<()> {
        let mut line = serde_json::to_string(content)?;
        // The brace is written after the checksum.
        line.pop();
        self.sums.update(line.as_bytes());
        let sum = self.sums.clone().finalize();
        line.push_str(&format!("{SUM_BEGINS}{sum:08x}{SUM_ENDS}\n"));
        self.digest.update(&line);
        self.out.write_all(line.as_bytes())
    }
}

/// The reason why a backup cannot be read, without keys and digests.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct BackupFault {
    /// The line, from 1.
    pub line: u64,
    /// The problem and its remedy.
    pub what: String,
}

/// Reads a backup, line by line.
pub struct BackupReader<R: BufRead> {
    input: R,
    line: u64,
    sums: crc32fast::Hasher,
    digest: Sha256,
    header: Header,
    contents: Contents,
    ended: bool,
}

impl<R: BufRead> BackupReader<R> {
    /// Reads the first line.
    pub fn begin(input: R) -> Result<BackupReader<R>, BackupFault> {
        let mut reader = BackupReader {
            input,
            line: 0,
            sums: crc32fast::Hasher::new(),
            digest: Sha256::new(),
            header: Header::default(),
            contents: Contents::default(),
            ended: false,
        };
        let Some(line) = reader.bytes()? else {
            return Err(
                reader.fault("the file is empty; name one that touchline store backup made")
            );
        };
        // The format is checked first: a later format may have other rules.
        let first: Option<serde_json::Value> = serde_json::from_slice(&line).ok();
        let format = first.and_then(|line| line.pointer("/touchline_backup/format")?.as_u64());
        let format = format.ok_or_else(|| reader.fault("this is not a backup of touchline"))?;
        if !(FIRST_FORMAT..=FORMAT).contains(&format) {
            return Err(reader.fault(format!(
                "the backup is of format {format} and this touchline reads formats {FIRST_FORMAT} to {FORMAT}: use the touchline that made it, or a \
                 later one"
            )));
        }
        let content = reader.content(&line)?;
        let first: FirstLine = reader.parsed(&content)?;
        reader.header = first.touchline_backup;
        Ok(reader)
    }

    /// The content of the first line.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The numbers of items read so far.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// The next item; `None` after the last one, when the whole file has passed its checks.
    pub fn next_piece(&mut self) -> Result<Option<Exported>, BackupFault> {
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
        if content.starts_with(LAST_BEGINS) {
            let LastLine { end } = self.parsed(&content)?;
            self.finish(&end, &format!("{:x}", digest.finalize()))?;
            return Ok(None);
        }
        let piece: Exported = self.parsed(&content)?;
        self.contents.count(&piece);
        Ok(Some(piece))
    }

    fn finish(&mut self, end: &End, sha256: &str) -> Result<(), BackupFault> {
        if end.sha256 != sha256 || end.contents != self.contents {
            return Err(self.fault("the preceding lines do not match its digest and counts"));
        }
        self.ended = true;
        match self.bytes()? {
            None => Ok(()),
            Some(_) => Err(self.fault("there is text after the last line of the backup")),
        }
    }

    /// The next line without its end; `None` at the end of the file.
    fn bytes(&mut self) -> Result<Option<Vec<u8>>, BackupFault> {
        let mut line = Vec::new();
        let read = io::Read::take(&mut self.input, LINE_BYTES_MAX).read_until(b'\n', &mut line);
        self.line += 1;
        read.map_err(|error| self.fault(format!("the file cannot be read: {error}")))?;
        if line.is_empty() {
            return Ok(None);
        }
        if line.len() as u64 == LINE_BYTES_MAX && line.last() != Some(&b'\n') {
            return Err(self.fault(format!(
                "this line is longer than {LINE_BYTES_MAX} bytes: the file is not a backup"
            )));
        }
        self.digest.update(&line);
        if line.pop() != Some(b'\n') {
            return Err(self.fault(
                "the file ends in the middle of this line: it was cut off. Use another copy of it; no part of this one is restored",
            ));
        }
        Ok(Some(line))
    }

    /// The JSON text of a line after the check of its checksum.
    fn content(&mut self, line: &[u8]) -> Result<String, BackupFault> {
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

    fn parsed<T: serde::de::DeserializeOwned>(&self, content: &str) -> Result<T, BackupFault> {
        serde_json::from_str(content).map_err(|error| {
            let (kind, column) = (error.classify(), error.column());
            self.fault(format!(
                "it cannot be read ({kind:?} error at column {column}): its checksum is right, but it is not of this format"
            ))
        })
    }

    fn fault(&self, what: impl Into<String>) -> BackupFault {
        BackupFault {
            line: self.line,
            what: what.into(),
        }
    }
}

#[cfg(test)]
mod tests;
