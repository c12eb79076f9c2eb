//! conformance suites and fault injection for te backends.
