//! Whole tensors and the parts of them that ranks have.

use comm::block::{self, Block};
use ir::{Mesh, Type};
use program::device::DeviceError;
use program::layout::Sizes;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// The division of a tensor among the ranks.
pub struct Parts<'a> {
    name: &'a str,
    ty: &'a Type,
    mesh: &'a Mesh,
    whole: Sizes,
    /// The sizes of a part.
    local: Sizes,
}

impl<'a> Parts<'a> {
    /// Returns the parts of a tensor of this type; errors use the name.
    ///
    /// # Errors
    /// The type has no sizes.
    pub fn of(name: &'a str, ty: &'a Type, mesh: &'a Mesh) -> Result<Self, DeviceError> {
        let sizes =
            |sizes: Option<Vec<u64>>| Some(sizes?.into_iter().map(|size| size as usize).collect::<Sizes>());
        // Lowering has refused dims that do not divide.
        let (whole, local) = (sizes(ty.sizes()), sizes(ty.local(mesh)));
        let parts = whole.zip(local).map(|(whole, local)| Self { name, ty, mesh, whole, local });
        parts.ok_or_else(|| size_error(name, ty, 0))
    }

    /// Checks that the number of bytes is that of the whole tensor.
    ///
    /// # Errors
    /// The number of bytes differs.
    pub fn check(&self, bytes: &[u8]) -> Result<(), DeviceError> {
        if self.ty.bytes() == Some(bytes.len() as u64) {
            Ok(())
        } else {
            Err(size_error(self.name, self.ty, bytes.len() as u64))
        }
    }

    fn width(&self) -> usize {
        self.ty.dtype.bytes() as usize
    }

    /// Returns the block of a rank's part.
    fn block(&self, rank: u64) -> Block {
        let spans = self.ty.spans(self.mesh, rank).unwrap_or_default();
        Block { whole: self.whole.clone(), start: spans.iter().map(|span| span.start as usize).collect() }
    }

    /// Returns the place of a rank's part: its first index along each dim, and its sizes.
    pub fn place(&self, rank: u64) -> (Vec<u64>, Vec<u64>) {
        let of = |sizes: &[usize]| sizes.iter().map(|&size| size as u64).collect();
        (of(&self.block(rank).start), of(&self.local))
    }

    /// Returns the bytes of a part.
    pub fn local_bytes(&self) -> u64 {
        (self.local.iter().product::<usize>() * self.width()) as u64
    }

    /// Returns the indices of dim 0 in a rank's part.
    pub fn rows(&self, rank: u64) -> Range<u64> {
        let start = self.block(rank).start.first().map_or(0, |&start| start as u64);
        start..start + self.local.first().map_or(1, |&size| size as u64)
    }

    /// Returns the part of a rank. A tensor that is whole on every rank is not copied.
    pub fn cut<'b>(&self, rank: u64, bytes: &'b [u8]) -> Cow<'b, [u8]> {
        if self.whole == self.local {
            return bytes.into();
        }
        let mut part = vec![0; self.local.iter().product::<usize>() * self.width()];
        let target = Block::all(&self.local);
        block::copy(&self.local, self.width(), (bytes, &self.block(rank)), (&mut part, &target));
        part.into()
    }

    /// Returns the part of a rank, given these rows of dim 0, which include the rows of the part.
    ///
    /// # Errors
    /// The number of bytes is not that of the rows.
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

    /// Returns the first index of a rank's part, and the sizes of the region of the part that lies within the first `sizes` elements of
    /// each dim.
    pub fn within_sizes(&self, rank: u64, sizes: &[u64]) -> (Vec<u64>, Vec<u64>) {
        let start: Vec<u64> = self.block(rank).start.iter().map(|&start| start as u64).collect();
        let kept = |((&local, &start), &size): ((&usize, &u64), &u64)| {
            (local as u64).min(size.saturating_sub(start))
        };
        let kept = self.local.iter().zip(&start).zip(sizes).map(kept).collect();
        (start, kept)
    }

    /// Returns a part that starts with the given elements, which have these sizes, and is zero elsewhere.
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

    /// Returns the elements of a rank's part that lie within the first `sizes` elements of each dim. A part that lies wholly within them is
    /// not copied.
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

    /// Returns the whole tensor, given the parts of all ranks in their order. If several ranks have the same part, the first one is used;
    /// the others are equal.
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
