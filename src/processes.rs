//! The processes of a run: one, or those that a launcher started, each a rank.
//!
//! The processes of a run read the same files and compile the same program. Before the run begins they agree that no process has failed,
//! and that all have the same program. Rank 0 alone writes to the terminal and to the output folder.

mod waiting;

use crate::failure::Failure;
use comm::agreement::Agreement;
use comm::launcher::{Launched, Launcher};
use comm::record::{FlightRecord, Recorded};
use comm::star::rendezvous::{self, Newcomer};
use comm::star::{Loss, Star};
use comm::{CommError, Communicator};
use files::Replacement;
use ir::Diagnostic;
use ir::timetable::Task;
use program::Target;
use ranks::{RankProcess, Ranks};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
pub use waiting::Waiting;
use waiting::{shortened, write};

/// This process among those of a run.
pub struct Processes {
    agreement: Agreement,
    /// `None` if this process is alone.
    joined: Option<Joined>,
    /// Whether all processes know the reason why the run ends.
    is_told: Cell<bool>,
}

/// The reason why a process does not join its run.
#[derive(Debug)]
pub enum JoinError {
    /// All processes fail alike.
    OfAll(Failure),
    /// This process did not reach the other processes, which may not know the reason.
    OfRank(Failure),
}

impl JoinError {
    /// The failure of one rank. A rank other than 0 waits first, so that rank 0 can report the cause; the launcher then ends this process.
    fn of(rank: u64, diagnostic: Diagnostic) -> Self {
        if rank > 0 {
            thread::sleep(PRECEDENCE);
        }
        Self::OfRank(diagnostic.into())
    }
}

impl From<Diagnostic> for JoinError {
    fn from(diagnostic: Diagnostic) -> Self {
        Self::OfAll(diagnostic.into())
    }
}

/// A process among several.
struct Joined {
    launched: Launched,
    communicator: Arc<dyn Communicator>,
    transport: Transport,
    record: FlightRecord,
}

impl Processes {
    /// The only process of a run.
    pub fn alone() -> Self {
        Self { agreement: Agreement::alone(), joined: None, is_told: Cell::new(false) }
    }

    /// Joins the processes that a launcher started, or this process alone. In an exchange, a process waits `timeout` seconds for the others
    /// before the run ends.
    ///
    /// If a run fails, each rank writes its last exchanges to a file in the folder `flight`.
    ///
    /// # Errors
    /// Variables of a launcher that make no sense; a launcher for which there is no transport; MPI that does not start, or disagrees with
    /// the launcher; processes that do not find each other.
    pub fn join(
        launched: Option<Launched>,
        target: Target,
        timeout: u64,
        flight: &Path,
    ) -> Result<Self, JoinError> {
        let Some(launched) = launched else { return Ok(Self::alone()) };
        let record = FlightRecord::new();
        let give_up = GiveUp { record: record.clone(), path: flight.to_owned(), rank: launched.rank };
        let (transport, communicator) = Transport::start(&launched, target, timeout, give_up)?;
        let communicator = Arc::new(Recorded::new(communicator, record.clone()));
        let agreement = Agreement::of(communicator.clone(), launched.ranks);
        let joined = Joined { launched, communicator, transport, record };
        Ok(Self { agreement, joined: Some(joined), is_told: Cell::new(false) })
    }

    /// Whether this process is the only one, or rank 0.
    pub fn is_first(&self) -> bool {
        self.agreement.is_first()
    }

    /// The place of this process; `None` if it is alone.
    pub fn launched(&self) -> Option<&Launched> {
        self.joined.as_ref().map(|joined| &joined.launched)
    }

    /// The processor's cores for this process: those of its node, shared by the processes there.
    pub fn cores(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shared = self.launched().map_or(1, |launched| launched.local_ranks.unwrap_or(launched.ranks));
        (cores / shared.max(1) as usize).max(1)
    }

