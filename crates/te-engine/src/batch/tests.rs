//! Facts about batches, on a scripted path.
