//! Bytes of the memories of a program. Each view is compared with all bytes at once: to compare every view with every other one would take
//! the square of their number.

use program::{Region, View};
use std::collections::HashMap;
use std::ops::Range;

/// Bytes of each region, as ranges in order that do not meet.
pub(super) struct Spans(HashMap<Region, Vec<Range<u64>>>);

impl Spans {
    /// Returns the bytes that views span.
    pub(super) fn of<'v>(views: impl IntoIterator<Item = &'v View>) -> Self {
        let mut spans: HashMap<Region, Vec<Range<u64>>> = HashMap::new();
        for view in views {
            spans.entry(view.region).or_default().push(view.bytes());
        }
        for of_region in spans.values_mut() {
            of_region.sort_unstable_by_key(|bytes| bytes.start);
            of_region.dedup_by(|later, before| {
                let meets = later.start <= before.end;
                before.end = if meets { before.end.max(later.end) } else { before.end };
                meets
            });
        }
        Self(spans)
    }

    /// Whether a view spans some of these bytes.
    pub(super) fn overlap(&self, view: &View) -> bool {
        let bytes = view.bytes();
        let spans = self.0.get(&view.region).map_or(&[][..], Vec::as_slice);
        let next = spans.partition_point(|span| span.end <= bytes.start);
        spans.get(next).is_some_and(|span| span.start < bytes.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::DType;
    use program::layout::Layout;

    /// Returns a view of so many bytes.
    fn view(region: Region, base: u64, bytes: usize) -> View {
        View::whole(region, base, DType::U8, Layout::dense(&[bytes]))
    }

    #[test]
    fn views_overlap_where_they_share_a_byte_of_a_region() {
        let views =
            [(40, 10), (0, 10), (5, 20), (6, 2)].map(|(base, bytes)| view(Region::Arena, base, bytes));
        let spans = Spans::of(&views);
        for (base, bytes, shares) in [
            (0, 1, true),
            (24, 1, true),
            (25, 15, false),
            (25, 16, true),
            (20, 30, true),
            (49, 9, true),
            (50, 9, false),
        ] {
            assert_eq!(spans.overlap(&view(Region::Arena, base, bytes)), shares, "{bytes} bytes from {base}");
        }
        assert!(!spans.overlap(&view(Region::Host, 0, 50)));
    }
}