    /// The agreement with the other processes.
    pub fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// This process as a rank of the run; `None` if it is alone.
    pub fn rank(&self) -> Option<RankProcess<'_>> {
        let joined = self.joined.as_ref()?;
        let Launched { ranks, local_rank, .. } = joined.launched;
        Some(RankProcess { communicator: &joined.communicator, ranks, local_rank })
    }

    /// Watches the ranks of this process. If another thread waits for a rank or for a GPU longer than `timeout` seconds, the process ends,
    /// and each rank writes its last exchanges to a file in the folder `flight`.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn watch(&self, ranks: &mut Ranks, timeout: u64, flight: PathBuf) -> Result<(), Failure> {
        let own = self.joined.as_ref().map(|joined| (joined.launched.rank, joined.record.clone()));
        let give_up = move |late: &CommError, threads: &[FlightRecord]| {
            let records = (0..).zip(threads.iter().cloned()).chain(own);
            end_late(late, &records.collect::<Vec<_>>(), &flight)
        };
        Ok(ranks.watch(Duration::from_secs(timeout), give_up).map_err(anyhow::Error::from)?)
    }

    /// The record from which a signal handler tells where this process waits for other processes; `None` if it is alone.
    pub fn waiting(&self) -> Option<Waiting> {
        self.joined.as_ref().map(|joined| Waiting::new(joined.launched.rank, joined.record.clone()))
    }

    /// Returns the result if no process failed.
    ///
    /// # Errors
    /// The failure of this process, or of the first process that failed, with its rank.
    pub fn agree<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        let own = result.as_ref().err().map(FailureMessage::of);
        let all = self.agreement.gather(own).map_err(lost)?;
        self.is_told.set(all.iter().any(Option::is_some));
        let first = (0..).zip(all).find_map(|(rank, told)| Some((rank, told?)));
        match (result, first) {
            (Err(failure), _) => Err(failure),
            (Ok(value), None) => Ok(value),
            (Ok(_), Some((rank, told))) => Err(told.of_rank(rank)),
        }
    }

    /// Whether `holds` is true on all processes.
    ///
    /// # Errors
    /// A process is lost.
    pub fn all(&self, holds: bool) -> Result<bool, Failure> {
        Ok(!self.agreement.any(!holds).map_err(lost)?)
    }

    /// Runs `work` on rank 0 while the other processes wait. Returns the result on rank 0, and `None` on the others.
    ///
    /// # Errors
    /// The failure of rank 0, on all processes.
    pub fn first<T>(&self, work: impl FnOnce() -> Result<T, Failure>) -> Result<Option<T>, Failure> {
        self.agree(if self.is_first() { work().map(Some) } else { Ok(None) })
    }

    /// The values of all processes, in the order of the ranks.
    ///
    /// # Errors
    /// A process is lost.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, own: T) -> Result<Vec<T>, Failure> {
        self.agreement.gather(own).map_err(lost)
    }

    /// The text of rank 0, on all processes.
    ///
    /// # Errors
    /// A process is lost.
    pub fn of_first(&self, own: Option<String>) -> Result<String, Failure> {
        Ok(self.agreement.gather(own).map_err(lost)?.swap_remove(0).unwrap_or_default())
    }

    /// Compares facts between the processes, and refuses processes whose facts differ from those of rank 0.
    ///
    /// # Errors
    /// The first process that differs, and the fact that differs.
    pub fn same(&self, facts: BTreeMap<String, String>) -> Result<(), Failure> {
        let all: Vec<BTreeMap<String, String>> = self.agreement.gather(facts).map_err(lost)?;
        let difference = (1..all.len()).find_map(|rank| {
            let differs = |name: &&String| all[rank].get(*name) != all[0].get(*name);
            Some((rank, all[0].keys().chain(all[rank].keys()).find(differs)?))
        });
        let Some((rank, name)) = difference else { return Ok(()) };
        self.is_told.set(true);
        let value = |rank: usize| all[rank].get(name).map_or("none", String::as_str);
        let message = format!("rank {rank} has another {name} than rank 0");
        Err(Diagnostic::new(message)
            .note(format!("rank 0 has {}, and rank {rank} has {}", value(0), value(rank)))
            .note("start all ranks with the same program, model, data and flags")
            .into())
    }

    /// Ends a run that failed on this process alone. `tell` is called with the rank and its task in a pipeline, and then the other
    /// processes are ended too. If all processes know of the failure, this function returns, and they end by themselves.
    pub fn end(&self, failure: &Failure, flight: &Path, tell: impl FnOnce(u64, Option<Task>)) {
        let Some(joined) = self.joined.as_ref().filter(|_| !self.is_told.get()) else { return };
        if joined.launched.rank > 0 {
            // Most failures reach all ranks at once, such as a loss that is not finite. Then rank 0 reports them, and ends this process.
            thread::sleep(PRECEDENCE);
        }
        tell(joined.launched.rank, joined.record.task());
        write_record(&joined.record, flight, joined.launched.rank);
        joined.transport.abort(failure.exit_code());
    }
}

