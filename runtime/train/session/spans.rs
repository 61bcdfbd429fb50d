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
