//! An upgrade without a gap: a gateway that runs hands its listening sockets to its successor.
//!
//! The running gateway listens on a Unix socket (`listen.upgrade`). `touchline serve --upgrade` reads and checks its own
//! configuration first, asks there for the listening sockets, opens the store, begins to accept on the same sockets, and only
//! then says that it is ready; the old gateway goes on until it hears that, then takes nothing new and ends with what it has
//! in flight. A successor that fails on the way leaves it as it was. A socket is never closed and opened again: a connection
//! that waits to be accepted is accepted by whoever is there.
//!
//! Invariant: a gateway that knows the keys is not succeeded by one that does not.
//!
//! Whoever may open the Unix socket may take the listeners: it is its owner's alone.

use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
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
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

/// The listeners of a gateway: HTTP, HTTPS, redirect, admin.
const LISTENERS_MAX: usize = 4;
/// Their names and addresses take far less.
const LIST_BYTES_MAX: usize = 4 * 1024;
/// For each step of a conversation with the old gateway.
const STEP: Duration = Duration::from_secs(5);
/// How long the old gateway waits for a successor that opens its store, and again for one that gets its key table.
const SUCCESSOR_PATIENCE: Duration = Duration::from_secs(60);
/// How long a successor waits for its key table: longer than Redis takes for a failover.
const KEYS_PATIENCE: Duration = Duration::from_secs(15);
/// How often it looks.
const KEYS_LOOK: Duration = Duration::from_millis(50);
/// What a successor says when it accepts connections.
const READY: u8 = b'R';
/// What a successor says that has no usable key table: has the old gateway?
const KNOWS_KEYS: u8 = b'K';
/// The two answers.
const YES: u8 = b'Y';
const NO: u8 = b'N';

/// Whether a gateway can serve by its key table now.
type Known = dyn Fn() -> bool + Send + Sync;

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

    /// Waits until `known` says that this process can serve by its key table; not where the old gateway cannot either, or is
    /// gone.
    ///
    /// # Errors
    /// [`Ignorance::NoKeys`] where it still cannot after [`KEYS_PATIENCE`].
    pub async fn until_keys_are_known(
        self,
        known: impl Fn() -> bool,
    ) -> Result<Predecessor, Ignorance> {
        if known() {
            return Ok(self);
        }
        self.0.set_nonblocking(true)?;
        let mut stream = tokio::net::UnixStream::from_std(self.0)?;
        match knows_keys(&mut stream).await {
            Ok(YES) => await_keys(known, &mut stream).await?,
            Ok(NO) => {
                tracing::warn!("neither this gateway nor the one that runs knows any key yet")
            }
            Ok(_) => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
            // Nobody has read the question. A gateway that has, and hung up, is there and does not know what it means.
            Err(error) if matches!(error.kind(), BrokenPipe | ConnectionReset) => gone(),
            Err(error) => return Err(error.into()),
        }
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(Predecessor(stream))
    }

    /// Tells the old gateway that connections are accepted, so that it ends.
    ///
    /// # Errors
    /// Where it has ended already.
    pub fn take_over(mut self) -> io::Result<()> {
        self.0.write_all(&[READY])
    }
}

/// Why a successor leaves everything to the gateway that runs.
#[derive(Debug, thiserror::Error)]
pub enum Ignorance {
    /// It has no usable key table.
    #[error(
        "the key table could not be loaded within {} s, and the gateway that runs has one: that one goes on serving; see that \
         the store answers (touchline store status), then upgrade again",
        KEYS_PATIENCE.as_secs()
    )]
    NoKeys,
    /// The gateway that runs did not say whether it has one.
    #[error(
        "the key table is not loaded, and the gateway that runs does not say whether its own is ({0}): that one is left as it \
         was; see that the store answers (touchline store status), then upgrade again"
    )]
    Untold(#[from] io::Error),
}

/// What the old gateway answers to [`KNOWS_KEYS`].
async fn knows_keys(predecessor: &mut tokio::net::UnixStream) -> io::Result<u8> {
    predecessor.write_all(&[KNOWS_KEYS]).await?;
    let answer = timeout(STEP, predecessor.read_u8()).await;
    answer.map_err(|_| io::ErrorKind::TimedOut)?
}

fn gone() {
    tracing::warn!("the gateway that ran is gone: serving without having loaded the key table");
}

