//! An upgrade without a gap: a running gateway hands its listening sockets to its successor.
//!
//! The running gateway listens on a Unix socket (`listen.upgrade`). `touchline serve --upgrade` first reads and checks its own
//! configuration, requests the listening sockets there, opens the store, and reports that it is ready once nothing can fail any
//! more. The old gateway confirms, accepts no new connection and ends after its requests in flight. On the confirmation the new one
//! moves its own Unix socket into place and accepts on the same listeners. These are never closed and opened again: while neither
//! process accepts, connections wait.
//!
//! Invariants: until the confirmation the successor accepts no connection and does not replace the Unix socket, so a successor that
//! fails, is killed or hangs before it costs no request and blocks no later upgrade. A successor that the old gateway no longer
//! waits for does not begin. A gateway that knows keys is not replaced by one that knows none. No gateway is replaced by one with an
//! upstream of which no server is resolved.
//!
//! A process that may open the Unix socket may take over the listeners, so only its owner may open it.

use std::io::ErrorKind::{BrokenPipe, ConnectionReset, NotFound, UnexpectedEof};
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::clock::lasting;
use crate::policy::failure_log::FailureLog;

/// The listeners of a gateway: HTTP, HTTPS, redirect, admin.
const LISTENERS_MAX: usize = 4;
/// The limit on their names and addresses, which need far less.
const LIST_BYTES_MAX: usize = 4 * 1024;
/// The timeout of each step of a conversation with the old gateway.
const STEP: Duration = Duration::from_secs(5);
/// How long the old gateway waits while a successor opens its store, and again while it loads its key table.
const SUCCESSOR_PATIENCE: Duration = Duration::from_secs(60);
/// How long a successor waits for its key table, longer than Redis takes for a failover; and for the names of its upstreams.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often it checks its key table.
const KEYS_LOOK: Duration = Duration::from_millis(50);
/// How often a running gateway checks that its Unix socket was not removed, as by a program that cleans a directory.
const PLACE_LOOK: Duration = Duration::from_secs(1);
/// Sent by a successor that is ready to begin.
const READY: u8 = b'R';
/// Follows [`READY`]: the successor begins after a confirmation. Earlier versions begin at once and hang up.
const AWAITS: u8 = b'A';
/// The question of a successor that knows no key: does the old gateway know one?
const KNOWS_KEYS: u8 = b'K';
/// The two answers; the first also confirms [`READY`].
const YES: u8 = b'Y';
const NO: u8 = b'N';
/// The last byte to a successor that the old gateway no longer waits for.
const GIVEN_UP: u8 = b'G';

/// Whether a gateway has a usable key table with keys in it now.
type KnowsKeys = dyn Fn() -> bool + Send + Sync;

/// A listening socket to hand over.
#[derive(Debug)]
pub struct Handed {
    /// The listener, and the address in its configuration.
    pub label: Label,
    /// The socket.
    pub listener: TcpListener,
}

/// The identity of a listening socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// The listener's path in the configuration.
    pub path: String,
    /// The address there, which may have port 0.
    pub configured: SocketAddr,
}

/// The old gateway, which continues until its successor is ready.
#[derive(Debug)]
pub struct Predecessor(tokio::net::UnixStream);

