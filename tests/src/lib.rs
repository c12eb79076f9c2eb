//! Nothing but tests: see `tests/`. What they share with no crate alone lives here by being tested here.

#![forbid(unsafe_code)]
