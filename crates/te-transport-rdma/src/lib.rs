//! RDMA transport (draft docs).
#![forbid(unsafe_code)]

pub mod wire;
