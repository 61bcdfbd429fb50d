//! The start of a star: rank 0 listens at the meeting point, and the other ranks connect to it and identify themselves.
//!
//! Processes of another run, and programs that found the port by chance, are sent away. If ranks do not come in time, rank 0 names them.

use super::meeting_point::{Address, MeetingPoint};
use super::{GiveUp, Star};
use ir::Diagnostic;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use twox_hash::XxHash3_64;

/// A process that is about to join its run.
#[derive(Clone, Debug)]
pub struct Newcomer {
    /// Its rank.
    pub rank: u64,
    /// The number of ranks.
    pub ranks: u64,
    /// A text that all processes of this run have, and no other run has.
    pub run: String,
    /// The time that the process waits for the others.
    pub timeout: Duration,
    /// The name of its machine.
    pub host: String,
}

/// The hint with which users name the meeting point.
const ELSEWHERE: &str =
    "TRAINYARD_RENDEZVOUS=HOST:PORT names the machine of rank 0, and a port that is free there";

/// The time limit of a connection attempt, and of a connected process to identify itself.
const PATIENCE: Duration = Duration::from_secs(2);

/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Joins the processes of a run. `give_up` is called later if one of them is lost.
///
/// # Errors
/// The port is taken, or the file of the meeting point cannot be written; ranks that did not come in time; two processes with one rank; a
/// rank 0 of another run.
pub fn join(newcomer: &Newcomer, point: &MeetingPoint, give_up: GiveUp) -> Result<Arc<Star>, Diagnostic> {
    let deadline = Instant::now() + newcomer.timeout;
    let connections = if newcomer.rank == 0 {
        let (listener, address) = point.listen(&newcomer.host).map_err(|error| unusable(point, &error))?;
        let gathered = gather(newcomer, &address, &listener, deadline);
        point.clear(&address);
        gathered?
    } else {
        vec![(0, find(newcomer, point, deadline)?)]
    };
    let Newcomer { rank, ranks, timeout, .. } = *newcomer;
    let star = Star::connect(rank, ranks, connections, timeout, give_up);
    star.map_err(|error| Diagnostic::new(format!("rank {rank} cannot read its connections: {error}")))
}

fn unusable(point: &MeetingPoint, error: &io::Error) -> Diagnostic {
    let (message, note) = match (point, error.kind()) {
        (MeetingPoint::File(path), _) => (
            format!("rank 0 cannot write its address to {}: {error}", ir::visible(&path.to_string_lossy())),
            "TRAINYARD_RENDEZVOUS=PATH names a file in a folder that all machines can write",
        ),
        (_, ErrorKind::AddrInUse) => (
            format!("rank 0 cannot listen at {point}: {error}"),
            "another program has the port: TRAINYARD_RENDEZVOUS=HOST:PORT names another",
        ),
        _ => (format!("rank 0 cannot listen at {point}: {error}"), ELSEWHERE),
    };
    Diagnostic::new(message).note(note)
}

/// Waits for all other ranks. Returns their connections, in the order of ranks.
fn gather(
    newcomer: &Newcomer,
    address: &Address,
    listener: &TcpListener,
    deadline: Instant,
) -> Result<Vec<(u64, TcpStream)>, Diagnostic> {
    let mut found: Vec<Option<TcpStream>> = (1..newcomer.ranks).map(|_| None).collect();
    let mut left = found.len();
    let mut sent_away = false;
    while left > 0 {
        let Some(stream) = accept(listener) else {
            if Instant::now() > deadline {
                let error = missing(newcomer, address, &found, sent_away);
                return Err(refuse_all(found.into_iter().flatten(), error));
            }
            thread::sleep(PAUSE);
            continue;
        };
        let (rank, stream) = match greet(newcomer, stream) {
            Greeted::Rank(rank, stream) => (rank, stream),
            Greeted::OfAnotherRun => {
                sent_away = true;
                continue;
            }
            Greeted::Stranger => continue,
        };
        match &mut found[rank as usize - 1] {
            Some(_) => {
                let error = Diagnostic::new(format!("two processes say that they are rank {rank}"))
                    .note("each process of a run needs a rank of its own");
                return Err(refuse_all(found.into_iter().flatten().chain([stream]), error));
            }
            place => {
                *place = Some(stream);
                left -= 1;
            }
        }
    }
    let all = (1..).zip(found.into_iter().flatten()).map(|(rank, mut stream)| {
        let answered = answer(&mut stream, "");
        answered
            .map(|()| (rank, stream))
            .map_err(|_| Diagnostic::new(format!("rank {rank} ended at the start")))
    });
    all.collect()
}

/// Returns a new connection, if there is one.
fn accept(listener: &TcpListener) -> Option<TcpStream> {
    let (stream, _) = listener.accept().ok()?;
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    Some(stream)
}

/// The identity of a connected process.
enum Greeted {
    /// A process of this run, with its rank.
    Rank(u64, TcpStream),
    /// A process of another run, which was told so.
    OfAnotherRun,
    /// A program that is no trainyard process.
    Stranger,
}

/// Reads the identity of a connected process.
fn greet(newcomer: &Newcomer, mut stream: TcpStream) -> Greeted {
    let mut hello = [0; Hello::BYTES];
    let read = stream.read_exact(&mut hello).ok().and_then(|()| Hello::read(&hello));
    let Some(hello) = read else { return Greeted::Stranger };
    if Hello::of(newcomer).run != hello.run || !(1..newcomer.ranks).contains(&hello.rank) {
        let _ = answer(&mut stream, &format!("rank 0 there belongs to another run, which has {DIFFERENCES}"));
        return Greeted::OfAnotherRun;
    }
    Greeted::Rank(hello.rank, stream)
}

