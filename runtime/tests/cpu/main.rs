//! The CPU backend against the interpreter: every operator, random programs, whole steps, and its memory.

mod compare;
mod device;
mod dropout;
mod half;
mod large;
mod memory;
mod operators;
mod programs;
mod training;
