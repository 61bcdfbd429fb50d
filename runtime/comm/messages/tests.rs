//! Collectives over messages have the bits of ranks that share memory.

use super::*;
use crate::comm::local::{AtWork, Local};
use ir::random;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// Messages on their way, by sender and receiver.
#[derive(Default)]
struct Mail {
    boxes: Mutex<BTreeMap<(u64, u64), VecDeque<Vec<u8>>>>,
    arrived: Condvar,
}

/// A rank that sends its messages to the other ranks of this process.
struct Mailbox {
    rank: u64,
    mail: Arc<Mail>,
}

impl Messages for Mailbox {
    fn rank(&self) -> u64 {
        self.rank
    }

    fn exchange(&self, sent: &[Sent<'_>], received: Vec<Received<'_>>) -> Result<(), CommError> {
        let mut boxes = self.mail.boxes.lock().unwrap();
        for (to, bytes) in sent {
            boxes.entry((self.rank, *to)).or_default().push_back(bytes.to_vec());
        }
        self.mail.arrived.notify_all();
        for (from, room) in received {
            let message = loop {
                if let Some(message) = boxes.entry((from, self.rank)).or_default().pop_front() {
                    break message;
                }
                let (next, timeout) = self.mail.arrived.wait_timeout(boxes, Duration::from_secs(10)).unwrap();
                boxes = next;
                if timeout.timed_out() {
                    return Err(CommError::Late { rank: self.rank, seconds: 10, missing: vec![from] });
                }
            };
            assert_eq!(message.len(), room.len(), "a message has the length of its room");
            room.copy_from_slice(&message);
        }
        Ok(())
    }
}

/// The results of a function on ranks that exchange messages, and on ranks that share memory.
fn both<R: Send>(ranks: u64, work: impl Fn(&dyn Communicator) -> R + Sync) -> [Vec<R>; 2] {
    let mail = Arc::new(Mail::default());
    let local = Local::new(ranks);
    let (by_mail, in_memory) = thread::scope(|scope| {
        let one = |rank| {
            let communicator = ByMessages(Mailbox { rank, mail: mail.clone() });
            let work = &work;
            scope.spawn(move || work(&communicator))
        };
        let by_mail: Vec<_> = (0..ranks).map(one).collect();
        let one = |at_work: AtWork| {
            let communicator = local.communicator(at_work.rank());
            let work = &work;
            scope.spawn(move || {
                let _at_work = at_work;
                work(&communicator)
            })
        };
        let in_memory: Vec<_> = local.begin().into_iter().map(one).collect();
        let join = |threads: Vec<thread::ScopedJoinHandle<'_, R>>| -> Vec<R> {
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        };
        (join(by_mail), join(in_memory))
    });
    [by_mail, in_memory]
}

/// A tensor before a collective: its element type, and the sizes of a rank's part.
type Tensor = (DType, Vec<usize>);

/// The bytes of a rank's operand: numbers whose sum depends on the order.
fn operand((dtype, sizes): &Tensor, rank: u64) -> Aligned {
    let count: usize = sizes.iter().product();
    let rough = |i: usize| random::normal(3, rank, i as u64) * 10f64.powi((i % 5) as i32);
    let numbers: Vec<f64> = (0..count).map(rough).collect();
    let bytes = match dtype.is_float() {
        true => ir::Tensor::float(*dtype, sizes.clone(), numbers).rounded().to_bytes(),
        false => {
            let integers = numbers.iter().map(|x| (x.abs() * 100.0) as i64 % 50).collect();
            ir::Tensor::int(*dtype, sizes.clone(), integers).to_bytes()
        }
    };
    let mut aligned = Aligned::new(bytes.len());
    aligned.bytes_mut().copy_from_slice(&bytes);
    aligned
}

