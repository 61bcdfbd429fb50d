//! The text of a timetable: `rank 0: F0.0 F0.1 B0.0 B0.1`, one line per rank.

use super::{ChunkPhase, Dependency, TASK_PHASES, Task, Timetable};
use std::fmt;
use std::str::FromStr;

/// A fault in the text of a timetable or a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimetableTextError {
    /// A word is not a task.
    #[error("`{0}` is not a task; a task is F, B or W, then stage.microbatch, such as `F0.3`")]
    Task(String),
    /// A word of a line is not a task.
    #[error("line {line}: {task}")]
    TaskInLine {
        /// The line, counted from 1.
        line: usize,
        /// The fault of the word.
        task: Box<Self>,
    },
    /// A line does not start with its rank.
    #[error("line {} must start with `rank {rank}:`", rank + 1)]
    Rank {
        /// The rank of the line, counted from 0.
        rank: usize,
    },
}

impl fmt::Display for ChunkPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = TASK_PHASES.iter().find(|(phase, _)| *phase == self.phase);
        // A valid task has no other phase. The checker refuses a task with another phase, and prints it.
        let letter = letter.map_or('?', |(_, letter)| *letter);
        write!(f, "{letter}{}", self.chunk)
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.part, self.microbatch)
    }
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.from, self.to)
    }
}

impl fmt::Display for Timetable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, tasks) in self.ranks.iter().enumerate() {
            write!(f, "rank {rank}:")?;
            tasks.iter().try_for_each(|task| write!(f, " {task}"))?;
            writeln!(f)?;
        }
        Ok(())
    }
}

impl FromStr for Task {
    type Err = TimetableTextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_task(text).ok_or_else(|| TimetableTextError::Task(text.into()))
    }
}

fn parse_task(text: &str) -> Option<Task> {
    let (phase, letter) = *TASK_PHASES.iter().find(|(_, letter)| text.starts_with(*letter))?;
    let (chunk, microbatch) = text.strip_prefix(letter)?.split_once('.')?;
    Some(Task::new(phase, number(chunk)?, number(microbatch)?))
}

/// Parses a number in the form in which it is printed: without a sign or a leading zero, so that each task has exactly one text.
fn number(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

impl FromStr for Timetable {
    type Err = TimetableTextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ranks = text.lines().enumerate().map(|(rank, line)| parse_rank(rank, line));
        Ok(Self { ranks: ranks.collect::<Result<_, _>>()? })
    }
}

fn parse_rank(rank: usize, line: &str) -> Result<Vec<Task>, TimetableTextError> {
    let tasks = line.trim_start().strip_prefix(&format!("rank {rank}:"));
    let tasks = tasks.ok_or(TimetableTextError::Rank { rank })?;
    let located = |task| TimetableTextError::TaskInLine { line: rank + 1, task: Box::new(task) };
    tasks.split_whitespace().map(|word| word.parse().map_err(located)).collect()
}
