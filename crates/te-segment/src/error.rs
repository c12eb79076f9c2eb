//! What can be wrong with a document, and where in it.

use std::fmt;

use crate::{
    access::ParseAccessError,
    endpoint::EndpointError,
    ids::{NameError, ParseIncarnationError},
    range::{AddressRange, RangeError},
};

/// Why a document is no descriptor, or why a descriptor cannot be built or encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptorError {
    /// The document is larger than the limit; nothing of it was read.
    #[error("document has {len} bytes, at most {limit} are allowed")]
    TooLarge {
        /// Length in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Arrays and objects are nested deeper than the limit.
    #[error("document is nested deeper than {limit} levels at byte {at}")]
    TooDeep {
        /// The limit in levels.
        limit: usize,
        /// Byte offset of the first bracket that is too deep.
        at: usize,
    },
    /// The document is not JSON.
    #[error("document is not valid JSON at line {line}, column {column}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column, from 1; 0 when the line is empty.
        column: usize,
    },
    /// The document is the JSON literal `null`: the answer of a peer that has nothing to describe.
    #[error("document is null")]
    Null,
    /// The root of the document is not an object.
    #[error("document is {found} where an object is due")]
    NotAnObject {
        /// What the root is.
        found: JsonKind,
    },
    /// One member is wrong.
    #[error("{field}: {problem}")]
    Invalid {
        /// Path of the member, for example `buffers[3].rkey`.
        field: String,
        /// What is wrong with it.
        problem: FieldProblem,
    },
}

impl DescriptorError {
    /// The path of the wrong member, where one member is to blame.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Invalid { field, .. } => Some(field),
            _ => None,
        }
    }
}

/// One of the six kinds of JSON values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JsonKind {
    /// `null`
    Null,
    /// `true` or `false`
    Boolean,
    /// A number.
    Number,
    /// A string.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

impl fmt::Display for JsonKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "null",
            Self::Boolean => "a boolean",
            Self::Number => "a number",
            Self::String => "a string",
            Self::Array => "an array",
            Self::Object => "an object",
        })
    }
}

/// What is wrong with one member of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldProblem {
    /// The member is required and absent or null.
    #[error("is missing")]
    Missing,
    /// The member is an empty string, 0 or an empty list where something is due.
    #[error("is empty")]
    Empty,
    /// The member has another type.
    #[error("is {found} where {expected} is due")]
    WrongType {
        /// The type that is due.
        expected: JsonKind,
        /// The type that is there.
        found: JsonKind,
    },
    /// The number is negative, fractional or too large for the member.
    #[error("{number} is not an integer from {min} to {max}")]
    OutOfRange {
        /// The number as written, shortened.
        number: String,
        /// Smallest number allowed.
        min: i64,
        /// Largest number allowed.
        max: u64,
    },
    /// The value has an escape that stands for no character, or a number beyond every number type.
    #[error("contains text or a number that cannot be represented")]
    Unrepresentable,
    /// The string or array is longer than the limit.
    #[error("has length {len}, at most {limit} is allowed")]
    TooLong {
        /// The length that is there.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// The number of elements does not match another list.
    #[error("has {found} elements where {expected} are due, one for each of {of}")]
    CountMismatch {
        /// Elements that are due.
        expected: usize,
        /// Elements that are there.
        found: usize,
        /// The list that gives the number.
        of: &'static str,
    },
    /// The parts of a buffer do not make it up.
    #[error("has parts of {found} bytes together, for a buffer of {length}")]
    PartsMismatch {
        /// Bytes of all parts.
        found: u64,
        /// Length of the buffer in bytes.
        length: u64,
    },
    /// The word is not one of those the member may have.
    #[error("unknown word {word:?}")]
    UnknownWord {
        /// The word, shortened.
        word: String,
    },
    /// Another element has the same name.
    #[error("{name:?} is there twice")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// The element names a device that the descriptor does not list.
    #[error("device {name:?} is not among the devices of the descriptor")]
    UnknownDevice {
        /// The name.
        name: String,
    },
    /// The buffer shares bytes with another one.
    #[error("{range} overlaps {existing}")]
    Overlaps {
        /// The refused range.
        range: AddressRange,
        /// The range that was there before.
        existing: AddressRange,
    },
    /// The addresses are no range.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The name is not allowed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The address is not allowed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The incarnation is not one.
    #[error(transparent)]
    Incarnation(#[from] ParseIncarnationError),
    /// The access is not one.
    #[error(transparent)]
    Access(#[from] ParseAccessError),
    /// A wildcard address, which reaches nobody, is advertised.
    #[error("a wildcard address cannot be advertised")]
    Wildcard,
    /// A buffer that peers may not use is described to them, or has a key or handle for them.
    #[error("buffer is local-only and cannot be reached by peers")]
    LocalOnly,
    /// The buffer says how it is reached by a transport that the descriptor does not offer.
    #[error("transport {transport} is not offered by the descriptor")]
    TransportNotOffered {
        /// The transport.
        transport: String,
    },
    /// The entry has the form of another transport.
    #[error("entry does not fit transport {transport}")]
    TransportMismatch {
        /// The transport.
        transport: String,
    },
    /// The text is not a 16-byte identifier in colon-separated hexadecimal.
    #[error("is not 16 bytes in hexadecimal, separated by colons")]
    InvalidGid,
    /// The value is nested deeper than a descriptor may be.
    #[error("is nested deeper than {limit} levels")]
    TooDeep {
        /// The limit in levels.
        limit: usize,
    },
    /// The descriptor has something that this form of record cannot carry.
    #[error("cannot be carried by a {form} record")]
    NotCarried {
        /// The form of record.
        form: &'static str,
    },
}

impl FieldProblem {
    pub(crate) fn at(self, field: impl fmt::Display) -> DescriptorError {
        DescriptorError::Invalid { field: field.to_string(), problem: self }
    }
}

/// A problem together with the member that has it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldError {
    /// Path of the member, for example `buffers[3].rkey`.
    pub field: String,
    /// What is wrong with it.
    pub problem: FieldProblem,
}

impl From<FieldError> for DescriptorError {
    fn from(error: FieldError) -> Self {
        Self::Invalid { field: error.field, problem: error.problem }
    }
}

/// A path into a document, put into text only when there is something to report.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Path<'a> {
    Root,
    Member(&'a Self, &'a str),
    Index(&'a Self, usize),
}

impl<'a> Path<'a> {
    pub(crate) fn member(&'a self, name: &'a str) -> Self {
        Path::Member(self, name)
    }

    pub(crate) fn index(&'a self, index: usize) -> Self {
        Path::Index(self, index)
    }

    pub(crate) fn error(&self, problem: FieldProblem) -> FieldError {
        FieldError { field: self.to_string(), problem }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Member(Self::Root, name) => f.write_str(&shorten(name)),
            Self::Member(parent, name) => write!(f, "{parent}.{}", shorten(name)),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// At most 80 characters of a foreign text, for messages.
pub(crate) fn shorten(text: &str) -> String {
    const SHOWN: usize = 80;
    let mut short: String = text.chars().take(SHOWN).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
