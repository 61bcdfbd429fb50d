//! A message on a connection: its kind, its length, and its bytes.

use std::io::{self, Read, Write};

/// The meaning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The process lives.
    Beat = 0,
    /// Bytes of one rank, or of all ranks.
    Message = 1,
    /// The process has done its work and sends no more messages.
    Done = 2,
    /// The rank with the number in the bytes failed, and the run ends.
    Failed = 3,
}

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) bytes: Vec<u8>,
}

/// The largest number of bytes of a message. A greater length comes from another program that found the port.
const LARGEST: u64 = 1 << 30;

/// The number of bytes allocated at once, so that a false length takes no memory.
const CHUNK: u64 = 1 << 20;

/// Writes a message.
pub(super) fn write(to: &mut impl Write, kind: Kind, bytes: &[u8]) -> io::Result<()> {
    let mut frame = vec![kind as u8];
    frame.extend((bytes.len() as u64).to_le_bytes());
    frame.extend(bytes);
    to.write_all(&frame)
}

/// Reads a message.
pub(super) fn read(from: &mut impl Read) -> io::Result<Frame> {
    let mut head = [0; 9];
    from.read_exact(&mut head)?;
    let [kind, length @ ..] = head;
    let kind = match kind {
        0 => Kind::Beat,
        1 => Kind::Message,
        2 => Kind::Done,
        3 => Kind::Failed,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "an unknown kind of message")),
    };
    let mut left = u64::from_le_bytes(length);
    if left > LARGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is too long"));
    }
    let mut bytes = vec![];
    while left > 0 {
        let (start, now) = (bytes.len(), left.min(CHUNK));
        bytes.resize(start + now as usize, 0);
        from.read_exact(&mut bytes[start..])?;
        left -= now;
    }
    Ok(Frame { kind, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        for (kind, length) in
            [(Kind::Beat, 0), (Kind::Message, 3_000_000), (Kind::Done, 0), (Kind::Failed, 8)]
        {
            let bytes: Vec<u8> = (0..length).map(|index| index as u8).collect();
            let mut written = vec![];
            write(&mut written, kind, &bytes).unwrap();
            assert_eq!(read(&mut &*written).unwrap(), Frame { kind, bytes });
        }
    }

    #[test]
    fn bytes_of_another_program_are_refused() {
        let lengths = [[4, 0, 0, 0, 0, 0, 0, 0, 0], [1, 255, 255, 255, 255, 255, 255, 255, 255]];
        for head in lengths {
            assert_eq!(read(&mut &head[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        assert_eq!(read(&mut &b"GET / HTTP/1.1"[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read(&mut &[1, 9, 0][..]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