/// The time that rank 0 has to report a failure and to end the job before other ranks report it. An MPI takes a second or two to end its
/// processes.
const PRECEDENCE: Duration = Duration::from_secs(4);

/// Writes the last exchanges of a rank to a file, if the folder of the run exists. If the file cannot be written, the failure stays as it
/// is.
fn write_record(record: &FlightRecord, flight: &Path, rank: u64) {
    if flight.parent().is_some_and(Path::is_dir) && fs::create_dir_all(flight).is_ok() {
        let path = flight.join(format!("rank-{rank}.txt"));
        let _ = Replacement::write(&path, record.to_string().as_bytes());
    }
}

/// The report that this process makes, and its record, when another process is lost.
struct GiveUp {
    record: FlightRecord,
    path: PathBuf,
    rank: u64,
}

impl GiveUp {
    /// Reports the loss of another process, and ends this process.
    fn end(&self, loss: &Loss) -> ! {
        // The cause may be a file system that hangs. Then neither the terminal nor the record may delay the end of the process.
        abort_after(FAREWELL);
        match loss {
            Loss::Noticed(error) => self.tell(error),
            // The rank that failed has told the user.
            Loss::Told { .. } => write_record(&self.record, &self.path, self.rank),
        }
        std::process::exit(1)
    }

    /// Reports the error with the exchange in which it occurred, and writes the record.
    fn tell(&self, error: &CommError) {
        tell(error, Some(&self.record));
        write_record(&self.record, &self.path, self.rank);
    }
}

/// Ends this process because it waited too long for one of its ranks or GPUs. Each rank writes its record.
fn end_late(error: &CommError, records: &[(u64, FlightRecord)], flight: &Path) -> ! {
    // As in `GiveUp::end`.
    abort_after(FAREWELL);
    let waited = match error {
        CommError::Late { rank, .. } => records.iter().find(|(other, _)| other == rank),
        _ => None,
    };
    tell(error, waited.map(|(_, record)| record));
    records.iter().for_each(|(rank, record)| write_record(record, flight, *rank));
    std::process::exit(1)
}

/// Reports an error with the exchange in which the rank is.
fn tell(error: &CommError, record: Option<&FlightRecord>) {
    use crate::diagnostics::{Severity, render};
    let exchange = record.and_then(FlightRecord::open);
    let exchange = exchange.map_or_else(String::new, |exchange| format!(" in {}", shortened(&exchange)));
    let told = Diagnostic::new(format!("{error}{exchange}"))
        .note("all ranks end; the same command with --resume continues from the last checkpoint");
    write(&render(Severity::Error, &[told], false));
}

/// A failure as a message to other processes.
#[derive(Serialize, Deserialize)]
struct FailureMessage {
    is_fault: bool,
    messages: Vec<(String, Vec<String>)>,
}

impl FailureMessage {
    fn of(failure: &Failure) -> Self {
        let message = |diagnostic: Diagnostic| (diagnostic.message, diagnostic.notes);
        let messages = failure.diagnostics().into_iter().map(message).collect();
        Self { is_fault: matches!(failure, Failure::Fault(_)), messages }
    }

    fn of_rank(self, rank: u64) -> Failure {
        let diagnostic = |(message, notes): (String, Vec<String>)| {
            notes.into_iter().fold(Diagnostic::new(format!("rank {rank}: {message}")), Diagnostic::note)
        };
        let mut diagnostics = self.messages.into_iter().map(diagnostic);
        match (self.is_fault, diagnostics.next()) {
            (true, Some(first)) => Failure::Fault(anyhow::Error::new(first)),
            (_, first) => Failure::User(first.into_iter().chain(diagnostics).collect()),
        }
    }
}

/// The failure for other processes that are lost.
fn lost(error: CommError) -> Failure {
    Failure::Fault(error.into())
}

