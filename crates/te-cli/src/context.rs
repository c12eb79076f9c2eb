//! What every command starts from: settings and the way of printing.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};
use te::metadata::MetadataUrl;
use te::settings::{Origin, Settings, SettingsError};
use te::{Endpoint, EngineBuilder, blocking};
use te_segment::DEFAULT_CONTROL_PORT;
use tracing_subscriber::EnvFilter;

use crate::args::Global;
use crate::failure::{Failure, Result};
use crate::usage;

/// What every command starts from.
pub(crate) struct Context {
    pub(crate) settings: Settings,
    pub(crate) json: bool,
    global: Global,
}

fn refused(error: &SettingsError) -> Failure {
    Failure::Usage(error.to_string())
}

impl Context {
    /// Layers the settings: defaults, file, environment, command line. Logging starts here.
    pub(crate) fn load(global: &Global) -> Result<Self> {
        let mut settings = Settings::default();
        if let Some(path) = &global.config {
            settings = Settings::from_file(path).map_err(|error| refused(&error))?;
        }
        let environment = Settings::from_env().map_err(|error| refused(&error))?;
        settings.overlay(&environment.settings);
        if let Some(url) = &global.metadata {
            // Parsed apart: the error of a URL says more than that of a setting.
            if let Err(error) = url.parse::<MetadataUrl>() {
                return usage(error.to_string());
            }
            settings.set("metadata", url, Origin::CommandLine).map_err(|error| refused(&error))?;
        }
        for assignment in &global.settings {
            let Some((key, value)) = assignment.split_once('=') else {
                return usage(format!("--set {assignment}: not KEY=VALUE"));
            };
            settings.set(key, value, Origin::CommandLine).map_err(|error| refused(&error))?;
        }
        settings.validate().map_err(|error| refused(&error))?;
        start_logging(settings.log.get())?;
        for warning in &environment.warnings {
            eprintln!("te: warning: {warning}");
        }
        Ok(Self { settings, json: global.json, global: global.clone() })
    }

    /// The name on the command line, if there is one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.global.name.as_deref()
    }

    /// A builder for an engine that offers something.
    pub(crate) fn builder(&self) -> EngineBuilder {
        te::builder(self.name().unwrap_or_default()).settings(&self.settings)
    }

    /// An engine that only talks to `peer`. Where nothing states the own address, it is the one that leads there, or
    /// to the metadata store.
    pub(crate) fn client(&self, peer: &str) -> Result<blocking::Engine> {
        let settings = &self.settings;
        let stated = self.name().is_some()
            || settings.advertise.get().is_some()
            || !matches!(settings.metadata.get(), MetadataUrl::Peer { host: None, .. });
        let builder = if let MetadataUrl::Store { .. } = settings.metadata.get() {
            // A name nobody else has: whoever only asks must not take that of an engine.
            let own = self.name().map_or_else(passing_name, ToOwned::to_owned);
            let builder = te::builder(own).settings(settings);
            let towards = || te::address::towards(&settings.metadata.get().server()?).ok();
            match settings.advertise.get() {
                None => match towards() {
                    Some(ip) => builder.advertise(&ip.to_string()),
                    None => builder,
                },
                Some(_) => builder,
            }
        } else if stated {
            self.builder()
        } else {
            let endpoint = Endpoint::parse_or_default_port(peer, DEFAULT_CONTROL_PORT);
            // A peer that no route leads to is an error when it is opened, with all that is to be said about it.
            let own = endpoint.ok().and_then(|endpoint| te::address::towards(&endpoint).ok());
            let own = own.map_or_else(|| "127.0.0.1".to_owned(), |ip| ip.to_string());
            te::builder(own).settings(settings)
        };
        Ok(blocking::build(builder)?)
    }

    /// The same, for an engine that talks to a child process on this host.
    pub(crate) fn on_loopback(&self, host: &str) -> Result<Self> {
        let mut settings = self.settings.clone();
        for (key, value) in
            [("metadata", "P2PHANDSHAKE"), ("advertise", host), ("bind", "auto"), ("control.port", "0")]
        {
            settings.set(key, value, Origin::CommandLine).map_err(|error| refused(&error))?;
        }
        Ok(Self { settings, json: self.json, global: self.global.clone() })
    }

    /// A bar of so many steps on a terminal, and nothing elsewhere.
    pub(crate) fn steps(&self, count: u64) -> ProgressBar {
        if self.json || !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("{msg:24} {wide_bar} {pos}/{len} {elapsed}");
        ProgressBar::new(count).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    }

    /// A bar on a terminal, nothing elsewhere.
    pub(crate) fn progress(&self, bytes: u64, what: &str) -> ProgressBar {
        if self.json || !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new(bytes);
        let form = "{msg:14} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec}";
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what.to_owned());
        bar
    }

    /// Options that give a child process the same settings, apart from addresses.
    pub(crate) fn child_options(&self) -> Vec<String> {
        let mut options = Vec::new();
        if let Some(path) = &self.global.config {
            options.extend(["--config".to_owned(), path.display().to_string()]);
        }
        for assignment in &self.global.settings {
            options.extend(["--set".to_owned(), assignment.clone()]);
        }
        options
    }
}

/// The name of an engine that comes and goes.
fn passing_name() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("te-cli-{}-{:x}", std::process::id(), since.as_nanos())
}

fn start_logging(filter: &str) -> Result<()> {
    let Ok(filter) = EnvFilter::try_new(filter) else {
        return usage(format!("log = {filter:?} is not a filter such as warn or te=debug"));
    };
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // Fails only if there is a subscriber already, which is as good.
    let _ = subscriber.try_init();
    Ok(())
}
