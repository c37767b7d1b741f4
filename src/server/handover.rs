//! An upgrade without a gap: a gateway that runs hands its listening sockets to its successor.
//!
//! The running gateway listens on a Unix socket (`listen.upgrade`). `touchline serve --upgrade` reads and checks its own
//! configuration first, asks there for the listening sockets, opens the store, begins to accept on the same sockets, and only
//! then says that it is ready; the old gateway goes on until it hears that, then takes nothing new and ends with what it has
//! in flight. A successor that fails on the way leaves it as it was. A socket is never closed and opened again: a connection
//! that waits to be accepted is accepted by whoever is there.
//!
//! Whoever may open the Unix socket may take the listeners: it is its owner's alone.

use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::sync::Notify;

/// The listeners of a gateway: HTTP, HTTPS, redirect, admin.
const LISTENERS_MAX: usize = 4;
/// Their names and addresses take far less.
const LIST_BYTES_MAX: usize = 4 * 1024;
/// For each step of a conversation with the old gateway.
const STEP: Duration = Duration::from_secs(5);
/// How long the old gateway waits for a successor that opens its store.
const SUCCESSOR_PATIENCE: Duration = Duration::from_secs(60);
/// What a successor says when it accepts connections.
const READY: u8 = b'R';

/// A listening socket as it is handed over.
#[derive(Debug)]
pub struct Handed {
    /// Which listener, and the address that its configuration names.
    pub label: Label,
    /// The socket.
    pub listener: TcpListener,
}

/// What tells listening sockets apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// Its path in the configuration.
    pub path: String,
    /// The address there, which may have port 0.
    pub configured: SocketAddr,
}

/// A gateway that goes on until its successor is ready.
#[derive(Debug)]
pub struct Predecessor(UnixStream);

impl Predecessor {
    /// Asks the gateway behind the Unix socket for its listeners.
    ///
    /// # Errors
    /// Where nobody answers there.
    pub fn ask(path: &Path) -> io::Result<(Predecessor, Vec<Handed>)> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(STEP))?;
        stream.set_write_timeout(Some(STEP))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LISTENERS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut first = [0; LIST_BYTES_MAX];
        let mut parts = [IoSliceMut::new(&mut first)];
        let received = recvmsg(&stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let sockets: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
                _ => None,
            })
            .flatten()
            .collect();
        let mut list = first.get(..received.bytes).unwrap_or_default().to_vec();
        if !list.ends_with(b"\n") {
            BufReader::new(&stream).read_until(b'\n', &mut list)?;
        }
        let labels: Vec<Label> = serde_json::from_slice(&list)?;
        if labels.len() != sockets.len() {
            return Err(io::Error::other("fewer sockets came than were announced"));
        }
        let handed = labels.into_iter().zip(sockets);
        let handed = handed.map(|(label, socket)| Handed {
            label,
            listener: TcpListener::from(socket),
        });
        let handed = handed.collect();
        Ok((Predecessor(stream), handed))
    }

    /// Tells the old gateway that connections are accepted, so that it ends.
    ///
    /// # Errors
    /// Where it has ended already.
    pub fn take_over(mut self) -> io::Result<()> {
        self.0.write_all(&[READY])
    }
}

/// The offer of a running gateway to its successor. Dropping it gives its copies of the sockets up.
pub struct Offer {
    socket: tokio::net::UnixListener,
    handed: Vec<Handed>,
}

impl Offer {
    /// Offers `handed` at `path`, in the place of whatever offer was there.
    ///
    /// # Errors
    /// Where the place cannot be written. Needs a tokio runtime.
    pub fn make(path: &Path, handed: Vec<Handed>) -> io::Result<Offer> {
        // Bound beside its place and moved there, closed to others before anybody can find it.
        let beside = PathBuf::from(format!("{}.{}", path.display(), std::process::id()));
        let _ = std::fs::remove_file(&beside);
        let socket = UnixListener::bind(&beside)?;
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&beside, path)?;
        socket.set_nonblocking(true)?;
        Ok(Offer {
            socket: tokio::net::UnixListener::from_std(socket)?,
            handed,
        })
    }

    /// Serves successors until one is ready; then wakes `succeeded`.
    pub async fn serve(self, succeeded: Arc<Notify>) {
        loop {
            let Ok((successor, _)) = self.socket.accept().await else {
                tokio::time::sleep(STEP).await;
                continue;
            };
            tracing::info!("a successor asks for the listeners");
            match self.hand_to(successor).await {
                Ok(()) => return succeeded.notify_one(),
                Err(error) => tracing::warn!(%error, "the successor is gone: going on as before"),
            }
        }
    }

    async fn hand_to(&self, mut successor: tokio::net::UnixStream) -> io::Result<()> {
        let labels: Vec<&Label> = self.handed.iter().map(|one| &one.label).collect();
        let mut list = serde_json::to_vec(&labels)?;
        list.push(b'\n');
        let sockets: Vec<_> = self.handed.iter().map(|one| one.listener.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LISTENERS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&sockets));
        // A few hundred bytes into an empty buffer never wait.
        let sent = sendmsg(
            &successor,
            &[IoSlice::new(&list)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        if sent < list.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let answer = tokio::time::timeout(SUCCESSOR_PATIENCE, successor.read_u8());
        match answer.await {
            Ok(Ok(READY)) => Ok(()),
            Ok(Ok(_)) => Err(io::ErrorKind::InvalidData.into()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}
