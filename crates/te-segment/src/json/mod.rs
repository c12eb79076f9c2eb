//! JSON in and out, without recursion on foreign input and without losing what is not understood.
//!
//! Reading works on slices of the text: an object is split into its members, and only members that are known are read
//! further. Everything else stays the text it was, so that numbers of any length and members of newer versions survive.

mod read;
mod scan;
mod write;

pub(crate) use read::{
    Members, elements, kind, read_i64, read_text, read_texts, read_u64, read_u64s, read_uint,
};
pub(crate) use scan::check_document;
pub(crate) use write::Node;