impl Predecessor {
    /// Requests the listeners of the gateway behind the Unix socket. Blocks, within a runtime.
    ///
    /// # Errors
    /// If no gateway answers.
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
            return Err(io::Error::other(
                "fewer sockets arrived than were announced",
            ));
        }
        let handed = labels.into_iter().zip(sockets);
        let handed = handed.map(|(label, socket)| Handed {
            label,
            listener: TcpListener::from(socket),
        });
        stream.set_nonblocking(true)?;
        let predecessor = Predecessor(tokio::net::UnixStream::from_std(stream)?);
        Ok((predecessor, handed.collect()))
    }

    /// Waits until `known` returns that this process knows keys; does not wait if the old gateway knows none either, or has ended.
    ///
    /// # Errors
    /// [`Withdrawal::NoKeys`] if it knows none after [`PATIENCE`].
    pub async fn until_keys_are_known(
        &mut self,
        known: impl Fn() -> bool,
    ) -> Result<(), Withdrawal> {
        if known() {
            return Ok(());
        }
        match ask_for_keys(&mut self.0).await {
            Ok(YES) => {
                tracing::warn!(
                    "the key table is not loaded: the running gateway continues meanwhile"
                );
                let loaded = async {
                    while !known() {
                        sleep(KEYS_LOOK).await;
                    }
                };
                self.wait_for(loaded, Withdrawal::NoKeys).await?;
            }
            Ok(NO) => {
                tracing::warn!("neither this gateway nor the running one knows any key yet")
            }
            Ok(_) => {
                let answer = io::Error::from(io::ErrorKind::InvalidData);
                return Err(Withdrawal::Unreported(answer));
            }
            // The question was not read. A gateway that read it and hung up exists, but is of a version that does not know it.
            Err(error) if matches!(error.kind(), BrokenPipe | ConnectionReset) => gone(),
            Err(error) => return Err(Withdrawal::Unreported(error)),
        }
        Ok(())
    }

    /// Waits for `ready`, or for the end of the old gateway, after which this one must serve.
    ///
    /// # Errors
    /// `late` after [`PATIENCE`], and [`Withdrawal::GivenUp`].
    pub async fn wait_for(
        &mut self,
        ready: impl Future<Output = ()>,
        late: Withdrawal,
    ) -> Result<(), Withdrawal> {
        tokio::select! {
            () = ready => Ok(()),
            () = sleep(PATIENCE) => Err(late),
            byte = self.0.read_u8() => match byte {
                Ok(_) => Err(Withdrawal::GivenUp),
                Err(_) => {
                    gone();
                    Ok(())
                }
            }
        }
    }

    /// Replaces the old gateway, which accepts no new connection from now on; without asking, if it has ended.
    ///
    /// # Errors
    /// [`Withdrawal::GivenUp`] and [`Withdrawal::Unanswered`] if the old gateway continues to serve.
    pub async fn take_over(self) -> Result<(), Withdrawal> {
        let Predecessor(mut stream) = self;
        // If this cannot be sent, the bytes received before show why.
        let _ = stream.write_all(&[READY, AWAITS]).await;
        let answer = match timeout(STEP, stream.read_u8()).await {
            Ok(answer) => answer,
            Err(_) => last_answer(stream.into_std().map_err(Withdrawal::Unanswered)?),
        };
        match answer {
            Ok(YES) => Ok(()),
            Ok(_) => Err(Withdrawal::GivenUp),
            // Earlier versions also end without an answer.
            Err(error) if matches!(error.kind(), UnexpectedEof | ConnectionReset) => {
                tracing::info!("the old gateway has ended");
                Ok(())
            }
            Err(error) => Err(Withdrawal::Unanswered(error)),
        }
    }
}

/// Shuts the connection down and reads an answer that arrived late: the old gateway either sent it before, or cannot send it and
/// continues to serve.
fn last_answer(mut stream: UnixStream) -> io::Result<u8> {
    stream.shutdown(Shutdown::Read)?;
    let mut answer = [0];
    match stream.read(&mut answer)? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(u8::from_be_bytes(answer)),
    }
}

/// Why a successor ends and the running gateway continues.
#[derive(Debug, thiserror::Error)]
pub enum Withdrawal {
    /// The successor knows no key.
    #[error(
        "the store has no key that could be loaded within {} s, but the running gateway knows keys and continues to serve; check \
         that the store is the same and answers (touchline store status), then upgrade again",
        PATIENCE.as_secs()
    )]
    NoKeys,
    /// No name of the servers of an upstream resolves.
    #[error(
        "no server of the upstream {upstream} could be resolved within {} s; the running gateway was not replaced and continues to serve; \
         correct the name or the resolver, then upgrade again",
        PATIENCE.as_secs()
    )]
    Unresolved {
        /// Its name.
        upstream: String,
    },
    /// The running gateway did not answer whether it knows keys.
    #[error(
        "no key is loaded, and the running gateway does not answer whether it knows keys ({0}); it was not replaced; check \
        that the store answers (touchline store status), then upgrade again"
    )]
    Unreported(io::Error),
    /// The successor took too long.
    #[error(
        "the running gateway waited {} s for this one and continues to serve; find the cause of the delay, then upgrade again",
        SUCCESSOR_PATIENCE.as_secs()
    )]
    GivenUp,
    /// The running gateway does not confirm.
    #[error(
        "the running gateway does not confirm its replacement ({0}); it was not replaced; check whether it still serves, then upgrade again or restart it"
    )]
    Unanswered(io::Error),
}

