//! Tests of the passes on programs that are written by hand, drawn at random, or given as text in `testdata/filetests`.

mod batch;
mod canonicalize;
mod causality;
mod collectives;
mod experts;
mod gradients;
mod less_state;
mod manager;
mod meshes;
mod optimizers;
mod parameters;
mod precision;
mod recompute;
mod steps;
