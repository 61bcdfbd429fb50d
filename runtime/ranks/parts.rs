//! Whole tensors and the parts that ranks hold of them.

use crate::comm::block::{self, Block};
use crate::device::DeviceError;
use crate::layout::Sizes;
use ir::{Mesh, Type};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// How a tensor lies over the ranks.
pub struct Parts<'a> {
    name: &'a str,
    ty: &'a Type,
    mesh: &'a Mesh,
    whole: Sizes,
    /// Sizes of a part.
    local: Sizes,
}

impl<'a> Parts<'a> {
    /// The parts of a tensor of this type, which errors call by a name.
    ///
    /// # Errors
    /// A type without sizes.
    pub fn of(name: &'a str, ty: &'a Type, mesh: &'a Mesh) -> Result<Self, DeviceError> {
        let sizes =
            |sizes: Option<Vec<u64>>| Some(sizes?.into_iter().map(|size| size as usize).collect::<Sizes>());
        // Lowering has refused what does not divide.
        let (whole, local) = (sizes(ty.sizes()), sizes(ty.local(mesh)));
        let parts = whole.zip(local).map(|(whole, local)| Self { name, ty, mesh, whole, local });
        parts.ok_or_else(|| size_error(name, ty, 0))
    }

    /// Checks that these are the bytes of the whole tensor.
    ///
    /// # Errors
    /// Another number of bytes.
    pub fn check(&self, bytes: &[u8]) -> Result<(), DeviceError> {
        match self.ty.bytes() == Some(bytes.len() as u64) {
            true => Ok(()),
            false => Err(size_error(self.name, self.ty, bytes.len() as u64)),
        }
    }

    fn width(&self) -> usize {
        self.ty.dtype.bytes() as usize
    }

    /// Where the part of a rank lies.
    fn block(&self, rank: u64) -> Block {
        let spans = self.ty.spans(self.mesh, rank).unwrap_or_default();
        Block { whole: self.whole.clone(), start: spans.iter().map(|span| span.start as usize).collect() }
    }

    /// Where the part of a rank lies: its first index along each dim, and its sizes.
    pub fn place(&self, rank: u64) -> (Vec<u64>, Vec<u64>) {
        let of = |sizes: &[usize]| sizes.iter().map(|&size| size as u64).collect();
        (of(&self.block(rank).start), of(&self.local))
    }

    /// Bytes of a part.
    pub fn local_bytes(&self) -> u64 {
        (self.local.iter().product::<usize>() * self.width()) as u64
    }

    /// The indices of dim 0 that the part of a rank has.
    pub fn rows(&self, rank: u64) -> Range<u64> {
        let start = self.block(rank).start.first().map_or(0, |&start| start as u64);
        start..start + self.local.first().map_or(1, |&size| size as u64)
    }

