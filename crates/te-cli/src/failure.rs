//! How a command fails: one line that begins with `te:`, details below it, and an exit code.

use std::fmt;
use std::io;
use std::process::ExitCode;

use serde_json::{Value, json};

/// A result of a command.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line makes no sense. Exit code 2.
    Usage(String),
    /// The engine said no.
    Engine(te::Error),
    /// Something else went wrong.
    Other(String),
    /// Whoever read the output has seen enough.
    OutputClosed,
}

impl Failure {
    /// An operation on a file or stream failed.
    pub(crate) fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        Self::Other(format!("{what}: {error}"))
    }

    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Self::OutputClosed => ExitCode::SUCCESS,
            Self::Usage(_) => ExitCode::from(2),
            Self::Engine(_) | Self::Other(_) => ExitCode::FAILURE,
        }
    }

    /// Prints the failure on standard error, and as JSON on standard output if the command prints JSON.
    pub(crate) fn report(&self, json: bool) {
        match self {
            Self::OutputClosed => return,
            Self::Usage(message) | Self::Other(message) => eprintln!("te: {message}"),
            Self::Engine(error) => eprintln!("te: {error:#}"),
        }
        if json {
            // The exit code says it as well, so a closed output loses nothing.
            let _ = crate::output::json(&json!({ "ok": false, "error": self.to_json() }));
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Engine(error) => json!({
                "kind": error.kind().as_str(),
                "operation": error.operation(),
                "cause": error.cause(),
                "peer": error.peer(),
                "path": error.path(),
                "retry": error.retry().to_string(),
            }),
            Self::Usage(message) => json!({ "kind": "usage", "cause": message }),
            Self::Other(message) => json!({ "kind": "other", "cause": message }),
            Self::OutputClosed => json!({ "kind": "output closed" }),
        }
    }
}

impl From<te::Error> for Failure {
    fn from(error: te::Error) -> Self {
        Self::Engine(error)
    }
}

impl From<te::RegisterFailed> for Failure {
    fn from(failed: te::RegisterFailed) -> Self {
        Self::Engine(failed.error)
    }
}
