//! Numbers of bytes, for each memory.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::super::value::{ValueError, serialize_as_text};

/// A number of bytes, above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget(pub u64);

/// The units, the largest first.
const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

impl Budget {
    /// The smallest budget of at least so many bytes that is short to write: at most 0.1 % larger.
    pub fn rounded_up(self) -> Self {
        let unit = UNITS.iter().map(|(_, unit)| *unit).filter(|unit| unit.is_power_of_two());
        let unit = unit.filter(|unit| self.0 / 1000 >= *unit).max().unwrap_or(1);
        Self(self.0.div_ceil(unit).saturating_mul(unit))
    }
}

impl FromStr for Budget {
    type Err = ValueError;

    /// `6GiB`, `1.5 GB`, `800MB`.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let split = text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len());
        let (number, unit) = (text[..split].trim(), &text[split..]);
        let unit = UNITS.iter().find(|(name, _)| *name == unit);
        let number = number.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
        let bytes = number.zip(unit).map(|(number, (_, unit))| number * *unit as f64);
        match bytes.filter(|bytes| (1.0..u64::MAX as f64).contains(bytes)) {
            Some(bytes) => Ok(Self(bytes as u64)),
            None => {
                let units: Vec<&str> = UNITS.iter().map(|(name, _)| *name).collect();
                let message = format!(
                    "`{text}` is not a number of bytes, such as 6GiB; units are {}",
                    units.join(", ")
                );
                Err(ValueError::new(message))
            }
        }
    }
}

impl fmt::Display for Budget {
    /// The largest unit that divides the number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, unit) = UNITS.iter().find(|(_, unit)| self.0.is_multiple_of(*unit)).unwrap_or(&("B", 1));
        write!(f, "{}{name}", self.0 / unit)
    }
}

serialize_as_text!(Budget, Budgets);

/// The bytes of each memory that a run may take on each rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    /// On the device; `None`: as many as it has.
    pub device: Option<Budget>,
    /// On the host, for values that rest there or are computed there; `None`: as many as it has.
    pub host: Option<Budget>,
    /// In a file; `None`: nothing rests in one.
    pub disk: Option<DiskBudget>,
}

/// A folder for a file of values, and the bytes that the file may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskBudget {
    /// The folder.
    pub folder: PathBuf,
    /// The bytes; `None`: as many as are free.
    pub bytes: Option<Budget>,
}

impl FromStr for DiskBudget {
    type Err = ValueError;

    /// `DIR` or `DIR:500GB`.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (folder, bytes) = match text.rsplit_once(':') {
            Some((folder, bytes)) => (folder, Some(bytes.parse()?)),
            None => (text, None),
        };
        if folder.is_empty() {
            Err(ValueError::new("disk= needs a folder".to_string()))
        } else {
            Ok(Self { folder: folder.into(), bytes })
        }
    }
}

impl FromStr for Budgets {
    type Err = ValueError;

    /// `6GiB`, or `device=6GiB,host=40GiB,disk=/scratch:500GB`, each of them at most once.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mut budgets = Self::default();
        if !text.contains('=') {
            budgets.device = Some(text.parse()?);
            return Ok(budgets);
        }
        for part in text.split(',') {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let before = match name.trim() {
                "device" => budgets.device.replace(value.parse()?).is_some(),
                "host" => budgets.host.replace(value.parse()?).is_some(),
                "disk" => budgets.disk.replace(value.parse()?).is_some(),
                name => {
                    let message = format!("`{name}` is not a memory; the memories are device, host and disk");
                    return Err(ValueError::new(message));
                }
            };
            if before {
                return Err(ValueError::new(format!("{} is given twice", name.trim())));
            }
        }
        Ok(budgets)
    }
}

impl fmt::Display for Budgets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disk = self.disk.as_ref().map(|DiskBudget { folder, bytes }| {
            let bytes = bytes.map_or(String::new(), |bytes| format!(":{bytes}"));
            format!("disk={}{bytes}", folder.display())
        });
        let host = self.host.map(|bytes| format!("host={bytes}"));
        let device = self.device.map(|bytes| format!("device={bytes}"));
        if let (Some(bytes), None, None) = (self.device, &host, &disk) {
            return write!(f, "{bytes}");
        }
        f.write_str(&device.into_iter().chain(host).chain(disk).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_read_and_written() {
        let read = |text: &str| text.parse::<Budget>().map(|budget| budget.0);
        assert_eq!(read("6GiB"), Ok(6 << 30));
        assert_eq!(read("1.5 GB"), Ok(1_500_000_000));
        assert_eq!(Budget(6 << 30).to_string(), "6GiB");
        assert_eq!(Budget(6001).to_string(), "6001B");
        assert_eq!(Budget(3_930_000_001).rounded_up().to_string(), "3748MiB");
        assert_eq!(Budget(700_001).rounded_up().to_string(), "700001B");
        for text in ["6", "GiB", "-1GiB", "0GiB", "6gib", "nanGiB", "1e300GiB"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn budgets_of_all_memories_are_read_and_written() {
        let read = |text: &str| text.parse::<Budgets>();
        for text in
            ["6GiB", "host=4GiB", "device=1GiB,host=4GiB,disk=/scratch:500GiB", "device=1GiB,disk=/a b/c"]
        {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        assert_eq!(read("device=6GiB").unwrap(), read("6GiB").unwrap());
        for text in ["device=1GiB,device=2GiB", "disk=", "gpu=1GiB", "host", "disk=/a:b"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