/// The old gateway's answer to [`KNOWS_KEYS`].
async fn ask_for_keys(predecessor: &mut tokio::net::UnixStream) -> io::Result<u8> {
    predecessor.write_all(&[KNOWS_KEYS]).await?;
    let answer = timeout(STEP, predecessor.read_u8()).await;
    answer.map_err(|_| io::ErrorKind::TimedOut)?
}

fn gone() {
    tracing::warn!("the old gateway has ended: serving with what is loaded");
}

/// A listening Unix socket and its path.
struct UpgradeSocket {
    path: PathBuf,
    /// The path of the socket until it is moved to `path`.
    beside: PathBuf,
    socket: tokio::net::UnixListener,
    /// The device and inode of the socket's file.
    file: (u64, u64),
}

impl UpgradeSocket {
    /// Binds a socket at a temporary path, accessible to its owner only before any process can find it.
    fn beside(path: &Path) -> io::Result<UpgradeSocket> {
        let beside = PathBuf::from(format!("{}.{}", path.display(), std::process::id()));
        let _ = std::fs::remove_file(&beside);
        let socket = UnixListener::bind(&beside)?;
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o600))?;
        socket.set_nonblocking(true)?;
        Ok(UpgradeSocket {
            path: path.to_owned(),
            socket: tokio::net::UnixListener::from_std(socket)?,
            file: file_at(&beside)?,
            beside,
        })
    }

    /// Moves the socket to its path, replacing any file there.
    fn move_into_place(&self) -> io::Result<()> {
        std::fs::rename(&self.beside, &self.path)
    }

    fn is_missing(&self) -> bool {
        file_at(&self.path).is_err_and(|error| error.kind() == NotFound)
    }

    fn is_in_place(&self) -> bool {
        file_at(&self.path).is_ok_and(|file| file == self.file)
    }
}

impl Drop for UpgradeSocket {
    fn drop(&mut self) {
        // The file exists unless it was moved.
        let _ = std::fs::remove_file(&self.beside);
    }
}

