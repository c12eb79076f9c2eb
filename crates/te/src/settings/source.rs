//! Where settings are read from: the environment and files.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use super::error::nearest;
use super::{Origin, Settings, SettingsError, Warning};

/// Settings, and what looked like one and was none.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// What was ignored.
    pub warnings: Vec<Warning>,
}

impl Settings {
    /// What the environment of this process states: the `TE_` variables of [`Settings::keys`], and those of the
    /// reference engine that mean the same. The only function of the engine that looks at the environment.
    ///
    /// # Errors
    ///
    /// The first variable that makes no sense, with its key, value and range.
    pub fn from_env() -> Result<Loaded, SettingsError> {
        Self::from_variables(std::env::vars_os())
    }

    /// What these variables state. An own variable counts more than one of the reference engine.
    ///
    /// # Errors
    ///
    /// As [`from_env`](Self::from_env).
    pub fn from_variables(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Loaded, SettingsError> {
        let mut found: Vec<(String, String)> = variables
            .into_iter()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| name.starts_with("TE_") || name.starts_with("MC_"))
            // A replacement character is no part of any value, so what is no text is refused where it is read.
            .map(|(name, value)| (name, value.to_string_lossy().into_owned()))
            .collect();
        // The order of an environment is nobody's choice; that of errors should be.
        found.sort();
        let value_of = |name: &str| found.iter().find(|(found, _)| found == name).map(|(_, value)| value);

        let mut settings = Self::default();
        for key in Self::keys() {
            let aliases = key.aliases.iter().map(|alias| (alias.variable(), Some(alias)));
            for (variable, alias) in aliases.chain([(key.variable, None)]) {
                let Some(value) = value_of(variable) else { continue };
                // A variable of the reference engine may be meant for one.
                if alias.is_some_and(|alias| !key.is_compiled() || !alias.counts(value_of)) {
                    continue;
                }
                let text = alias.map_or_else(|| value.clone(), |alias| alias.translate(value));
                settings.set(key.name, &text, Origin::Environment { variable: variable.to_owned() })?;
            }
        }
        let known = || Self::keys().iter().map(|key| key.variable);
        let warnings = found
            .iter()
            .filter(|(name, _)| name.starts_with("TE_") && !known().any(|known| known == name))
            .map(|(name, _)| Warning { variable: name.clone(), nearest: nearest(name, known()) })
            .collect();
        Ok(Loaded { settings, warnings })
    }

    /// What a settings file states: lines of `key = value`, comments begin with `#`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or its first line that makes no sense.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, SettingsError> {
        let shown = path.as_ref().display().to_string();
        match fs::read_to_string(path) {
            Ok(text) => Self::from_text(&shown, &text),
            Err(source) => Err(SettingsError::File { path: shown, source }),
        }
    }

    /// As [`from_file`](Self::from_file), from text that is at hand; `path` is what errors call it.
    ///
    /// # Errors
    ///
    /// The first line that makes no sense.
    pub fn from_text(path: &str, text: &str) -> Result<Self, SettingsError> {
        let mut settings = Self::default();
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.trim();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let Some((key, value)) = content.split_once('=') else {
                return Err(SettingsError::Syntax { path: path.to_owned(), line, text: shown(content) });
            };
            settings.set(key.trim(), value.trim(), Origin::File { path: path.to_owned(), line })?;
        }
        Ok(settings)
    }
}

/// What an error shows of a line that states nothing. What was meant for a key with secrets in it stays unseen.
fn shown(line: &str) -> String {
    let word: String = line.chars().take_while(|c| c.is_ascii_alphanumeric() || "._".contains(*c)).collect();
    match word.as_str() {
        "metadata" | "metadata.token" | "metadata.proxy" => format!("{word} ***"),
        _ => line.chars().take(80).collect(),
    }
}
