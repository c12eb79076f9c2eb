//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::{bench, command, demo};

/// Moves memory between processes.
#[derive(Debug, Parser)]
#[command(name = "te", version, about, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Global {
    /// Where segments are published and found: P2PHANDSHAKE, `p2p://HOST[:PORT]` or the URL of a store
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) metadata: Option<String>,
    /// The own name; without a store, the address that peers are told: HOST or HOST:PORT
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Overrides a setting; see `te config`
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Reads settings from a file of `key = value` lines
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Prints JSON instead of tables
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Moves 1 GiB each way between two processes and verifies every byte
    Demo(demo::DemoArgs),
    /// The other process of the demo
    #[command(hide = true)]
    DemoInitiator(demo::initiator::InitiatorArgs),
    /// Offers one buffer until it is told to stop
    Serve(command::serve::ServeArgs),
    /// Copies a file into a segment's buffer, or a part of a buffer into a file
    Cp(command::cp::CpArgs),
    /// Lists what a metadata store holds, and which engines answer
    Ls(command::ls::LsArgs),
    /// Runs a metadata store over HTTP until it is told to stop
    Metad(command::metad::MetadArgs),
    /// Prints what a segment offers
    Show(command::SegmentArgs),
    /// Asks whether the engine behind a segment answers
    Probe(command::SegmentArgs),
    /// Sends a notification to a segment's owner
    Notify(command::notify::NotifyArgs),
    /// Says how a request would travel, and why
    Explain(command::explain::ExplainArgs),
    /// Prints what this build has and what this host can use
    Features,
    /// Checks what each transport needs of this host, and says what to do
    Doctor(command::doctor::DoctorArgs),
    /// Prints what this host has: NUMA nodes, RDMA devices, GPUs, drives, and what is close to what
    Topology(command::topology::TopologyArgs),
    /// Prints every setting
    Config(command::config::ConfigArgs),
    /// Measures throughput and latency
    Bench(bench::BenchArgs),
    /// Writes a pattern to a peer, or reads and verifies it
    #[command(hide = true)]
    Check(command::check::CheckArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_options_may_follow_the_command() {
        let cli =
            parse("te probe 10.0.0.7:15000 --metadata P2PHANDSHAKE --json --set tcp.framing=v1").unwrap();
        assert!(cli.global.json);
        assert_eq!(cli.global.metadata.as_deref(), Some("P2PHANDSHAKE"));
        assert_eq!(cli.global.settings, ["tcp.framing=v1"]);
    }

    #[test]
    fn sizes_take_units() {
        let Command::Serve(serve) = parse("te serve --size 64MiB").unwrap().command else { panic!() };
        assert_eq!(serve.size, 64 << 20);
        let error = parse("te serve --size 64MB").unwrap_err();
        assert!(error.to_string().contains("64MB"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn addresses_are_hexadecimal_or_decimal() {
        let Command::Explain(explain) = parse("te explain 10.0.0.7:15000 0x7f00 4KiB").unwrap().command
        else {
            panic!()
        };
        assert_eq!((explain.address, explain.length), (0x7f00, 4096));
        assert!(parse("te explain 10.0.0.7:15000 0xzz 4KiB").is_err());
    }

    #[test]
    fn a_buffer_is_an_index_or_an_address() {
        use command::cp::BufferChoice;
        let cp = |buffer: &str| {
            let Command::Cp(cp) = parse(&format!("te cp a b --buffer {buffer}")).unwrap().command else {
                panic!()
            };
            cp.buffer
        };
        assert_eq!(cp("2"), BufferChoice::Index(2));
        assert_eq!(cp("0x7f00"), BufferChoice::Address(0x7f00));
    }

    #[test]
    fn the_interop_command_line_is_understood() {
        let line = "te check --peer 127.0.0.1:15000 --addr 0x7f00 --size 64MiB --batch 16 --seed 255 --op both \
                    --metadata P2PHANDSHAKE --json";
        let Command::Check(check) = parse(line).unwrap().command else { panic!() };
        assert_eq!((check.size, check.batch, check.seed), (64 << 20, 16, 255));
    }
}
