//! A value and where it came from.

use std::fmt;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// A line of a settings file.
    File {
        /// The file as it was named.
        path: String,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Environment {
        /// Its name.
        variable: String,
    },
    /// The program that builds the engine.
    Builder,
    /// An option of the `te` program.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{path}:{line}"),
            Self::Environment { variable } => f.write_str(variable),
            Self::Builder => f.write_str("builder"),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    value: T,
    origin: Origin,
}

impl<T> Setting<T> {
    pub(crate) fn by_default(value: T) -> Self {
        Self { value, origin: Origin::Default }
    }

    pub(crate) fn replace(&mut self, value: T, origin: Origin) {
        *self = Self { value, origin };
    }

    /// The value.
    #[must_use]
    pub fn get(&self) -> &T {
        &self.value
    }

    /// Where it came from.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Whether nobody said anything.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.origin == Origin::Default
    }

    /// Sets the value; its origin is [`Origin::Builder`]. Its range is checked when an engine is built.
    pub fn set(&mut self, value: T) {
        self.replace(value, Origin::Builder);
    }
}
