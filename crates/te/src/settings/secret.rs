//! Text that must not be seen.

use std::fmt;

/// A token or password. `Debug`, errors, logs and `te config` show `***` for it.
///
/// ```
/// let token = te::settings::Secret::new("hunter2");
/// assert_eq!(format!("{token:?}"), "***");
/// assert_eq!(token.reveal(), "hunter2");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for whoever sends it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// What stands in the place of a secret.
pub(crate) const HIDDEN: &str = "***";
