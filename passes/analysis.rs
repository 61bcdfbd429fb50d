//! Facts about a program that several passes read: the constant values, and the exact numbers behind the rounded numbers of a file.

pub(crate) mod constants;
pub(crate) mod numbers;
