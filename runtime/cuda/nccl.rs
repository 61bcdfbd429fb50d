//! NCCL's calls, as far as they can be known without a GPU: those of a collective (`calls`), and those of a whole program
//! (`sequence`). `gpu` makes the calls, and `host` notes them.

pub(crate) mod calls;
pub mod sequence;
