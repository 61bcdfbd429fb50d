//! The meeting point of a run's processes: an address at which rank 0 listens, or a file in which it writes its address.

use files::Replacement;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The meeting point of a run's processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeetingPoint {
    /// The address at which rank 0 listens.
    Address(Address),
    /// A file on a disk that all machines share. Rank 0 listens at a free port and writes its address to this file.
    File(PathBuf),
}

/// `node0:29501`, or `the address in /shared/meeting`
impl fmt::Display for MeetingPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::File(path) => write!(f, "the address in {}", ir::visible(&path.to_string_lossy())),
        }
    }
}

/// `HOST:PORT`, or the path of a file, which has a `/`.
impl FromStr for MeetingPoint {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        if text.contains('/') && !text.contains("://") {
            Ok(Self::File(text.into()))
        } else {
            text.parse().map(Self::Address)
        }
    }
}

/// An address in a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The name or number of the machine in the network.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// `node0:29501`
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The error of a text that is not of the form `HOST:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither HOST:PORT nor the path of a file, which has a `/`")]
pub struct InvalidAddress;

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let (host, port) =
            text.rsplit_once(':').filter(|(host, _)| !host.contains('/')).ok_or(InvalidAddress)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { host, port: port.parse().map_err(|_| InvalidAddress)? })
    }
}

impl MeetingPoint {
    /// Starts to listen. Returns the address at which other processes find this one, whose machine is `host`.
    pub(super) fn listen(&self, host: &str) -> io::Result<(TcpListener, Address)> {
        let (listener, address) = match self {
            Self::Address(address) => (address.listen()?, address.clone()),
            Self::File(path) => {
                // A file with other text was not left by an earlier run.
                if let Some(text) = read(path)?.filter(|text| !text.is_empty()) {
                    text.parse::<Address>().map_err(|_| invalid("the file holds something else"))?;
                }
                let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))
                    .or_else(|_| TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)))?;
                let address = Address { host: host.to_owned(), port: listener.local_addr()?.port() };
                Replacement::write(path, address.to_string().as_bytes())?;
                (listener, address)
            }
        };
        listener.set_nonblocking(true)?;
        Ok((listener, address))
    }

    /// Returns the addresses at which rank 0 may listen, for a process on the machine `host`.
    pub(super) fn find(&self, host: &str) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::Address(address) => address.resolve(),
            Self::File(path) => {
                let text = read(path)?.ok_or(ErrorKind::NotFound)?;
                let address: Address = text.parse().map_err(|_| invalid("the file holds no address"))?;
                let resolved = address.resolve().map_err(|error| {
                    io::Error::new(error.kind(), format!("{address}, which the file names: {error}"))
                });
                // A machine's name need not resolve to it, and two machines may have the same name.
                if address.host == host {
                    let own = (Ipv4Addr::LOCALHOST, address.port).into();
                    Ok([own].into_iter().chain(resolved.unwrap_or_default()).collect())
                } else {
                    resolved
                }
            }
        }
    }

    /// Removes the file if it still has this address, when all processes have come.
    pub(super) fn clear(&self, address: &Address) {
        if let Self::File(path) = self
            && read(path).ok().flatten().is_some_and(|text| text == address.to_string())
        {
            // If the file stays, the next run overwrites it with its own address.
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the text of a meeting point's file; `None` if there is no file.
fn read(path: &Path) -> io::Result<Option<String>> {
    /// The largest number of bytes of an address.
    const LONGEST: u64 = 300;
    let mut text = String::new();
    match files::open_regular(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?.take(LONGEST).read_to_string(&mut text)?,
    };
    Ok(Some(text.trim().to_owned()))
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, message)
}

impl Address {
    /// Listens at an address of this machine. If the name belongs to another machine that forwards to this one, listens at the port on all
    /// interfaces.
    fn listen(&self) -> io::Result<TcpListener> {
        let first = *self.resolve()?.first().ok_or(ErrorKind::AddrNotAvailable)?;
        let everywhere: IpAddr =
            if first.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        TcpListener::bind(first).or_else(|error| match error.kind() {
            ErrorKind::AddrNotAvailable => TcpListener::bind((everywhere, self.port)),
            _ => Err(error),
        })
    }

    fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        Ok((self.host.as_str(), self.port).to_socket_addrs()?.collect())
    }
}