/// Waits for keys, or for the end of the old gateway, after which somebody must serve.
async fn await_keys(
    known: impl Fn() -> bool,
    predecessor: &mut tokio::net::UnixStream,
) -> Result<(), Ignorance> {
    tracing::warn!("the key table is not loaded: the gateway that runs goes on meanwhile");
    let end = Instant::now() + KEYS_PATIENCE;
    while !known() {
        if Instant::now() >= end {
            return Err(Ignorance::NoKeys);
        }
        tokio::select! {
            () = sleep(KEYS_LOOK) => {}
            // It has nothing to say: it is gone.
            _ = predecessor.read_u8() => {
                gone();
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The offer of a running gateway to its successor. Dropping it gives its copies of the sockets up.
pub struct Offer {
    socket: tokio::net::UnixListener,
    handed: Vec<Handed>,
    known: Box<Known>,
}

impl Offer {
    /// Offers `handed` at `path`, in the place of whatever offer was there. `known` says whether this gateway can serve by its
    /// key table.
    ///
    /// # Errors
    /// Where the place cannot be written. Needs a tokio runtime.
    pub fn make(path: &Path, handed: Vec<Handed>, known: Box<Known>) -> io::Result<Offer> {
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
            known,
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
        self.hear(&mut successor).await
    }

    /// Answers a successor until it is ready.
    async fn hear(&self, successor: &mut tokio::net::UnixStream) -> io::Result<()> {
        loop {
            let said = timeout(SUCCESSOR_PATIENCE, successor.read_u8()).await;
            match said.map_err(|_| io::ErrorKind::TimedOut)?? {
                READY => return Ok(()),
                KNOWS_KEYS => {
                    tracing::warn!("the successor has not loaded the key table");
                    let known = if (self.known)() { YES } else { NO };
                    successor.write_all(&[known]).await?;
                }
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A successor without keys, and the old gateway's end of their conversation.
    fn pair() -> (Predecessor, tokio::net::UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let theirs = tokio::net::UnixStream::from_std(theirs).unwrap();
        (Predecessor(ours), theirs)
    }

    #[tokio::test]
    async fn a_successor_waits_for_its_keys_where_the_old_gateway_has_them() {
        let (successor, mut old) = pair();
        let known = AtomicBool::new(false);
        let asking = successor.until_keys_are_known(|| known.load(Ordering::SeqCst));
        let answering = async {
            assert_eq!(old.read_u8().await.unwrap(), KNOWS_KEYS);
            old.write_all(&[YES]).await.unwrap();
            known.store(true, Ordering::SeqCst);
        };
        let (asked, ()) = tokio::join!(asking, answering);
        asked.unwrap().take_over().unwrap();
        assert_eq!(old.read_u8().await.unwrap(), READY);
    }

    #[tokio::test]
    async fn a_successor_serves_without_keys_where_the_old_gateway_has_none_or_dies() {
        for (answer, dies) in [(NO, false), (YES, true)] {
            let (successor, mut old) = pair();
            let asking = successor.until_keys_are_known(|| false);
            let answering = async {
                assert_eq!(old.read_u8().await.unwrap(), KNOWS_KEYS);
                old.write_all(&[answer]).await.unwrap();
                (!dies).then_some(old)
            };
            let (asked, _old) = tokio::join!(asking, answering);
            asked.unwrap();
        }
    }

    #[tokio::test]
    async fn a_successor_serves_where_the_old_gateway_died_before_it_was_asked() {
        let (successor, old) = pair();
        drop(old);
        successor.until_keys_are_known(|| false).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_successor_that_gets_no_keys_gives_up() {
        let (successor, mut old) = pair();
        let asking = successor.until_keys_are_known(|| false);
        let answering = async {
            old.read_u8().await.unwrap();
            old.write_all(&[YES]).await.unwrap();
        };
        let (asked, ()) = tokio::join!(asking, answering);
        assert!(matches!(asked, Err(Ignorance::NoKeys)), "{asked:?}");
    }

    #[tokio::test]
    async fn a_successor_gives_up_where_the_old_gateway_does_not_understand_it() {
        let (successor, mut old) = pair();
        let asking = successor.until_keys_are_known(|| false);
        let answering = async move {
            old.read_u8().await.unwrap();
        };
        let (asked, ()) = tokio::join!(asking, answering);
        assert!(matches!(asked, Err(Ignorance::Untold(_))), "{asked:?}");
    }
}
