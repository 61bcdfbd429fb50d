//! ONNX files: ONNX's own node tests, files that are refused, and trained values that are written back into a file.

mod archive;
mod bad_models;
mod export;
mod kinks;
mod nodes;
mod optimizers;
mod state_dict;
