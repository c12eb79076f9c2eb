//! `te serve`: one buffer, until somebody says stop.
//!
//! Tests and the demo drive it through its standard input: `check OFFSET LENGTH SEED` compares a part of the buffer with
//! a pattern, `fill SEED` writes one. Each is answered with a JSON line.

use std::io::BufRead;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use te::{Access, BatchOutcome, Buffer, Deadline, Engine, Location, Memory, Notification, Sharing};
use tokio::sync::mpsc;

use super::Stop;
use crate::bench::ping_pong::{CHALLENGE, Player};
use crate::bench::raw::RawServer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::{output, pattern, size};

/// Time for leaving, well within what supervisors allow.
const LEAVE: Duration = Duration::from_millis(1_500);

/// What to offer.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServeArgs {
    /// Size of the buffer
    #[arg(long, default_value = "1MiB", value_parser = size::size)]
    pub(crate) size: u64,
    /// Fills the buffer: byte i becomes (i ^ i>>8 ^ i>>16 ^ SEED) & 0xff
    #[arg(long, value_name = "SEED")]
    pub(crate) pattern: Option<u8>,
    /// What peers may do: remote_read, remote_write or remote_read|remote_write
    #[arg(long, default_value = "remote_read|remote_write")]
    pub(crate) access: Access,
    /// Ends when standard input closes, too
    #[arg(long, hide = true)]
    pub(crate) until_stdin_closes: bool,
    /// In memory that other processes cannot map
    #[arg(long, hide = true)]
    pub(crate) private: bool,
    /// Also answers raw sockets, for a comparison
    #[arg(long, hide = true)]
    pub(crate) raw: bool,
    /// Also plays ping-pong with benches that ask for it
    #[arg(long, hide = true)]
    pub(crate) ping_pong: bool,
}

pub(crate) fn run(context: &Context, args: &ServeArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(|error| Failure::io("cannot start a runtime", &error))?;
    // Left behind unless shut down in the background: a read of standard input cannot be interrupted.
    let outcome = runtime.block_on(serve(context, args));
    runtime.shutdown_background();
    outcome
}

/// The memory with its pattern, so that nobody who sees the buffer sees it without.
fn memory(args: &ServeArgs) -> Result<Memory> {
    let len = size::index(args.size);
    let sharing = if args.access.allows_write() { Sharing::ReadWrite } else { Sharing::ReadOnly };
    let memory = if args.private { Memory::allocate(len) } else { Memory::allocate_shareable(len, sharing) };
    let mut memory = memory.map_err(|error| Failure::Other(format!("cannot allocate: {error}")))?;
    if let Some(seed) = args.pattern {
        let bytes = memory.bytes_mut().ok_or_else(|| Failure::Other("cannot fill the buffer".to_owned()))?;
        pattern::fill(seed, 0, bytes);
    }
    Ok(memory)
}

async fn serve(context: &Context, args: &ServeArgs) -> Result<()> {
    let mut stop = Stop::caught()?;
    let engine = context.builder().build().await?;
    let raw = if args.raw { Some(RawServer::start(engine.local().control().host())?) } else { None };
    let buffer = match (args.private, args.pattern) {
        (false, None) => engine.allocate(size::index(args.size), Location::Any, args.access).await?,
        _ => engine.register(memory(args)?, args.access).await?,
    };
    engine.published(Deadline::after_secs(10)).await?;
    let buffer = Arc::new(buffer);
    let player = args.ping_pong.then(|| Player::start(&engine, &buffer));
    announce(context, &engine, &buffer, raw.as_ref())?;

    let mut commands = read_lines();
    let mut listening = true;
    loop {
        tokio::select! {
            () = stop.asked() => break,
            notification = engine.next_notification() => {
                let notification = notification?;
                match &player {
                    Some(player) if notification.name == CHALLENGE => player.take_up(&notification.message),
                    _ => print_notification(context, &notification)?,
                }
            }
            command = commands.recv(), if listening => match command {
                Some(command) => output::json(&answer(&buffer, &command))?,
                None if args.until_stdin_closes => break,
                None => listening = false,
            },
        }
    }
    drop(buffer);
    let report = engine.shutdown(Deadline::after(LEAVE)).await;
    for left in &report.left {
        eprintln!("te: {left}");
    }
    Ok(())
}

fn announce(context: &Context, engine: &Engine, buffer: &Buffer, raw: Option<&RawServer>) -> Result<()> {
    if context.json {
        let mut hello = json!({
            "segment": engine.name().as_str(),
            "buffers": [{ "addr": buffer.address(), "length": buffer.len() }],
            "rpc_port": engine.control_port(),
        });
        if let Some(raw) = raw {
            hello["raw"] = json!(raw.address().to_string());
        }
        return output::json(&hello);
    }
    output::line(&format!("segment  {}", engine.name()))?;
    output::line(&format!(
        "buffer   {:#x}, {}, {}, {}",
        buffer.address(),
        te_engine::size::bytes(buffer.len()),
        buffer.access(),
        buffer.location()
    ))?;
    if let Some(raw) = raw {
        output::line(&format!("raw      {}", raw.address()))?;
    }
    output::line("serving until interrupted")
}

fn print_notification(context: &Context, notification: &Notification) -> Result<()> {
    if context.json {
        let failed = notification.outcome == BatchOutcome::Failure;
        let notify = json!({ "name": notification.name, "message": notification.message, "failed": failed });
        return output::json(&json!({ "notify": notify }));
    }
    let failed = if notification.outcome == BatchOutcome::Failure { " (its batch failed)" } else { "" };
    output::line(&format!("notification from {}: {}{failed}", notification.name, notification.message))
}

/// The lines of standard input, until it closes.
fn read_lines() -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(16);
    // Not waited for: it may sit in a read for as long as the process lives.
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(std::io::Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Does what a line of standard input says.
fn answer(buffer: &Buffer, command: &str) -> Value {
    let words: Vec<&str> = command.split_whitespace().collect();
    let number = |at: usize| words.get(at).and_then(|word| size::offset(word).ok());
    let seed = |at: usize| words.get(at).and_then(|word| word.parse::<u8>().ok());
    let refused = |cause: String| json!({ "ok": false, "cause": cause });
    match (words.first().copied(), number(1), number(2), seed(1), seed(3)) {
        (Some("check"), Some(offset), Some(len), _, Some(seed)) => {
            match pattern::verify(buffer, seed, offset, len) {
                Ok(None) => json!({ "ok": true, "checked": len }),
                Ok(Some(wrong)) => {
                    json!({ "ok": false, "at": wrong.at, "expected": wrong.expected, "found": wrong.found })
                }
                Err(error) => refused(error.to_string()),
            }
        }
        (Some("fill"), _, _, Some(seed), _) => match pattern::write_to(buffer, seed, 0, buffer.len()) {
            Ok(()) => json!({ "ok": true, "filled": buffer.len() }),
            Err(error) => refused(error.to_string()),
        },
        (Some("allocations"), ..) => json!({ "ok": true, "allocations": crate::ALLOCATOR.allocations() }),
        _ => refused("expected `check OFFSET LENGTH SEED`, `fill SEED` or `allocations`".to_owned()),
    }
}
