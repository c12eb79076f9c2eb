//! `te cp`: a file into a buffer, or a part of a buffer into a file, a few megabytes at a time.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use te::{Access, Batch, Buffer, Deadline, Location, RemoteRange, Segment, blocking::Engine};

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::{output, size, usage};

/// Bytes on the way at once, twice: one part is moved while the other is read or written.
const CHUNK: u64 = 8 << 20;

/// From where to where.
#[derive(Args, Debug)]
pub(crate) struct CpArgs {
    /// A file, or a segment's name. What exists or begins with `.` or `/` is a file
    pub(crate) source: String,
    /// A segment's name, or a file
    pub(crate) destination: String,
    /// Which buffer of the segment: its number or its address
    #[arg(long, default_value = "0", value_name = "N|0xADDR")]
    pub(crate) buffer: BufferChoice,
    /// Where in the buffer to begin
    #[arg(long, default_value = "0", value_parser = size::offset)]
    pub(crate) offset: u64,
    /// How many bytes; the whole file, or the rest of the buffer, unless given
    #[arg(long, value_parser = size::size)]
    pub(crate) length: Option<u64>,
}

/// A buffer of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferChoice {
    /// The n-th in address order.
    Index(usize),
    /// The one at this address.
    Address(u64),
}

impl FromStr for BufferChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text.starts_with("0x") {
            return size::address(text).map(Self::Address);
        }
        text.parse()
            .map(Self::Index)
            .map_err(|_| "not a number such as 0 or an address such as 0x7f00".to_owned())
    }
}

pub(crate) fn run(context: &Context, args: &CpArgs) -> Result<()> {
    let began = Instant::now();
    let bytes = match (is_file(&args.source), is_file(&args.destination)) {
        (true, true) => return usage("one of the two must be a segment"),
        (true, false) => upload(context, args)?,
        (false, _) => download(context, args)?,
    };
    let (time, shown) = (began.elapsed(), te_engine::size::bytes(bytes));
    if context.json {
        return output::json(&json!({ "ok": true, "bytes": bytes, "seconds": time.as_secs_f64() }));
    }
    output::line(&format!(
        "{} -> {}: {shown} in {:.2} s, {:.2} GB/s",
        args.source,
        args.destination,
        time.as_secs_f64(),
        size::gigabytes_per_second(bytes, time)
    ))
}

fn is_file(text: &str) -> bool {
    text.starts_with(['.', '/']) || Path::new(text).exists()
}

/// The range of the segment that the options name, at most `length` bytes.
fn remote(segment: &Segment, args: &CpArgs, length: Option<u64>) -> Result<RemoteRange> {
    let whole = match args.buffer {
        BufferChoice::Index(index) => segment.buffer(index)?,
        BufferChoice::Address(address) => {
            let found = segment.descriptor();
            let buffer = found
                .buffers()
                .iter()
                .position(|buffer| buffer.range().start() <= address && address < buffer.range().end());
            match buffer {
                Some(index) => {
                    let buffer = segment.buffer(index)?;
                    let before = address - buffer.range().start();
                    buffer.slice(before, buffer.len() - before)?
                }
                None => return Err(Failure::from(not_found(segment, address))),
            }
        }
    };
    let length = length.unwrap_or_else(|| whole.len().saturating_sub(args.offset));
    Ok(whole.slice(args.offset, length)?)
}

/// The error of the engine for an address outside, with the nearest buffer.
fn not_found(segment: &Segment, address: u64) -> te::Error {
    match segment.range(address, 1) {
        Err(error) => error,
        Ok(_) => te::Error::new(te::ErrorKind::OutsideSegment, "find the buffer", "the segment has changed"),
    }
}

/// Two buffers that take turns, each with its batch under way.
struct Turns {
    buffers: [Buffer; 2],
    under_way: [Option<(Batch, u64, u64)>; 2],
    scratch: Vec<u8>,
}

impl Turns {
    fn new(engine: &Engine, total: u64) -> Result<Self> {
        let len = size::index(CHUNK.min(total));
        let buffer = || engine.allocate(len, Location::Any, Access::LOCAL);
        Ok(Self { buffers: [buffer()?, buffer()?], under_way: [None, None], scratch: vec![0; len] })
    }

    /// Waits for the batch of a turn; offset and length of what it moved.
    fn wait(&mut self, turn: usize) -> Result<Option<(u64, u64)>> {
        match self.under_way[turn].take() {
            Some((batch, offset, len)) => {
                batch.wait()?;
                Ok(Some((offset, len)))
            }
            None => Ok(None),
        }
    }
}

