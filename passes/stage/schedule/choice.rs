//! A schedule in the user's text: `1f1b`, `interleaved:chunks=4`.

use super::Schedule;
use std::fmt;
use std::str::FromStr;

/// A schedule with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScheduleChoice {
    /// The schedule.
    pub schedule: Schedule,
    /// The number of chunks per rank, if the user gave it.
    pub chunks: Option<u32>,
}

impl ScheduleChoice {
    /// Returns the number of chunks per rank.
    pub fn chunks_per_rank(self) -> u32 {
        self.chunks.unwrap_or(self.schedule.default_chunks())
    }
}

impl fmt::Display for ScheduleChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.schedule.name())?;
        self.chunks.map_or(Ok(()), |chunks| write!(f, ":chunks={chunks}"))
    }
}

impl FromStr for ScheduleChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, option) = text.split_once(':').map_or((text, None), |(name, option)| (name, Some(option)));
        let named = Schedule::ALL.into_iter().find(|(_, other)| *other == name);
        let names = || Schedule::ALL.map(|(_, name)| name).join(", ");
        let (schedule, _) =
            named.ok_or_else(|| format!("`{name}` is not a schedule; the schedules are {}", names()))?;
        let chunks = option.map(parse_chunks).transpose()?;
        chunks.map_or(Ok(()), |chunks| schedule.check_chunks(chunks))?;
        Ok(Self { schedule, chunks })
    }
}

fn parse_chunks(option: &str) -> Result<u32, String> {
    let number = option.strip_prefix("chunks=");
    let number = number.and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("`{option}` is not an option of a schedule; `chunks=2` would be"))
}
