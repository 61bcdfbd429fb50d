//! Agreement: small messages that every rank sends to all ranks, so that all ranks decide alike.

use super::{CollectiveKind, CommError, Communicator, Exchanged};
use ir::DType;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// One rank's access to all ranks of a run. All ranks must call the same functions in the same order.
#[derive(Clone)]
pub struct Agreement {
    /// The communicator. `None` if the rank is alone.
    communicator: Option<Arc<dyn Communicator>>,
    ranks: Vec<u64>,
}

impl Agreement {
    /// Makes the only rank of a run.
    pub fn alone() -> Self {
        Self { communicator: None, ranks: vec![0] }
    }

    /// Makes one of `ranks` ranks.
    pub fn of(communicator: Arc<dyn Communicator>, ranks: u64) -> Self {
        Self { communicator: Some(communicator), ranks: (0..ranks).collect() }
    }

    /// Returns the number of this rank.
    pub fn rank(&self) -> u64 {
        self.communicator.as_ref().map_or(0, |communicator| communicator.rank())
    }

    /// Returns the number of ranks.
    pub fn count(&self) -> u64 {
        self.ranks.len() as u64
    }

    /// Whether this rank is rank 0, which alone writes to the terminal and to the files that all ranks share.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Whether this is the only rank.
    pub fn is_alone(&self) -> bool {
        self.communicator.is_none()
    }

    /// Returns whether `own` is true on any rank.
    ///
    /// # Errors
    /// A rank failed.
    pub fn any(&self, own: bool) -> Result<bool, CommError> {
        Ok(self.union(own.into())? != 0)
    }

    /// Returns the bits that are set on any rank.
    ///
    /// # Errors
    /// A rank failed.
    pub fn union(&self, own: u8) -> Result<u8, CommError> {
        Ok(self.all(&[own])?.into_iter().fold(0, |all, bits| all | bits))
    }

    /// Returns the values of all ranks, in the order of the ranks.
    ///
    /// # Errors
    /// A rank failed, or runs another version of this program.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, own: T) -> Result<Vec<T>, CommError> {
        if self.communicator.is_none() {
            return Ok(vec![own]);
        }
        let told = |error: serde_json::Error| CommError::Message { message: error.to_string() };
        let bytes = serde_json::to_vec(&own).map_err(told)?;
        let all = self.gather_bytes(&bytes)?;
        all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(told)).collect()
    }

    /// Returns the bytes of all ranks, in the order of the ranks. Their lengths may differ.
    ///
    /// # Errors
    /// A rank failed.
    pub fn gather_bytes(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        let lengths = self.all(&(own.len() as u64).to_le_bytes())?;
        let (lengths, _) = lengths.as_chunks::<8>();
        let lengths: Vec<usize> = lengths.iter().map(|bytes| u64::from_le_bytes(*bytes) as usize).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if longest == 0 {
            return Ok(vec![vec![]; lengths.len()]);
        }
        let mut padded = own.to_vec();
        padded.resize(longest, 0);
        let all = self.all(&padded)?;
        Ok(all.chunks_exact(longest).zip(lengths).map(|(bytes, length)| bytes[..length].to_vec()).collect())
    }

    /// Concatenates the bytes of all ranks, which have equal lengths.
    fn all(&self, own: &[u8]) -> Result<Vec<u8>, CommError> {
        let Some(communicator) = &self.communicator else { return Ok(own.to_vec()) };
        let mut all = vec![0; own.len() * self.ranks.len()];
        let sizes = [own.len()];
        let tensor = Exchanged {
            dtype: DType::U8,
            sizes: &sizes,
            gathered: Some(0),
            split: None,
            operand: Some(own),
            result: &mut all,
        };
        communicator.collective(CollectiveKind::AllGather, &self.ranks, &mut [tensor])?;
        Ok(all)
    }
}

/// Runs a function on so many ranks that are threads, for tests, and returns the results by rank.
///
/// # Panics
/// The function panics on a rank.
pub fn on_ranks<R: Send>(ranks: u64, work: impl Fn(Agreement) -> R + Sync) -> Vec<R> {
    super::samples::on_threads(ranks, |communicator| work(Agreement::of(communicator, ranks)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_gets_the_values_of_all() {
        for ranks in [1, 2, 5] {
            let gathered = on_ranks(ranks, |agreement| {
                let own = "x".repeat(agreement.rank() as usize);
                (agreement.gather(own).unwrap(), agreement.gather_bytes(&[]).unwrap())
            });
            let expected: Vec<String> = (0..ranks as usize).map(|rank| "x".repeat(rank)).collect();
            assert_eq!(gathered, vec![(expected, vec![vec![]; ranks as usize]); ranks as usize]);
        }
        assert_eq!(Agreement::alone().gather(7).unwrap(), [7]);
    }

    #[test]
    fn a_bit_of_any_rank_is_one_of_all() {
        let unions = on_ranks(3, |agreement| {
            let bits = agreement.union(1 << agreement.rank()).unwrap();
            (bits, agreement.any(agreement.rank() == 2).unwrap(), agreement.any(false).unwrap())
        });
        assert_eq!(unions, [(0b111, true, false); 3]);
    }
}