/// The facts of which at least one differs between two runs that meet by mistake.
const DIFFERENCES: &str = "another version, output folder or number of processes";

fn missing(
    newcomer: &Newcomer,
    address: &Address,
    found: &[Option<TcpStream>],
    sent_away: bool,
) -> Diagnostic {
    let missing: Vec<u64> =
        (1..).zip(found).filter(|(_, found)| found.is_none()).map(|(rank, _)| rank).collect();
    let seconds = newcomer.timeout.as_secs();
    let told = Diagnostic::new(format!("the ranks {missing:?} did not come to {address} within {seconds} s"));
    if sent_away {
        told.note(format!("processes of another run came, which has {DIFFERENCES}, and were sent away"))
    } else {
        told.note("the launcher has not started them, they ended before, or they cannot reach that address")
    }
}

/// Tells all connected processes that the run does not begin.
fn refuse_all(streams: impl Iterator<Item = TcpStream>, error: Diagnostic) -> Diagnostic {
    streams.for_each(|mut stream| drop(answer(&mut stream, &error.message)));
    error
}

/// The largest number of bytes of the reason of a refusal.
const REASON: usize = 1 << 10;

/// Answers a hello: with the reason of a refusal, or with no text.
fn answer(stream: &mut TcpStream, reason: &str) -> io::Result<()> {
    let reason = &reason.as_bytes()[..reason.len().min(REASON)];
    stream.write_all(&[&(reason.len() as u64).to_le_bytes(), reason].concat())
}

/// Connects to rank 0 and says hello, again and again until it answers.
fn find(newcomer: &Newcomer, point: &MeetingPoint, deadline: Instant) -> Result<TcpStream, Diagnostic> {
    let rank = newcomer.rank;
    loop {
        let failed = match ask(newcomer, point, deadline) {
            Ok(Ok(stream)) => return Ok(stream),
            // The file may have the address of an earlier run.
            Ok(Err(reason)) if matches!(point, MeetingPoint::File(_)) => io::Error::other(reason),
            Ok(Err(reason)) => {
                return Err(Diagnostic::new(format!("rank {rank} is refused at {point}: {reason}")));
            }
            Err(error) => error,
        };
        if Instant::now() > deadline {
            let seconds = newcomer.timeout.as_secs();
            let message = format!("rank {rank} does not find rank 0 at {point} within {seconds} s: {failed}");
            let note = match point {
                MeetingPoint::Address(_) => ELSEWHERE,
                MeetingPoint::File(_) => {
                    "rank 0 writes its address to this file, which all machines must see"
                }
            };
            return Err(Diagnostic::new(message).note(note));
        }
        thread::sleep(PAUSE);
    }
}

/// Says hello to rank 0, and waits until all ranks have come. Returns the connection, or the reason of a refusal.
fn ask(
    newcomer: &Newcomer,
    point: &MeetingPoint,
    deadline: Instant,
) -> io::Result<Result<TcpStream, String>> {
    let addresses = point.find(&newcomer.host)?;
    let mut stream = Err(ErrorKind::AddrNotAvailable.into());
    for address in &addresses {
        stream = TcpStream::connect_timeout(address, PATIENCE);
        if stream.is_ok() {
            break;
        }
    }
    let mut stream = stream?;
    stream.write_all(&Hello::of(newcomer).bytes())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    while let Err(error) = stream.peek(&mut [0]) {
        // Rank 0 answers at the latest at its own deadline, which may be later than this process's.
        let is_late = Instant::now() > deadline + super::GRACE;
        let has_moved = point.find(&newcomer.host).is_ok_and(|found| found != addresses);
        if !super::is_timeout(&error) || is_late || has_moved {
            return Err(error);
        }
    }
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length == 0 {
        return Ok(Ok(stream));
    }
    if length > REASON as u64 {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut reason = vec![0; length as usize];
    stream.read_exact(&mut reason)?;
    Ok(Err(ir::visible(&String::from_utf8_lossy(&reason)).into_owned()))
}

/// The first message of a process.
struct Hello {
    rank: u64,
    /// A checksum of the run's text and the number of ranks.
    run: u64,
}

impl Hello {
    const BYTES: usize = 24;
    /// The first bytes of every hello. They differ between versions of the protocol.
    const MAGIC: [u8; 8] = *b"trainyd1";

    fn of(newcomer: &Newcomer) -> Self {
        let run = format!("{} ranks, {}", newcomer.ranks, newcomer.run);
        Self { rank: newcomer.rank, run: XxHash3_64::oneshot(run.as_bytes()) }
    }

    fn bytes(&self) -> Vec<u8> {
        [Self::MAGIC, self.rank.to_le_bytes(), self.run.to_le_bytes()].concat()
    }

    /// Parses a hello. Returns `None` if the bytes come from another program.
    fn read(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let ([magic, rank, run], []) = bytes.as_chunks::<8>() else { return None };
        (*magic == Self::MAGIC)
            .then(|| Self { rank: u64::from_le_bytes(*rank), run: u64::from_le_bytes(*run) })
    }
}
