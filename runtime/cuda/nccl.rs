//! NCCL's calls as data, without a GPU: the calls of a collective (`calls`), and the calls of a whole program (`sequence`). `gpu` makes
//! the calls, and `host` notes them.

pub(crate) mod calls;
pub mod sequence;