/// The time that the drivers of GPUs have to shut down before the process is aborted.
const FAREWELL: Duration = Duration::from_secs(5);

/// Aborts this process after a time, even if its threads hang until then.
fn abort_after(time: Duration) {
    let abort = move || {
        thread::sleep(time);
        std::process::abort()
    };
    // If the thread cannot start, the process may end late, but it ends.
    let _ = thread::Builder::new().spawn(abort);
}

/// The means by which processes exchange messages.
enum Transport {
    /// MPI carries everything.
    #[cfg(feature = "mpi")]
    Mpi(transport_mpi::World),
    /// Connections carry agreements; GPUs exchange tensors by NCCL.
    Star(Arc<Star>),
}

impl Transport {
    fn start(
        launched: &Launched,
        target: Target,
        timeout: u64,
        give_up: GiveUp,
    ) -> Result<(Self, Arc<dyn Communicator>), JoinError> {
        #[cfg(feature = "mpi")]
        if launched.launcher != Launcher::Torchrun {
            return Self::start_mpi(launched, timeout, give_up);
        }
        if target.is_host() {
            return Err(no_transport(launched).into());
        }
        Self::start_star(launched, timeout, give_up)
    }

    fn start_star(
        launched: &Launched,
        timeout: u64,
        give_up: GiveUp,
    ) -> Result<(Self, Arc<dyn Communicator>), JoinError> {
        let point = launched.meeting_point()?;
        let newcomer = Newcomer {
            rank: launched.rank,
            ranks: launched.ranks,
            run: format!("trainyard {} in {}", env!("CARGO_PKG_VERSION"), give_up.path.display()),
            timeout: Duration::from_secs(timeout),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        };
        let star = rendezvous::join(&newcomer, &point, Box::new(move |loss| give_up.end(loss)));
        let star = star.map_err(|error| JoinError::of(launched.rank, error))?;
        Ok((Self::Star(star.clone()), star))
    }

    #[cfg(feature = "mpi")]
    fn start_mpi(
        launched: &Launched,
        timeout: u64,
        give_up: GiveUp,
    ) -> Result<(Self, Arc<dyn Communicator>), JoinError> {
        let told = |message: String| Diagnostic::new(format!("MPI does not start: {message}"));
        let world = transport_mpi::World::start().map_err(told)?;
        if (world.rank(), world.size()) != (launched.rank, launched.ranks) {
            let message = format!(
                "{} started rank {} of {}, and MPI says rank {} of {}",
                launched.launcher,
                launched.rank,
                launched.ranks,
                world.rank(),
                world.size()
            );
            let note = match launched.launcher {
                Launcher::Slurm => {
                    "srun needs the PMI of this binary's MPI: --mpi=pmi2 for MPICH, --mpi=pmix for Open MPI"
                }
                _ => "this binary was built against another MPI than the launcher belongs to",
            };
            return Err(JoinError::of(launched.rank, Diagnostic::new(message).note(note)));
        }
        let give_up = Box::new(move |error: &CommError| give_up.tell(error));
        let communicator = world.communicator(Duration::from_secs(timeout), give_up).map_err(told)?;
        Ok((Self::Mpi(world), communicator))
    }

    /// Ends all processes.
    fn abort(&self, code: u8) -> ! {
        match self {
            #[cfg(feature = "mpi")]
            Self::Mpi(world) => world.abort(code.into()),
            Self::Star(star) => {
                star.fail();
                abort_after(FAREWELL);
                std::process::exit(code.into())
            }
        }
    }
}

/// The error for processors that cannot exchange tensors between these processes.
fn no_transport(launched: &Launched) -> Diagnostic {
    let Launched { launcher, ranks, .. } = launched;
    match launcher {
        Launcher::Torchrun => Diagnostic::new(format!(
            "{launcher} started {ranks} processes, which exchange tensors by NCCL: between GPUs, not between processors"
        ))
        .note("on GPUs, give --device cuda")
        .note("on processors, start the processes by mpirun, with the feature mpi"),
        _ => Diagnostic::new(format!(
            "{launcher} started {ranks} processes, and this binary has no MPI to exchange tensors between processors"
        ))
        .note("build it with MPI: cargo build --release --features mpi")
        .note("on GPUs, --device cuda needs no MPI"),
    }
}