/// Runs a collective on these tensors, and returns the bytes of the results; the group puts their parts together along dim
/// `gathered` and splits them along `split`.
fn results(
    communicator: &dyn Communicator,
    name: &str,
    group: &[u64],
    tensors: &[Tensor],
    gathered: Option<usize>,
    split: Option<usize>,
) -> Result<Vec<Vec<u8>>, CommError> {
    if !group.contains(&communicator.rank()) {
        return Ok(vec![]);
    }
    let operands: Vec<Aligned> = tensors.iter().map(|tensor| operand(tensor, communicator.rank())).collect();
    let length = |(dtype, sizes): &Tensor| {
        let elements = sizes.iter().product::<usize>() * if gathered.is_some() { group.len() } else { 1 };
        elements / if split.is_some() { group.len() } else { 1 } * dtype.bytes() as usize
    };
    let mut room: Vec<Aligned> = tensors.iter().map(|tensor| Aligned::new(length(tensor))).collect();
    let exchanged = tensors.iter().zip(&operands).zip(&mut room);
    let mut exchanged: Vec<Exchanged> = exchanged
        .map(|(((dtype, sizes), operand), result)| Exchanged {
            dtype: *dtype,
            sizes,
            gathered,
            split,
            operand: operand.bytes(),
            result: result.bytes_mut(),
        })
        .collect();
    match name {
        "sum" => communicator.all_reduce(group, PartialKind::Sum, &mut exchanged)?,
        "max" => communicator.all_reduce(group, PartialKind::Max, &mut exchanged)?,
        "all_gather" => communicator.all_gather(group, &mut exchanged)?,
        "reduce_scatter" => communicator.reduce_scatter(group, PartialKind::Sum, &mut exchanged)?,
        _ => communicator.all_to_all(group, &mut exchanged)?,
    }
    Ok(room.iter().map(|result| result.bytes().to_vec()).collect())
}

/// The ranks of a group, in any order.
fn groups() -> impl Strategy<Value = (u64, Vec<u64>)> {
    let group = |ranks: u64| {
        let members = proptest::sample::subsequence((0..ranks).collect::<Vec<_>>(), 1..=ranks as usize);
        (Just(ranks), members.prop_shuffle())
    };
    (1..5u64).prop_flat_map(group)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn messages_have_the_bits_of_shared_memory(
        (ranks, group) in groups(),
        dtypes in proptest::collection::vec(proptest::sample::select(DType::ALL.to_vec()), 1..3),
        rows in 0..4usize,
        columns in proptest::sample::select(vec![1usize, 3, 900]),
    ) {
        let dims = [None, Some(0), Some(1)];
        let tensor = |dtype: DType| (dtype, vec![rows * group.len(), columns * group.len()]);
        let tensors: Vec<Tensor> = dtypes.into_iter().filter(|dtype| *dtype != DType::Bool).map(tensor).collect();
        let [mail, memory] = both(ranks, |communicator| {
            let run = |name, gathered, split| {
                results(communicator, name, &group, &tensors, gathered, split).unwrap()
            };
            let mut all = vec![run("sum", None, None), run("max", None, None)];
            for dim in dims.into_iter().flatten() {
                all.extend([run("all_gather", Some(dim), None), run("reduce_scatter", None, Some(dim))]);
                all.push(run("all_to_all", Some(dim), Some(1 - dim)));
            }
            all
        });
        prop_assert_eq!(mail, memory);
    }
}

#[test]
fn a_tensor_with_fewer_elements_than_ranks_travels_with_a_large_one() {
    let tensors = [(DType::F32, vec![1]), (DType::F32, vec![SMALL])];
    let [mail, memory] =
        both(4, |communicator| results(communicator, "sum", &[0, 1, 2, 3], &tensors, None, None).unwrap());
    assert_eq!(mail, memory);
}

#[test]
fn ranks_that_issue_different_collectives_are_told_apart() {
    let errors = both(2, |communicator| {
        let name = if communicator.rank() == 0 { "sum" } else { "max" };
        results(communicator, name, &[0, 1], &[(DType::F32, vec![4])], None, None).unwrap_err().to_string()
    });
    let told = "rank 0 issued `all_reduce` (sum) of f32[4], and rank 1 issued `all_reduce` (max) of f32[4]";
    assert_eq!(errors, [vec![told; 2], vec![told; 2]]);
}

#[test]
fn a_message_goes_around_a_ring() {
    let around = both(3, |communicator| {
        let rank = communicator.rank();
        let mut seen = [0; 2];
        if rank > 0 {
            communicator.receive(rank - 1, &mut seen).unwrap();
        }
        let next = [seen[0] + 1, seen[1] + 10];
        communicator.send((rank + 1) % 3, &next).unwrap();
        if rank == 0 {
            communicator.receive(2, &mut seen).unwrap();
        }
        seen
    });
    assert_eq!(around, [vec![[3, 30], [1, 10], [2, 20]], vec![[3, 30], [1, 10], [2, 20]]]);
}
