//! Facts about a program that need no run of it: readers, lifetimes, memory, cost, times, the bytes of
//! each device. Pure data and algorithms, shared by passes and
//! by the runtime's lowering.

pub mod cost;
pub mod indices;
pub mod liveness;
pub mod memory_plan;
pub mod readers;
mod shares;
mod time;
mod views;

pub use cost::StepCost;
pub use liveness::{Lifetime, Lifetimes};
pub use memory_plan::{Buffer, Overlap, Placement};
pub use readers::{Readers, held_values, live_nodes, made_by_kernel, reports};
pub use shares::{Share, Shares};
pub use time::{CollectiveExchange, takes_no_time, time_on_mesh};
