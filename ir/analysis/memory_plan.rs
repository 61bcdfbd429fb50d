//! The memory plan: the offset of each buffer in one arena, chosen so that buffers that are alive together share no byte.
//!
//! Placing intervals of given sizes in the least space is dynamic storage allocation (NP-hard; Garey and Johnson,
//! problem SR2). `search` looks for an order of buffers for which best fit gives a small plan. `sweep` and `skyline` plan programs
//! with very many buffers; `skyline` also plans programs for which best fit finds no good order. `placement` computes the lower
//! bound of every plan, the largest sum of bytes that are alive at one position, and proves that no two buffers overlap.

mod placement;
mod search;
mod skyline;
mod sweep;
#[cfg(test)]
mod training;
mod unplaced;

pub use placement::{ALIGNMENT, Buffer, Overlap, Placement, aligned, busiest, check, lower_bound, place};
