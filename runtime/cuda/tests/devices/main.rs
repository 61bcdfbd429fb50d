//! Devices against the interpreter: every operator, random programs, whole steps, and the CPU backend's memory.

mod compare;
mod cuda;
mod device;
mod dropout;
mod half;
mod large;
mod memory;
mod operators;
mod programs;
mod sums;
mod tiers;
mod training;
