//! The memory plan: where in one arena each buffer lies, so that buffers alive together never share a byte.
//!
//! Placing intervals of given sizes in the least space is dynamic storage allocation (NP-hard; Garey and Johnson,
//! problem SR2). `search` looks for an order in which best fit does well. `sweep` and `skyline` plan programs of very many
//! buffers, and `skyline` those for which best fit finds no good order. `placement` bounds every plan from below by the
//! largest sum of the buffers that are alive at one position, and proves that no two buffers overlap.

mod placement;
mod search;
mod skyline;
mod sweep;
#[cfg(test)]
mod training;
mod unplaced;

pub use placement::{ALIGNMENT, Buffer, Overlap, Placement, aligned, busiest, check, lower_bound, place};
