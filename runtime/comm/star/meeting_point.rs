//! Where the processes of a run meet: an address at which rank 0 listens, or a file in which it writes its address.

use files::Replacement;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// Where the processes of a run meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeetingPoint {
    /// Rank 0 listens here.
    Address(Address),
    /// A file on a disk of all machines. Rank 0 listens at a port that is free, and writes its address to this file.
    File(PathBuf),
}

/// `node0:29501`, or the path of the file.
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
        match text.contains('/') {
            true => Ok(Self::File(text.into())),
            false => text.parse().map(Self::Address),
        }
    }
}

/// An address in a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its name or number in the network.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// `node0:29501`
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// A text is not of the form `HOST:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not of the form HOST:PORT")]
pub struct InvalidAddress;

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let (host, port) = text.rsplit_once(':').ok_or(InvalidAddress)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { host, port: port.parse().map_err(|_| InvalidAddress)? })
    }
}

impl MeetingPoint {
    /// Listens. Returns the address at which other processes find this one, whose machine is `host`.
    pub(super) fn listen(&self, host: &str) -> io::Result<(TcpListener, Address)> {
        let (listener, address) = match self {
            Self::Address(address) => (address.listen()?, address.clone()),
            Self::File(path) => {
                let listener = anywhere(0)?;
                let address = Address { host: host.to_owned(), port: listener.local_addr()?.port() };
                Replacement::write(path, address.to_string().as_bytes())?;
                (listener, address)
            }
        };
        listener.set_nonblocking(true)?;
        Ok((listener, address))
    }

    /// The addresses at which rank 0 may listen, for a process on the machine `host`.
    pub(super) fn find(&self, host: &str) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::Address(address) => address.resolve(),
            Self::File(path) => {
                let wrong = |_| io::Error::new(ErrorKind::InvalidData, "it holds no address");
                let address: Address = std::fs::read_to_string(path)?.parse().map_err(wrong)?;
                // The name of a machine need not lead to it.
                match address.host == host {
                    true => Ok(vec![(Ipv4Addr::LOCALHOST, address.port).into()]),
                    false => address.resolve(),
                }
            }
        }
    }

    /// Removes the file, when all have come.
    pub(super) fn clear(&self) {
        if let Self::File(path) = self {
            // The next run writes another address into it.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Address {
    /// Listens at an address of this machine, or, where a name leads here by way of another machine, at the port.
    fn listen(&self) -> io::Result<TcpListener> {
        let first = *self.resolve()?.first().ok_or(ErrorKind::AddrNotAvailable)?;
        TcpListener::bind(first).or_else(|error| match error.kind() {
            ErrorKind::AddrNotAvailable => anywhere(self.port),
            _ => Err(error),
        })
    }

    fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        Ok((self.host.as_str(), self.port).to_socket_addrs()?.collect())
    }
}

/// Listens at all addresses of this machine, those of IPv6 too where there are any.
fn anywhere(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
}
