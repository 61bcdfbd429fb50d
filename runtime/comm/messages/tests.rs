//! Collectives over messages have the same bits as those of ranks that share memory.

use super::*;
use crate::samples::{Collective, Sample, on_threads};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// The messages from one rank to another, in order.
type Queue = VecDeque<Vec<u8>>;

/// The sender, receiver and channel of a message. Messages of collectives have no channel.
type Route = (u64, u64, Option<u32>);

/// The messages in transit.
#[derive(Default)]
struct Mail {
    boxes: Mutex<BTreeMap<Route, Queue>>,
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
            boxes.entry((self.rank, *to, None)).or_default().push_back(bytes.to_vec());
        }
        self.mail.arrived.notify_all();
        drop(boxes);
        for (from, room) in received {
            let message = self.wait(from, None)?;
            assert_eq!(message.len(), room.len(), "a message has the length of its room");
            room.copy_from_slice(&message);
        }
        Ok(())
    }

    fn post(&self, to: u64, channel: u32, bytes: &[u8]) -> Result<(), CommError> {
        let mut boxes = self.mail.boxes.lock().unwrap();
        boxes.entry((self.rank, to, Some(channel))).or_default().push_back(bytes.to_vec());
        self.mail.arrived.notify_all();
        Ok(())
    }

    fn take(&self, from: u64, channel: u32, room: &mut [u8]) -> Result<usize, CommError> {
        let message = self.wait(from, Some(channel))?;
        room[..message.len()].copy_from_slice(&message);
        Ok(message.len())
    }
}

impl Mailbox {
    /// Waits for a message.
    fn wait(&self, from: u64, channel: Option<u32>) -> Result<Vec<u8>, CommError> {
        let mut boxes = self.mail.boxes.lock().unwrap();
        loop {
            if let Some(message) = boxes.entry((from, self.rank, channel)).or_default().pop_front() {
                return Ok(message);
            }
            let (next, timeout) = self.mail.arrived.wait_timeout(boxes, Duration::from_secs(10)).unwrap();
            boxes = next;
            if timeout.timed_out() {
                return Err(CommError::Late { rank: self.rank, seconds: 10, missing: vec![from] });
            }
        }
    }
}

/// Returns the results of a function on ranks that exchange messages, and on ranks that share memory.
fn both<R: Send>(ranks: u64, work: impl Fn(&dyn Communicator) -> R + Sync) -> [Vec<R>; 2] {
    let mail = Arc::new(Mail::default());
    let by_mail = thread::scope(|scope| {
        let one = |rank| {
            let communicator = ByMessages(Mailbox { rank, mail: mail.clone() });
            let work = &work;
            scope.spawn(move || work(&communicator))
        };
        let threads: Vec<_> = (0..ranks).map(one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    [by_mail, on_threads(ranks, |thread| work(&*thread))]
}

/// Runs one collective on these tensors with all ranks of a group.
fn run(
    communicator: &dyn Communicator,
    collective: Collective,
    group: &[u64],
    tensors: &[(DType, Vec<usize>)],
) -> Result<Vec<Vec<u8>>, CommError> {
    Sample { collective, group: group.to_vec(), tensors: tensors.to_vec() }.run(communicator)
}

/// Returns groups of ranks, in any order.
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
        let tensor = |dtype: DType| (dtype, vec![rows * group.len(), columns * group.len()]);
        let tensors: Vec<_> = dtypes.into_iter().filter(|dtype| *dtype != DType::Bool).map(tensor).collect();
        let [mail, memory] = both(ranks, |communicator| {
            let run = |collective| run(communicator, collective, &group, &tensors).unwrap();
            Collective::ALL.map(run)
        });
        prop_assert_eq!(mail, memory);
    }
}

#[test]
fn a_tensor_with_fewer_elements_than_ranks_travels_with_a_large_one() {
    let tensors = [(DType::F32, vec![1]), (DType::F32, vec![SMALL])];
    let [mail, memory] =
        both(4, |communicator| run(communicator, Collective::Sum, &[0, 1, 2, 3], &tensors).unwrap());
    assert_eq!(mail, memory);
}

#[test]
fn ranks_that_issue_different_collectives_are_told_apart() {
    let errors = both(2, |communicator| {
        let collective = if communicator.rank() == 0 { Collective::Sum } else { Collective::Max };
        run(communicator, collective, &[0, 1], &[(DType::F32, vec![4])]).unwrap_err().to_string()
    });
    let told = "rank 0 issued `all_reduce` (sum) of f32[4] among the ranks [0, 1], \
        and rank 1 issued `all_reduce` (max) of f32[4] among the ranks [0, 1]";
    assert_eq!(errors, [vec![told; 2], vec![told; 2]]);
}

#[test]
fn ranks_that_list_a_group_in_different_orders_are_told_apart() {
    let group = |rank| if rank == 0 { [0, 1] } else { [1, 0] };
    let [mail, _] = both(2, |communicator| {
        let group = group(communicator.rank());
        run(communicator, Collective::Gather(0), &group, &[(DType::F32, vec![4])]).unwrap_err().to_string()
    });
    let told = "rank 0 issued `all_gather` of f32[4] gathered along 0 among the ranks [0, 1], \
        and rank 1 issued `all_gather` of f32[4] gathered along 0 among the ranks [1, 0]";
    assert_eq!(mail, [told; 2]);
}

#[test]
fn a_message_of_another_length_than_its_room_is_refused() {
    let mail = both(2, |communicator| match communicator.rank() {
        0 => communicator.send(1, 0, &[0; 3]).err(),
        _ => communicator.receive(0, 0, &mut [0; 4]).err(),
    });
    let told = "rank 0 issued `send` of u8[3] among the ranks [0, 1], \
        and rank 1 issued `send` of u8[4] among the ranks [0, 1]";
    for receiver in mail.map(|errors| errors[1].clone()) {
        assert_eq!(receiver.unwrap().to_string(), told);
    }
}

#[test]
fn messages_wait_for_their_receiver_and_channels_cross() {
    let got = both(2, |communicator| {
        let mut all = vec![];
        match communicator.rank() {
            0 => (0..20).for_each(|number| communicator.send(1, u32::from(number) % 2, &[number]).unwrap()),
            _ => {
                for channel in [1, 0] {
                    for _ in 0..10 {
                        let mut one = [0];
                        communicator.receive(0, channel, &mut one).unwrap();
                        all.push(one[0]);
                    }
                }
            }
        }
        all
    });
    let expected: Vec<u8> =
        (0..20).filter(|number| number % 2 == 1).chain((0..20).filter(|n| n % 2 == 0)).collect();
    assert_eq!(got, [vec![vec![], expected.clone()], vec![vec![], expected]]);
}

#[test]
fn a_message_goes_around_a_ring() {
    let around = both(3, |communicator| {
        let rank = communicator.rank();
        let mut seen = [0; 2];
        if rank > 0 {
            communicator.receive(rank - 1, 0, &mut seen).unwrap();
        }
        let next = [seen[0] + 1, seen[1] + 10];
        communicator.send((rank + 1) % 3, 0, &next).unwrap();
        if rank == 0 {
            communicator.receive(2, 0, &mut seen).unwrap();
        }
        seen
    });
    assert_eq!(around, [vec![[3, 30], [1, 10], [2, 20]], vec![[3, 30], [1, 10], [2, 20]]]);
}
