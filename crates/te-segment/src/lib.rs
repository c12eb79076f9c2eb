//! identities, ranges, locations and descriptors of memory segments, without any I/O.
