//! Every setting of an engine: typed, with its range, and with the place it came from.
//!
//! Nothing is read behind the program's back: [`Settings::from_env`] is the only function that looks at the
//! environment, and only who calls it gets what is there. Layers are put on each other with [`Settings::overlay`]:
//!
//! ```
//! use te::settings::{Origin, Settings};
//! let mut settings = Settings::from_text("te.conf", "request.batch = 1024\n")?;
//! settings.overlay(&Settings::from_variables([("TE_CONTROL_PORT".into(), "15123".into())])?.settings);
//! settings.request_deadline.set(std::time::Duration::from_secs(3));
//! assert_eq!(settings.request_batch.origin().to_string(), "te.conf:1");
//! assert_eq!(settings.control_port.origin().to_string(), "TE_CONTROL_PORT");
//! let error = settings.set("notify.queue", "-1", Origin::Builder).unwrap_err();
//! assert_eq!(error.to_string(), r#"notify.queue = "-1" from builder is not a whole number from 1 to 1000000"#);
//! # Ok::<(), te::settings::SettingsError>(())
//! ```

mod error;
mod keys;
mod lists;
mod nics;
mod origin;
mod secret;
mod source;
mod value;

#[cfg(test)]
mod tests;

pub use error::{SettingsError, Warning};
pub use keys::{Alias, Entry, Key, Settings};
pub use nics::{RailMap, RailMapError};
pub use origin::{Origin, Setting};
pub use secret::Secret;
pub use source::Loaded;
pub use value::{Count, Digest, Framing, parse_bytes, parse_duration, show_bytes, show_duration};
