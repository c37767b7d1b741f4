//! Reading a proxy's header before a connection's first byte, without reading beyond it.

use std::io;
use std::net::SocketAddr;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::policy::proxy_header::{
    self, ANNOUNCEMENT_BYTES, HeaderVersion, LINE_BYTES_MAX, NoHeader, START_BYTES,
};

/// The client named by a PROXY protocol header; `None` if the proxy connects for itself.
///
/// # Errors
/// If the connection begins with anything else, or ends.
pub async fn client_of(socket: &mut TcpStream) -> io::Result<Option<SocketAddr>> {
    let invalid = |error: NoHeader| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut start = [0; START_BYTES];
    socket.read_exact(&mut start).await?;
    match proxy_header::version(&start).map_err(invalid)? {
        HeaderVersion::One => {
            let mut line = start.to_vec();
            read_line(socket, &mut line).await?;
            proxy_header::of_line(&line).map_err(invalid)
        }
        HeaderVersion::Two => {
            let mut announcement = [0; ANNOUNCEMENT_BYTES];
            socket.read_exact(&mut announcement).await?;
            let (kind, bytes) = proxy_header::announced(announcement).map_err(invalid)?;
            let mut rest = vec![0; bytes];
            socket.read_exact(&mut rest).await?;
            proxy_header::of_rest(kind, &rest).map_err(invalid)
        }
    }
}

/// Reads to the end of a line: peeks at the received bytes and takes only those of the line.
async fn read_line(socket: &mut TcpStream, line: &mut Vec<u8>) -> io::Result<()> {
    let mut ahead = [0; LINE_BYTES_MAX];
    while line.len() < LINE_BYTES_MAX {
        let room = ahead.get_mut(line.len()..).unwrap_or_default();
        let there = socket.peek(room).await?;
        let there = room.get(..there).unwrap_or_default();
        if there.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let end = there.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(there.len(), |end| end + 1);
        let before = line.len();
        line.resize(before + taken, 0);
        socket
            .read_exact(line.get_mut(before..).unwrap_or_default())
            .await?;
        if end.is_some() {
            return Ok(());
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, NoHeader))
}