    /// The part of a rank; what is whole on every rank is not copied.
    pub fn cut<'b>(&self, rank: u64, bytes: &'b [u8]) -> Cow<'b, [u8]> {
        if self.whole == self.local {
            return bytes.into();
        }
        let mut part = vec![0; self.local.iter().product::<usize>() * self.width()];
        let target = Block::all(&self.local);
        block::copy(&self.local, self.width(), (bytes, &self.block(rank)), (&mut part, &target));
        part.into()
    }

    /// The part of a rank, given these rows of dim 0, among which are those of the part.
    ///
    /// # Errors
    /// Another number of bytes than the rows have.
    pub fn cut_of_rows<'b>(
        &self,
        rank: u64,
        bytes: &'b [u8],
        rows: Range<u64>,
    ) -> Result<Cow<'b, [u8]>, DeviceError> {
        let mut given = self.whole.clone();
        let mut block = self.block(rank);
        if let (Some(size), Some(start)) = (given.first_mut(), block.start.first_mut()) {
            *size = (rows.end - rows.start) as usize;
            *start -= rows.start as usize;
        }
        if bytes.len() != given.iter().product::<usize>() * self.width() {
            return Err(size_error(self.name, self.ty, bytes.len() as u64));
        }
        if given == self.local {
            return Ok(bytes.into());
        }
        block.whole = given;
        let mut part = vec![0; self.local.iter().product::<usize>() * self.width()];
        let target = Block::all(&self.local);
        block::copy(&self.local, self.width(), (bytes, &block), (&mut part, &target));
        Ok(part.into())
    }

    /// The first index of a rank's part, and the sizes of its elements that lie within the first elements of each dim, as many
    /// as these sizes say.
    pub fn within_sizes(&self, rank: u64, sizes: &[u64]) -> (Vec<u64>, Vec<u64>) {
        let start: Vec<u64> = self.block(rank).start.iter().map(|&start| start as u64).collect();
        let kept = |((&local, &start), &size): ((&usize, &u64), &u64)| {
            (local as u64).min(size.saturating_sub(start))
        };
        let kept = self.local.iter().zip(&start).zip(sizes).map(kept).collect();
        (start, kept)
    }

    /// A part of which these are the first elements of each dim, as many as the sizes say; the others are zeros.
    pub fn padded(&self, inner: &[u8], sizes: &[u64]) -> Vec<u8> {
        let sizes: Sizes = sizes.iter().map(|&size| size as usize).collect();
        if sizes == self.local {
            return inner.to_vec();
        }
        let mut part = vec![0; self.local_bytes() as usize];
        let (source, target) = (Block::all(&sizes), Block::all(&self.local));
        block::copy(&sizes, self.width(), (inner, &source), (&mut part, &target));
        part
    }

    /// The elements of a rank's part that lie within the first elements of each dim, as many as these sizes say. A part that lies
    /// within them whole is not copied.
    pub fn within<'b>(&self, rank: u64, part: Cow<'b, [u8]>, sizes: &[u64]) -> Cow<'b, [u8]> {
        let kept: Sizes = self.within_sizes(rank, sizes).1.into_iter().map(|size| size as usize).collect();
        if kept == self.local {
            return part;
        }
        let mut inner = vec![0; kept.iter().product::<usize>() * self.width()];
        let (source, target) = (Block::all(&self.local), Block::all(&kept));
        block::copy(&kept, self.width(), (&part, &source), (&mut inner, &target));
        inner.into()
    }

    /// The tensor, given the parts of all ranks in their order. Of parts that several ranks have, the first counts; the
    /// others are the same.
    pub fn together<'b>(
        &self,
        parts: impl Iterator<Item = Result<Cow<'b, [u8]>, DeviceError>>,
    ) -> Result<Cow<'b, [u8]>, DeviceError> {
        let mut parts = parts.enumerate();
        let mut seen: BTreeMap<Sizes, Cow<'b, [u8]>> = BTreeMap::new();
        let mut whole =
            vec![0; if self.whole == self.local { 0 } else { self.ty.bytes().unwrap_or(0) as usize }];
        parts.try_for_each(|(rank, part)| {
            let (part, block) = (part?, self.block(rank as u64));
            if let Some(first) = seen.get(&block.start) {
                debug_assert!(
                    *first == part,
                    "replicas of `{}` differ between ranks, for example on rank {rank}",
                    self.name
                );
                return Ok(());
            }
            if self.whole != self.local {
                let source = Block::all(&self.local);
                block::copy(&self.local, self.width(), (&part, &source), (&mut whole, &block));
            }
            seen.insert(block.start, part);
            Ok::<_, DeviceError>(())
        })?;
        let first = seen.into_values().next();
        Ok(first.filter(|_| self.whole == self.local).unwrap_or(Cow::Owned(whole)))
    }
}

fn size_error(name: &str, ty: &Type, given: u64) -> DeviceError {
    let taken = ty.bytes().unwrap_or(u64::MAX);
    DeviceError::Size { name: name.into(), ty: Box::new(ty.clone()), taken, given }
}
