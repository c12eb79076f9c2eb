//! JSON text that is carried along.

use serde_json::value::RawValue;

use crate::{error::DescriptorError, json, limits::DecodeLimits};

/// A JSON value kept as the text it was, so that nothing of it is lost: numbers of any length, order and spacing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RawJson(Box<str>);

impl RawJson {
    /// Checks that `text` is one JSON value within the default limits.
    pub fn parse(text: &str) -> Result<Self, DescriptorError> {
        json::check_document(text.as_bytes(), &DecodeLimits::default())?;
        let raw: &RawValue = serde_json::from_str(text)
            .map_err(|e| DescriptorError::Syntax { line: e.line(), column: e.column() })?;
        Ok(Self::from_raw(raw))
    }

    pub(crate) fn from_raw(raw: &RawValue) -> Self {
        Self(raw.get().into())
    }

    /// Reads the value again.
    pub(crate) fn read<T, E>(&self, read: impl FnOnce(&RawValue) -> Result<T, E>) -> Result<Option<T>, E> {
        // The text was a value when it was taken; reading it as one cannot fail.
        serde_json::from_str::<&RawValue>(&self.0).ok().map(read).transpose()
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
