//! The meeting point of processes without MPI, from the environment.

use super::Launched;
use crate::star::meeting_point::{Address, MeetingPoint};
use ir::Diagnostic;

/// The variable that names the meeting point, if the launcher's own variables do not lead to it.
const VARIABLE: &str = "TRAINYARD_RENDEZVOUS";

/// The port if no variable names one. The port before it is the default of torchrun, whose agent listens there.
const PORT: u16 = 29_501;

impl Launched {
    /// Returns the meeting point: `TRAINYARD_RENDEZVOUS=HOST:PORT` or the path of a file; else the host `MASTER_ADDR`, at the port after
    /// `MASTER_PORT`; else this machine, if all processes are here.
    ///
    /// # Errors
    /// Variables that make no sense; processes on several machines without an address.
    pub fn meeting_point(&self) -> Result<MeetingPoint, Diagnostic> {
        of(self, |name| std::env::var(name).ok())
    }
}

fn of(launched: &Launched, value: impl Fn(&str) -> Option<String>) -> Result<MeetingPoint, Diagnostic> {
    if let Some(text) = value(VARIABLE) {
        let wrong = |error| Diagnostic::new(format!("{VARIABLE}={text} is {error}"));
        return text.parse().map_err(wrong);
    }
    let port = match value("MASTER_PORT") {
        None => PORT,
        Some(text) => text.parse::<u16>().ok().and_then(|port| port.checked_add(1)).ok_or_else(|| {
            Diagnostic::new(format!("MASTER_PORT={text} is not a port"))
                .note("rank 0 listens at the port after it")
        })?,
    };
    match value("MASTER_ADDR") {
        Some(host) => Ok(MeetingPoint::Address(Address { host, port })),
        None if launched.local_ranks == Some(launched.ranks) => {
            Ok(MeetingPoint::Address(Address { host: "127.0.0.1".into(), port }))
        }
        None => {
            let message = format!(
                "{} started {} processes, perhaps on several machines, and no variable names the machine of rank 0",
                launched.launcher, launched.ranks
            );
            Err(Diagnostic::new(message)
                .note(format!("set {VARIABLE}=HOST:PORT, or the path of a file that all machines see, or MASTER_ADDR and MASTER_PORT")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::Launcher;

    /// The address that an environment gives, for two processes on one machine, or perhaps on two.
    fn address(environment: &str, local_ranks: Option<u64>) -> Result<String, String> {
        let value = |name: &str| {
            let pairs = environment.split_whitespace().filter_map(|pair| pair.split_once('='));
            pairs.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next()
        };
        let launched =
            Launched { launcher: Launcher::Slurm, rank: 0, ranks: 2, local_rank: Some(0), local_ranks };
        of(&launched, value).map(|address| address.to_string()).map_err(|error| error.message)
    }

    #[test]
    fn the_port_after_the_launchers_is_used_unless_a_variable_names_another() {
        let torchrun = "MASTER_ADDR=node0 MASTER_PORT=29400";
        assert_eq!(address(torchrun, Some(1)), Ok("node0:29401".into()));
        let both = format!("{torchrun} TRAINYARD_RENDEZVOUS=[fe80::1]:7000");
        assert_eq!(address(&both, Some(1)), Ok("[fe80::1]:7000".into()));
        assert_eq!(address("", Some(2)), Ok("127.0.0.1:29501".into()));
        let file = format!("{torchrun} TRAINYARD_RENDEZVOUS=/shared/meeting");
        assert_eq!(address(&file, Some(1)), Ok("the address in /shared/meeting".into()));
        let error = address("", None).unwrap_err();
        assert!(error.contains("no variable names the machine of rank 0"), "{error}");
        for wrong in [
            "TRAINYARD_RENDEZVOUS=node0",
            "TRAINYARD_RENDEZVOUS=a:b",
            "TRAINYARD_RENDEZVOUS=tcp://node0:7000",
            "MASTER_PORT=65535",
        ] {
            assert!(address(wrong, Some(2)).is_err(), "{wrong}");
        }
    }
}
