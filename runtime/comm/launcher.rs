//! Launchers: torchrun, Slurm, Open MPI, MPICH and Kubernetes jobs start the processes of a run. This module reads the rank of this process
//! and the number of processes from the launcher's environment variables. `meeting_point` reads the address at which the processes meet.

mod meeting_point;

use ir::Diagnostic;
use std::fmt;

/// A program that starts the processes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `torchrun`, and PyTorchJob of Kubernetes, which sets the same variables for each pod.
    Torchrun,
    /// `srun`.
    Slurm,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpiexec` of MPICH, or another one that speaks PMI.
    Mpich,
}

/// `mpirun of Open MPI`
impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torchrun => "torchrun",
            Self::Slurm => "srun",
            Self::OpenMpi => "mpirun of Open MPI",
            Self::Mpich => "mpiexec of MPICH",
        })
    }
}

/// The rank of this process in a run of several processes, and the number of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// The program that started it.
    pub launcher: Launcher,
    /// The rank of this process.
    pub rank: u64,
    /// The number of processes.
    pub ranks: u64,
    /// The rank of this process on its node, if the launcher gives it.
    pub local_rank: Option<u64>,
    /// The number of processes on its node, if the launcher gives it.
    pub local_ranks: Option<u64>,
}

/// The variables that a launcher sets.
struct Variables {
    launcher: Launcher,
    /// The rank, the number of processes, and both on the node of this process.
    names: [&'static str; 4],
    /// A further variable that must be set.
    beside: Option<&'static str>,
    /// A variable that, if it is set, must equal that of the number of processes. If it differs, another launcher inside the step started
    /// this process.
    agrees: Option<&'static str>,
}

/// The variables of MPICH's `mpiexec` and of others that speak PMI.
const PMI: Variables = Variables {
    launcher: Launcher::Mpich,
    names: ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
    beside: None,
    agrees: None,
};

/// The launchers, in the order in which their variables are looked for: torchrun and `mpirun` may run inside a Slurm job.
const LAUNCHERS: [Variables; 5] = [
    Variables {
        launcher: Launcher::Torchrun,
        names: ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
        beside: Some("MASTER_ADDR"),
        agrees: None,
    },
    Variables {
        launcher: Launcher::OpenMpi,
        names: [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ],
        beside: None,
        agrees: None,
    },
    Variables { beside: Some("MPI_LOCALNRANKS"), ..PMI },
    // A batch script itself is process 0 of as many as were asked for; `srun` alone sets the number of the step. With `--mpi=pmi2`, `srun`
    // sets the variables of PMI as well. An `mpiexec` inside a step has a number of processes of its own.
    Variables {
        launcher: Launcher::Slurm,
        names: ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"],
        beside: Some("SLURM_STEP_ID"),
        agrees: Some("PMI_SIZE"),
    },
    PMI,
];

impl Launched {
    /// The place of this process, from the environment. `None` if no launcher started it, or as the only process.
    ///
    /// # Errors
    /// A variable of a launcher that is no number; a rank that is not below the number of processes.
    pub fn of_process() -> Result<Option<Self>, Diagnostic> {
        Self::of(|name| std::env::var(name).ok())
    }

    /// As [`Self::of_process`], from the values of variables.
    fn of(value: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Diagnostic> {
        let is_set = |variables: &&Variables| {
            let [rank, ranks, ..] = variables.names;
            let agrees = |name| value(name).is_none_or(|size| Some(size) == value(ranks));
            value(rank).is_some()
                && variables.beside.is_none_or(|name| value(name).is_some())
                && variables.agrees.is_none_or(agrees)
        };
        let Some(variables) = LAUNCHERS.iter().find(is_set) else { return Ok(None) };
        let number = |name: &str| {
            let Some(text) = value(name) else { return Ok(None) };
            let error = || {
                let message =
                    format!("the environment variable {name} of {} is `{text}`", variables.launcher);
                Diagnostic::new(message).note("it must be a number")
            };
            // Slurm writes `4(x2)` for two nodes of four tasks each.
            let digits = text.split(['(', ',']).next().unwrap_or_default();
            digits.parse::<u64>().map(Some).map_err(|_| error())
        };
        let [of_rank, of_ranks, local_rank, local_ranks] = variables.names;
        let missing = |name: &str| {
            Diagnostic::new(format!("{} set {of_rank} and not {name}", variables.launcher))
                .note("both are needed: the rank of this process, and the number of processes")
        };
        let rank = number(of_rank)?.ok_or_else(|| missing(of_rank))?;
        let ranks = number(of_ranks)?.ok_or_else(|| missing(of_ranks))?;
        if rank >= ranks {
            let message = format!("{of_rank}={rank} is not below {of_ranks}={ranks}");
            return Err(Diagnostic::new(message).note("ranks are numbered from 0"));
        }
        let (local_rank, local_ranks) = (number(local_rank)?, number(local_ranks)?);
        let launched = Self { launcher: variables.launcher, rank, ranks, local_rank, local_ranks };
        Ok(Some(launched).filter(|launched| launched.ranks > 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place that an environment gives: variables and values, separated by spaces.
    fn place(environment: &str) -> Result<Option<Launched>, String> {
        let value = |name: &str| {
            let pairs = environment.split_whitespace().filter_map(|pair| pair.split_once('='));
            pairs.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next()
        };
        Launched::of(value).map_err(|error| error.message)
    }

    #[test]
    fn each_launcher_is_read_from_its_own_variables() {
        let environments = [
            (
                Launcher::Torchrun,
                "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=node0 MASTER_PORT=29500 \
                 TORCHELASTIC_RESTART_COUNT=0",
            ),
            (
                Launcher::Slurm,
                "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=4(x2) \
                 SLURM_STEP_ID=0 SLURM_NTASKS=8",
            ),
            (
                Launcher::OpenMpi,
                "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                 OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_RANK=5",
            ),
            // `srun --mpi=pmi2` of Slurm 22.05.
            (
                Launcher::Slurm,
                "PMI_RANK=5 PMI_SIZE=8 PMI_FD=13 PMI_JOBID=2.0 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_STEP_ID=0 \
                 SLURM_STEP_NUM_TASKS=8 SLURM_STEP_TASKS_PER_NODE=4(x2)",
            ),
            (Launcher::Mpich, "PMI_RANK=5 PMI_SIZE=8 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4 PMI_FD=9"),
        ];
        for (launcher, environment) in environments {
            let expected =
                Launched { launcher, rank: 5, ranks: 8, local_rank: Some(1), local_ranks: Some(4) };
            assert_eq!(place(environment), Ok(Some(expected)), "{launcher}");
        }
        // A pod of a PyTorchJob.
        let pod = place("RANK=1 WORLD_SIZE=2 MASTER_ADDR=job-master-0 MASTER_PORT=23456");
        let (launcher, local) = (Launcher::Torchrun, None);
        let expected = Launched { launcher, rank: 1, ranks: 2, local_rank: local, local_ranks: local };
        assert_eq!(pod, Ok(Some(expected)));
    }

    #[test]
    fn mpirun_inside_a_job_of_slurm_is_the_launcher() {
        let inside = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 SLURM_PROCID=0 SLURM_STEP_ID=0 \
                      SLURM_STEP_NUM_TASKS=1";
        assert_eq!(place(inside).unwrap().map(|place| place.launcher), Some(Launcher::OpenMpi));
        for inside in [
            "PMI_RANK=1 PMI_SIZE=2 SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1",
            "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALNRANKS=1 SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2",
        ] {
            let place = place(inside).unwrap().map(|place| (place.launcher, place.rank));
            assert_eq!(place, Some((Launcher::Mpich, 1)), "{inside}");
        }
    }

    #[test]
    fn a_process_that_is_alone_has_no_launcher() {
        // A batch script of Slurm, a notebook on a cluster, and a job of one process.
        for environment in [
            "",
            "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=7",
            "RANK=0 HOME=/root",
            "RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost",
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1",
        ] {
            assert_eq!(place(environment), Ok(None), "{environment}");
        }
    }

    #[test]
    fn variables_that_make_no_sense_are_refused_by_name() {
        for (environment, told) in [
            ("PMI_RANK=x PMI_SIZE=2", "the environment variable PMI_RANK of mpiexec of MPICH is `x`"),
            ("PMI_RANK=2 PMI_SIZE=2", "PMI_RANK=2 is not below PMI_SIZE=2"),
            ("RANK=0 MASTER_ADDR=a", "torchrun set RANK and not WORLD_SIZE"),
        ] {
            assert_eq!(place(environment), Err(told.to_owned()));
        }
    }
}
