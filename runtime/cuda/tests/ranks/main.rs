//! Programs on local ranks against the same programs on one device.

mod collectives;
mod compare;
mod cuda;
mod devices;
mod operators;
mod order;
mod training;
