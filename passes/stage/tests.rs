//! Tests of the cut.
