//! Programs that are written and read back.

mod round_trips;
