//! The reasons why a collective failed.

/// The reason why a collective failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CommError {
    /// Another rank failed first.
    #[error("rank {rank} failed, and therefore all ranks ended")]
    Ended {
        /// The rank that failed.
        rank: u64,
    },
    /// Ranks of one group issued different collectives.
    #[error("rank {} issued {}, and rank {} issued {}", .first.0, .first.1, .second.0, .second.1)]
    Different {
        /// A rank, and the collective that it issued.
        first: (u64, String),
        /// Another rank, and the collective that it issued.
        second: (u64, String),
    },
    /// Every rank that is still at work waits for another rank.
    #[error("no rank can continue: {}", waiting(.0))]
    Stuck(
        /// The number of each waiting rank, and the collective that it issued.
        Vec<(u64, String)>,
    ),
    /// A rank outside the group, or outside the world, issued a collective or a message.
    #[error("rank {rank} is not in the group {group:?}")]
    Outside {
        /// The rank.
        rank: u64,
        /// The group.
        group: Vec<u64>,
    },
    /// The message of a rank cannot be decoded.
    #[error("a rank sent a message that cannot be read: {message}")]
    Message {
        /// The fault in the message.
        message: String,
    },
    /// Ranks did not arrive in time.
    #[error("rank {rank} waited for {seconds} s for the ranks {missing:?}")]
    Late {
        /// The rank that waited.
        rank: u64,
        /// Seconds of the wait.
        seconds: u64,
        /// The ranks that did not arrive.
        missing: Vec<u64>,
    },
    /// A GPU does not answer.
    #[error(
        "the GPU of rank {rank} has not finished a call for {seconds} s: it hangs, or it waits for the GPU of another rank"
    )]
    Stalled {
        /// The rank of the GPU.
        rank: u64,
        /// Seconds of the wait.
        seconds: u64,
    },
    /// The library that carries messages failed.
    #[error("rank {rank} cannot exchange messages: {message}")]
    Transport {
        /// The rank.
        rank: u64,
        /// The reason that the library gives.
        message: String,
    },
    /// A single device was given a program for several.
    #[error("the device runs alone and cannot communicate")]
    Alone,
}

fn waiting(ranks: &[(u64, String)]) -> String {
    let one = |(rank, issued): &(u64, String)| format!("rank {rank} waits in {issued}");
    ranks.iter().map(one).collect::<Vec<_>>().join("; ")
}
