//! Facts about a program that several passes read: which values are constants, and which numbers a file's numbers stand for.

pub(crate) mod constants;
pub(crate) mod numbers;