fn file_at(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// The offer of a running gateway to its successor. Dropping it closes its copies of the sockets.
pub struct Offer {
    place: UpgradeSocket,
    handed: Vec<Handed>,
    known: Box<KnowsKeys>,
}

impl Offer {
    /// Prepares an offer of `handed` at `path`, which no process finds before [`Offer::publish`]. `known` returns whether this
    /// gateway has a usable key table. Needs a tokio runtime.
    ///
    /// # Errors
    /// If no file can be created in the directory of `path`.
    pub fn prepare(path: &Path, handed: Vec<Handed>, known: Box<KnowsKeys>) -> io::Result<Offer> {
        Ok(Offer {
            place: UpgradeSocket::beside(path)?,
            handed,
            known,
        })
    }

    /// Whether a gateway that runs offers its listeners at the path.
    ///
    /// It takes the question for a successor that has gone, and logs that it continues.
    pub fn is_made_by_another(&self) -> bool {
        UnixStream::connect(&self.place.path).is_ok()
    }

    /// Publishes the offer at its path, replacing any other offer there.
    ///
    /// # Errors
    /// If the path cannot be written.
    pub fn publish(&self) -> io::Result<()> {
        self.place.move_into_place()
    }

    /// Serves successors until one takes over; then sets `succeeded`.
    pub async fn serve(mut self, succeeded: watch::Sender<bool>) {
        let mut troubles = FailureLog::default();
        loop {
            let accepted = timeout(PLACE_LOOK, self.place.socket.accept()).await;
            let Ok(accepted) = accepted else {
                if self.place.is_missing() {
                    self.restore(&mut troubles);
                }
                continue;
            };
            let Ok((successor, _)) = accepted else {
                sleep(STEP).await;
                continue;
            };
            tracing::info!("a successor requests the listeners");
            let handed = lasting::outcome("upgrade", self.hand_to(successor)).await;
            match handed {
                Some(Ok(())) => {
                    succeeded.send_replace(true);
                    return;
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "the successor has gone: continuing to serve");
                }
                None => tracing::warn!("the upgrade failed: continuing to serve"),
            }
            self.restore(&mut troubles);
        }
    }

    /// Restores the path if it was removed, or after a failed successor: earlier versions take the path before they are ready.
    fn restore(&mut self, troubles: &mut FailureLog) {
        if self.place.is_in_place() {
            return;
        }
        let restored = UpgradeSocket::beside(&self.place.path).and_then(|place| {
            place.move_into_place()?;
            Ok(place)
        });
        match restored {
            Ok(place) => {
                tracing::warn!("listen.upgrade was removed, or taken by another process: restored");
                self.place = place;
            }
            Err(error) if troubles.failed(std::time::Instant::now()) => {
                tracing::error!(%error, "listen.upgrade cannot be restored");
            }
            Err(_) => {}
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
        self.converse(&mut successor).await
    }

    /// Answers a successor until it has taken over.
    async fn converse(&self, successor: &mut tokio::net::UnixStream) -> io::Result<()> {
        loop {
            let Ok(message) = timeout(SUCCESSOR_PATIENCE, successor.read_u8()).await else {
                // The successor may only hang, and must not begin when it continues.
                let _ = successor.write_all(&[GIVEN_UP]).await;
                return Err(io::ErrorKind::TimedOut.into());
            };
            match message? {
                READY => return confirm(successor).await,
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

/// Confirms that a successor takes over. Fails if the successor died after it was ready.
async fn confirm(successor: &mut tokio::net::UnixStream) -> io::Result<()> {
    let next = timeout(STEP, successor.read_u8()).await;
    match next.map_err(|_| io::ErrorKind::TimedOut)? {
        Ok(AWAITS) => successor.write_all(&[YES]).await,
        Ok(_) => Err(io::ErrorKind::InvalidData.into()),
        // An earlier version, which has already begun.
        Err(error) if error.kind() == UnexpectedEof => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A successor without keys, and the old gateway's end of their conversation.
    fn pair() -> (Predecessor, tokio::net::UnixStream) {
        let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
        (Predecessor(ours), theirs)
    }

    /// An offer of nothing by a gateway that has keys.
    fn offer(directory: &tempfile::TempDir) -> Offer {
        let place = directory.path().join("upgrade.sock");
        Offer::prepare(&place, Vec::new(), Box::new(|| true)).unwrap()
    }

    #[tokio::test]
    async fn a_successor_waits_for_its_keys_where_the_old_gateway_has_them() {
        let (mut successor, mut old) = pair();
        let known = AtomicBool::new(false);
        let asking = successor.until_keys_are_known(|| known.load(Ordering::SeqCst));
        let answering = async {
            assert_eq!(old.read_u8().await.unwrap(), KNOWS_KEYS);
            old.write_all(&[YES]).await.unwrap();
            known.store(true, Ordering::SeqCst);
        };
        let (asked, ()) = tokio::join!(asking, answering);
        let offer = offer(&tempfile::tempdir().unwrap());
        asked.unwrap();
        let (taken, outcome) = tokio::join!(successor.take_over(), offer.converse(&mut old));
        taken.unwrap();
        outcome.unwrap();
    }

    #[tokio::test]
    async fn a_successor_serves_without_keys_where_the_old_gateway_has_none_or_dies() {
        for (answer, dies) in [(NO, false), (YES, true)] {
            let (mut successor, mut old) = pair();
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
        let (mut successor, old) = pair();
        drop(old);
        successor.until_keys_are_known(|| false).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_successor_that_gets_no_keys_gives_up() {
        let (mut successor, mut old) = pair();
        let asking = successor.until_keys_are_known(|| false);
        let answering = async {
            old.read_u8().await.unwrap();
            old.write_all(&[YES]).await.unwrap();
        };
        let (asked, ()) = tokio::join!(asking, answering);
        assert!(matches!(asked, Err(Withdrawal::NoKeys)), "{asked:?}");
    }

    #[tokio::test]
    async fn a_successor_gives_up_where_the_old_gateway_does_not_understand_it() {
        let (mut successor, mut old) = pair();
        let asking = successor.until_keys_are_known(|| false);
        let answering = async move {
            old.read_u8().await.unwrap();
        };
        let (asked, ()) = tokio::join!(asking, answering);
        assert!(matches!(asked, Err(Withdrawal::Unreported(_))), "{asked:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_successor_that_the_old_gateway_gave_up_does_not_begin() {
        for has_keys in [true, false] {
            let (mut successor, mut old) = pair();
            let offer = offer(&tempfile::tempdir().unwrap());
            let given_up = offer.converse(&mut old).await.unwrap_err();
            assert_eq!(given_up.kind(), io::ErrorKind::TimedOut);
            drop(old);
            let begun = async {
                successor.until_keys_are_known(|| has_keys).await?;
                successor.take_over().await
            };
            begun.await.unwrap_err();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_successor_that_gets_no_confirmation_withdraws_and_the_old_gateway_goes_on() {
        let (successor, mut old) = pair();
        let begun = successor.take_over().await;
        assert!(matches!(begun, Err(Withdrawal::Unanswered(_))), "{begun:?}");
        let offer = offer(&tempfile::tempdir().unwrap());
        let outcome = offer.converse(&mut old).await.unwrap_err();
        assert_eq!(outcome.kind(), BrokenPipe);
    }

    #[tokio::test]
    async fn a_confirmation_at_the_last_moment_counts_on_both_sides() {
        let (successor, mut old) = pair();
        old.write_all(&[YES]).await.unwrap();
        assert_eq!(last_answer(successor.0.into_std().unwrap()).unwrap(), YES);
        let (successor, mut old) = pair();
        let successor = successor.0.into_std().unwrap();
        let none = last_answer(successor.try_clone().unwrap()).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::TimedOut);
        let late = old.write_all(&[YES]).await.unwrap_err();
        assert_eq!(late.kind(), BrokenPipe);
    }

    #[tokio::test]
    async fn a_successor_that_died_when_it_was_ready_is_not_confirmed() {
        let (mut successor, mut old) = pair();
        successor.0.write_all(&[READY, AWAITS]).await.unwrap();
        drop(successor);
        let offer = offer(&tempfile::tempdir().unwrap());
        let outcome = offer.converse(&mut old).await.unwrap_err();
        assert_eq!(outcome.kind(), BrokenPipe);
    }

    #[tokio::test]
    async fn earlier_versions_succeed_and_are_succeeded_without_a_confirmation() {
        let (mut successor, mut old) = pair();
        successor.0.write_all(&[READY]).await.unwrap();
        drop(successor);
        let offer = offer(&tempfile::tempdir().unwrap());
        offer.converse(&mut old).await.unwrap();

        let (successor, mut old) = pair();
        let hears = async move { assert_eq!(old.read_u8().await.unwrap(), READY) };
        let (begun, ()) = tokio::join!(successor.take_over(), hears);
        begun.unwrap();
    }

    #[tokio::test]
    async fn an_offer_that_is_prepared_and_dropped_leaves_the_place_and_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("upgrade.sock");
        let running = offer(&directory);
        running.publish().unwrap();
        drop(offer(&directory));
        UnixStream::connect(&place).unwrap();
        let files = std::fs::read_dir(directory.path()).unwrap();
        let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        assert_eq!(files, [place.as_path()]);
        let next = offer(&directory);
        next.publish().unwrap();
        assert!(next.place.is_in_place() && !running.place.is_in_place());
    }
}
