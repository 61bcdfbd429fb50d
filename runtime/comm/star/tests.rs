//! Stars of threads with real connections.

use super::meeting_point::{Address, MeetingPoint};
use super::rendezvous::{Newcomer, join};
use super::{GiveUp, Loss, Star};
use crate::agreement::Agreement;
use crate::{CollectiveKind, CommError, Communicator};
use ir::PartialKind;
use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

/// Returns a port that is free now.
fn free() -> MeetingPoint {
    at(TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port())
}

fn at(port: u16) -> MeetingPoint {
    MeetingPoint::Address(Address { host: "127.0.0.1".into(), port })
}

fn newcomer(rank: u64, ranks: u64, timeout: Duration) -> Newcomer {
    Newcomer { rank, ranks, run: "a run".into(), timeout, host: "a machine".into() }
}

fn unexpected() -> GiveUp {
    Box::new(|loss| panic!("{loss:?}"))
}

/// Runs a function on this number of ranks, each on a thread, and returns the results by rank.
fn on_ranks<R: Send>(ranks: u64, work: impl Fn(Arc<Star>) -> R + Sync) -> Vec<R> {
    let (address, work) = (&free(), &work);
    thread::scope(|scope| {
        let one = |rank| {
            scope.spawn(move || {
                // Rank 0 comes last: the others have to try again.
                thread::sleep(Duration::from_millis(if rank == 0 { 100 } else { 0 }));
                work(join(&newcomer(rank, ranks, LONG), address, unexpected()).unwrap())
            })
        };
        let threads: Vec<_> = (0..ranks).map(one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn processes_agree_over_their_connections() {
    for ranks in [1, 2, 5] {
        let gathered = on_ranks(ranks, |star| {
            let rank = star.rank();
            let agreement = Agreement::of(star, ranks);
            let texts = agreement.gather("x".repeat(rank as usize)).unwrap();
            (texts, agreement.union(1 << rank).unwrap(), agreement.gather_bytes(&[]).unwrap().len())
        });
        let texts: Vec<String> = (0..ranks as usize).map(|rank| "x".repeat(rank)).collect();
        let expected = (texts, (1 << ranks) as u8 - 1, ranks as usize);
        assert_eq!(gathered, vec![expected; ranks as usize]);
    }
}

#[test]
fn the_connections_carry_no_tensors() {
    let collectives = [
        (CollectiveKind::AllReduce(PartialKind::Sum), "`all_reduce`"),
        (CollectiveKind::ReduceScatter(PartialKind::Sum), "`reduce_scatter`"),
        (CollectiveKind::AllToAll, "`all_to_all`"),
    ];
    let errors = on_ranks(2, |star| {
        for (kind, name) in collectives {
            let error = star.collective(kind, &[0, 1], &mut []).unwrap_err().to_string();
            assert!(error.contains("no tensors") && error.contains(name), "{error}");
        }
        star.send(1 - star.rank(), 0, &[1]).unwrap_err().to_string()
    });
    assert!(
        errors[1].contains("rank 1 cannot exchange messages") && errors[1].contains("no tensors"),
        "{errors:?}"
    );
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let address = &free();
    let errors: Vec<String> = thread::scope(|scope| {
        let short = Duration::from_secs(1);
        let one = |rank| {
            scope.spawn(move || join(&newcomer(rank, 5, short), address, unexpected()).err().unwrap().message)
        };
        let threads: Vec<_> = [0, 2].map(one).into_iter().collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let missing = format!("the ranks [1, 3, 4] did not come to {address} within 1 s");
    assert_eq!(errors, [missing.clone(), format!("rank 2 is refused at {address}: {missing}")]);
    let error = join(&newcomer(1, 2, Duration::from_millis(200)), address, unexpected()).err().unwrap();
    assert!(error.message.starts_with("rank 1 does not find rank 0 at 127.0.0.1:"), "{}", error.message);
}

#[test]
fn a_port_that_is_taken_is_told() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = at(taken.local_addr().unwrap().port());
    let error = join(&newcomer(0, 2, LONG), &address, unexpected()).err().unwrap();
    assert!(error.message.starts_with(&format!("rank 0 cannot listen at {address}: ")), "{}", error.message);
    assert_eq!(error.notes, ["another program has the port: TRAINYARD_RENDEZVOUS=HOST:PORT names another"]);
}

#[test]
fn processes_meet_by_a_file_whatever_an_earlier_run_left_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meeting");
    // The port of a run that was killed: no process listens there.
    fs::write(&path, "a machine:1").unwrap();
    let point = &MeetingPoint::File(path.clone());
    thread::scope(|scope| {
        let other = scope.spawn(move || join(&newcomer(1, 2, LONG), point, unexpected()).map(drop));
        thread::sleep(Duration::from_millis(100));
        join(&newcomer(0, 2, LONG), point, unexpected()).unwrap();
        other.join().unwrap().unwrap();
    });
    assert!(!path.exists(), "the run has begun");
}

/// The file of an earlier run names the port of a program that never answers, and then the port of another run.
#[test]
fn a_process_that_waits_at_an_old_address_looks_into_the_file_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meeting");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    fs::write(&path, format!("a machine:{}\n", silent.local_addr().unwrap().port())).unwrap();
    let point = &MeetingPoint::File(path.clone());
    thread::scope(|scope| {
        let other = scope.spawn(move || join(&newcomer(1, 2, LONG), point, unexpected()).map(drop));
        thread::sleep(Duration::from_millis(200));
        let elsewhere = MeetingPoint::File(folder.path().join("elsewhere"));
        let stranger = Newcomer { run: "another".into(), ..newcomer(0, 2, Duration::from_secs(4)) };
        let another = scope.spawn(move || join(&stranger, &elsewhere, unexpected()).map(drop));
        thread::sleep(Duration::from_millis(200));
        fs::copy(folder.path().join("elsewhere"), &path).unwrap();
        thread::sleep(Duration::from_secs(3));
        join(&newcomer(0, 2, LONG), point, unexpected()).unwrap();
        other.join().unwrap().unwrap();
        another.join().unwrap().unwrap_err();
    });
}

#[test]
fn a_file_that_holds_something_else_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    fs::write(&path, "no address").unwrap();
    let point = MeetingPoint::File(path.clone());
    let error = join(&newcomer(0, 2, LONG), &point, unexpected()).err().unwrap();
    assert!(error.message.ends_with("model.onnx: the file holds something else"), "{}", error.message);
    assert_eq!(fs::read_to_string(path).unwrap(), "no address");
}

#[test]
fn a_file_that_is_not_there_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let point = MeetingPoint::File(folder.path().join("nowhere/meeting"));
    let [first, second] = [0, 1].map(|rank| {
        join(&newcomer(rank, 2, Duration::from_millis(100)), &point, unexpected()).err().unwrap()
    });
    assert!(first.message.starts_with("rank 0 cannot write its address to /"), "{}", first.message);
    assert!(second.message.contains("does not find rank 0 at the address in /"), "{}", second.message);
    assert_eq!(second.notes, ["rank 0 writes its address to this file, which all machines must see"]);
}

#[test]
fn two_processes_of_one_rank_are_refused() {
    let address = &free();
    let errors: Vec<Option<String>> = thread::scope(|scope| {
        let one = |rank| {
            let join = move || join(&newcomer(rank, 3, LONG), address, unexpected()).err();
            scope.spawn(move || join().map(|error| error.message))
        };
        let threads: Vec<_> = [0, 1, 1].map(one).into_iter().collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let told = "two processes say that they are rank 1";
    assert_eq!(errors[0].as_deref(), Some(told));
    assert!(
        errors.iter().all(|error| error.as_deref().is_some_and(|error| error.ends_with(told))),
        "{errors:?}"
    );
}

#[test]
fn strangers_and_other_runs_are_sent_away_and_the_run_begins() {
    let address = &free();
    thread::scope(|scope| {
        let first = scope.spawn(move || join(&newcomer(0, 2, LONG), address, unexpected()).map(drop));
        let mut stranger = connect(address);
        stranger.write_all(b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n").unwrap();
        let other = Newcomer { run: "another".into(), ..newcomer(1, 2, LONG) };
        let error = join(&other, address, unexpected()).err().unwrap();
        let told = "rank 0 there belongs to another run, which has another version, output folder or number of processes";
        assert_eq!(error.message, format!("rank 1 is refused at {address}: {told}"));
        join(&newcomer(1, 2, LONG), address, unexpected()).unwrap();
        first.join().unwrap().unwrap();
    });
}

#[test]
fn rank_0_tells_that_it_sent_processes_away() {
    let address = &free();
    thread::scope(|scope| {
        let short = newcomer(0, 2, Duration::from_secs(1));
        let first = scope.spawn(move || join(&short, address, unexpected()).err().unwrap());
        let other = Newcomer { run: "another".into(), ..newcomer(1, 2, LONG) };
        join(&other, address, unexpected()).err().unwrap();
        let error = first.join().unwrap();
        assert!(error.message.starts_with("the ranks [1] did not come to "), "{}", error.message);
        assert!(error.notes[0].starts_with("processes of another run came"), "{:?}", error.notes);
    });
}

/// Connects to a process that may not listen yet.
fn connect(address: &MeetingPoint) -> TcpStream {
    let began = Instant::now();
    loop {
        match TcpStream::connect(address.to_string()) {
            Ok(stream) => return stream,
            Err(error) => assert!(began.elapsed() < LONG, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Runs three ranks, of which the last runs `act`. Returns the losses that each rank is told.
fn losses(timeout: Duration, act: impl Fn(Arc<Star>) + Sync) -> Vec<Vec<Loss>> {
    let (address, act) = (&free(), &act);
    let told: Vec<_> = (0..3).map(|_| channel()).collect();
    let (outlets, inboxes): (Vec<Sender<Loss>>, Vec<_>) = told.into_iter().unzip();
    let kept = Mutex::new(vec![]);
    thread::scope(|scope| {
        for (rank, outlet) in (0..).zip(outlets) {
            let kept = &kept;
            scope.spawn(move || {
                let give_up: GiveUp = Box::new(move |loss| drop(outlet.send(loss.clone())));
                let star = join(&newcomer(rank, 3, timeout), address, give_up).unwrap();
                if rank == 2 {
                    act(star);
                } else {
                    kept.lock().unwrap().push(star);
                }
            });
        }
    });
    let first =
        |inbox: &std::sync::mpsc::Receiver<Loss>| inbox.recv_timeout(Duration::from_secs(1)).into_iter();
    inboxes[..2].iter().map(|inbox| first(inbox).collect()).collect()
}

#[test]
fn a_process_that_is_killed_is_noticed_at_once_by_all() {
    let losses = losses(LONG, |star| {
        // The system closes the connections of a killed process, and no more messages are sent.
        for (_, stream) in &star.shared.peers {
            stream.lock().unwrap().shutdown(std::net::Shutdown::Both).unwrap();
        }
        std::mem::forget(star);
    });
    assert_eq!(losses, [vec![Loss::Noticed(CommError::Ended { rank: 2 })], vec![Loss::Told { rank: 2 }]]);
}

#[test]
fn a_process_that_fails_is_told_to_all() {
    let losses = losses(LONG, |star| star.fail());
    assert_eq!(losses, [vec![Loss::Told { rank: 2 }], vec![Loss::Told { rank: 2 }]]);
}

#[test]
fn a_process_whose_work_is_done_is_no_loss() {
    assert_eq!(losses(LONG, drop), [vec![], vec![]]);
}

#[test]
fn a_process_that_sends_no_beats_is_late() {
    let losses = losses(Duration::from_millis(400), |star| {
        // Its thread of beats ends, as if the process hung.
        star.shared.is_over.store(true, std::sync::atomic::Ordering::SeqCst);
        std::mem::forget(star);
    });
    let late = CommError::Late { rank: 0, seconds: 0, missing: vec![2] };
    assert_eq!(losses, [vec![Loss::Noticed(late)], vec![Loss::Told { rank: 2 }]]);
}

#[test]
fn a_rank_that_does_not_come_to_an_agreement_is_named_by_rank_0() {
    let errors = on_ranks_for(Duration::from_secs(1), |star| {
        let agreement = Agreement::of(star, 3);
        if agreement.rank() == 1 {
            thread::sleep(Duration::from_secs(2));
            return None;
        }
        agreement.any(false).err()
    });
    assert_eq!(errors[0], Some(CommError::Late { rank: 0, seconds: 1, missing: vec![1] }));
    assert!(matches!(errors[2], Some(CommError::Ended { .. } | CommError::Late { .. })), "{errors:?}");
}

/// Does the same as [`on_ranks`] for three ranks with this timeout, and ignores losses.
fn on_ranks_for<R: Send>(timeout: Duration, work: impl Fn(Arc<Star>) -> R + Sync) -> Vec<R> {
    let (address, work) = (&free(), &work);
    thread::scope(|scope| {
        let one = |rank| {
            scope.spawn(move || work(join(&newcomer(rank, 3, timeout), address, Box::new(|_| {})).unwrap()))
        };
        let threads: Vec<_> = (0..3).map(one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