/// Offsets and lengths of the chunks of `total` bytes, with whose turn it is.
fn chunks(total: u64) -> impl Iterator<Item = (usize, u64, u64)> {
    (0..total.div_ceil(CHUNK)).map(move |index| {
        let offset = index * CHUNK;
        (usize::from(index % 2 == 1), offset, CHUNK.min(total - offset))
    })
}

fn upload(context: &Context, args: &CpArgs) -> Result<u64> {
    let failed = |error: std::io::Error| Failure::io(&args.source, &error);
    let mut file = File::open(&args.source).map_err(failed)?;
    let size_of_file = file.metadata().map_err(failed)?.len();
    let total = args.length.unwrap_or(size_of_file);
    if total > size_of_file {
        return usage(format!("{} has {size_of_file} bytes, fewer than --length {total}", args.source));
    }
    if total == 0 {
        return usage(format!("{} is empty", args.source));
    }
    let engine = context.client(&args.destination)?;
    let segment = engine.open(&args.destination)?;
    let remote = remote(&segment, args, Some(total))?;
    let mut turns = Turns::new(&engine, total)?;
    let bar = context.progress(total, "upload");
    for (turn, offset, len) in chunks(total) {
        if let Some((_, len)) = turns.wait(turn)? {
            bar.inc(len);
        }
        let bytes = &mut turns.scratch[..size::index(len)];
        file.read_exact(bytes).map_err(failed)?;
        turns.buffers[turn].write_at(0, bytes)?;
        let batch = engine.batch().write(turns.buffers[turn].slice(..len), &remote.slice(offset, len)?);
        turns.under_way[turn] = Some((batch.submit()?, offset, len));
    }
    for turn in 0..2 {
        if let Some((_, len)) = turns.wait(turn)? {
            bar.inc(len);
        }
    }
    bar.finish_and_clear();
    drop(turns);
    engine.shutdown(Deadline::after_secs(2));
    Ok(total)
}

/// A file that appears under its name when it is complete, and not at all otherwise.
struct Incomplete {
    path: PathBuf,
    done: bool,
}

impl Drop for Incomplete {
    fn drop(&mut self) {
        if !self.done {
            // What cannot be removed is left with a name that says what it is.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn download(context: &Context, args: &CpArgs) -> Result<u64> {
    let engine = context.client(&args.source)?;
    let segment = engine.open(&args.source)?;
    let remote = remote(&segment, args, args.length)?;
    let total = remote.len();
    let failed = |error: std::io::Error| Failure::io(&args.destination, &error);
    let mut incomplete =
        Incomplete { path: PathBuf::from(format!("{}.part", args.destination)), done: false };
    let mut file = File::create(&incomplete.path).map_err(failed)?;
    let mut turns = Turns::new(&engine, total)?;
    let bar = context.progress(total, "download");
    let mut save = |turns: &mut Turns, turn: usize| -> Result<()> {
        let Some((_, len)) = turns.wait(turn)? else { return Ok(()) };
        let bytes = &mut turns.scratch[..size::index(len)];
        turns.buffers[turn].read_at(0, bytes)?;
        file.write_all(bytes).map_err(failed)?;
        bar.inc(len);
        Ok(())
    };
    let mut last = 0;
    for (turn, offset, len) in chunks(total) {
        save(&mut turns, turn)?;
        let batch = engine.batch().read(&remote.slice(offset, len)?, turns.buffers[turn].slice(..len));
        turns.under_way[turn] = Some((batch.submit()?, offset, len));
        last = turn;
    }
    save(&mut turns, 1 - last)?;
    save(&mut turns, last)?;
    bar.finish_and_clear();
    fs::rename(&incomplete.path, &args.destination).map_err(failed)?;
    incomplete.done = true;
    drop(turns);
    engine.shutdown(Deadline::after_secs(2));
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_everything_once_and_take_turns() {
        for total in [1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 17] {
            let mut next = 0;
            for (index, (turn, offset, len)) in chunks(total).enumerate() {
                assert_eq!((turn, offset), (index % 2, next));
                next += len;
            }
            assert_eq!(next, total);
        }
    }

    #[test]
    fn what_looks_like_a_path_is_a_file() {
        assert!(is_file("./missing") && is_file("/missing"));
        assert!(!is_file("127.0.0.1:15000"));
    }
}
