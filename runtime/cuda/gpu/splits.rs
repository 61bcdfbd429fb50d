//! The groups in which ranks exchange. All ranks split them off in the same order, so a split has the same description on all of them.

use super::nccl::Group;
use crate::program::{CudaProgram, Task};
use ir::{AxisId, Mesh};
use program::Message;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A division of ranks into groups.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Split {
    /// Each stage's ranks along some axes, which are given by their indices.
    Along(Vec<u32>),
    /// For the messages of a channel: the two ranks at the same place in the stages of two pipeline ranks.
    Channel {
        /// The pipeline rank that sends.
        from: u32,
        /// The pipeline rank that receives.
        to: u32,
        /// The channel.
        channel: u32,
    },
}

impl Split {
    /// Returns the splits that a program needs.
    pub(super) fn all(cuda: &CudaProgram) -> BTreeSet<Self> {
        let split = |task: &Task| match task {
            Task::Collective(collective) => {
                Some(Self::Along(collective.axes.iter().map(|axis| axis.as_u32()).collect()))
            }
            Task::Message(placed) => {
                let Message { from, to, channel } = placed.message;
                Some(Self::Channel { from, to, channel })
            }
            Task::Launch(_) | Task::Multiply(_) | Task::Library | Task::Copy(_) | Task::Host | Task::Disk => {
                None
            }
        };
        cuda.sections.iter().flatten().filter_map(|command| split(&command.task)).collect()
    }

    /// Returns the group of a rank, if the split has one for it. Ranks count stage by stage, and `mesh` is the mesh of a stage.
    pub(super) fn group(&self, mesh: &Mesh, rank: u64) -> Option<Group> {
        let (stage, place) = (rank / mesh.devices(), rank % mesh.devices());
        match self {
            Self::Along(axes) => {
                let axes: Vec<AxisId> = axes.iter().map(|&axis| AxisId::from_u32(axis)).collect();
                let ranks = mesh.group(place, &axes).into_iter().map(|member| rank - place + member);
                Some(Group { ranks: ranks.collect(), channel: None })
            }
            Self::Channel { from, to, channel } => {
                let ends = [from, to].map(|end| u64::from(*end));
                let ranks = ends.map(|end| end * mesh.devices() + place).to_vec();
                ends.contains(&stage).then_some(Group { ranks, channel: Some(*channel) })
            }
        }
    }
}
