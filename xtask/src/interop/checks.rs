//! The checks themselves, in the order of the table.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::board::{Board, Case};
use super::environment::Environment;
use super::meeting::Meeting;
use super::ours::{self, Served, Te, Transfer, size_text};
use super::reference::{Framing, Place, Reference};
use crate::Result;

const SIZES: [u64; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
const LARGEST: u64 = 64 << 20;
const BATCH: u64 = 16;
/// What `te serve` fills its buffer with.
const SERVED_SEED: u8 = 7;

const REFERENCE: &str = "reference -> reference";
const INBOUND: &str = "reference -> te";
const OUTBOUND: &str = "te -> reference";

/// A v1 WRITE completes when it is sent, not when it is applied, so its bytes may be a moment late.
const LATE: Duration = Duration::from_secs(5);

/// Ever new seeds, so that bytes of an earlier check never pass a later one.
pub(super) struct Seeds(pub(super) u8);

impl Seeds {
    pub(super) fn next(&mut self) -> u8 {
        self.0 = self.0.wrapping_add(37);
        self.0
    }
}

pub(super) fn row<'a>(pair: &'a str, framing: &'a str, what: &'a str, size: &'a str) -> Case<'a> {
    Case { pair, framing, what, size }
}

/// The reference against itself: the scripts work, and they notice wrong bytes.
pub(super) fn baseline(environment: &Environment, board: &mut Board) -> Result<()> {
    let mut target = Reference::target(environment, LARGEST)?;
    let mut seeds = Seeds(100);
    for framing in Framing::ALL {
        let mut initiator = Reference::initiator(environment, LARGEST, framing)?;
        from_reference(
            &mut initiator,
            &target.place.clone(),
            REFERENCE,
            framing,
            &[1 << 20],
            &mut seeds,
            board,
        );
        initiator.quit()?;
    }
    let seed = seeds.next();
    board.check(row(REFERENCE, "", "wrong bytes are noticed", ""), || {
        target.ask(json!({"do": "fill", "seed": seed}))?;
        target.ask(check_command(4096, 1, seed))?;
        target.refuse(check_command(4096, 1, seed.wrapping_add(1)))?;
        target.refuse(check_command(4096, BATCH, seed))
    });
    target.quit()
}

/// Ours against the reference, both ways.
pub(super) fn ours(environment: &Environment, program: &Path, board: &mut Board) -> Result<()> {
    let te = ours::te(program, &environment.logs, Meeting::peers());
    let mut served = None;
    board.check(row(INBOUND, "", "serve", &size_text(LARGEST)), || {
        served = Some(Served::start(&te, LARGEST, SERVED_SEED)?);
        Ok(())
    });
    if let Some(served) = &mut served {
        inbound(environment, &te, served, board)?;
    }
    outbound(environment, &te, board)
}

/// The reference acts on `te serve`.
fn inbound(environment: &Environment, te: &Te, served: &mut Served, board: &mut Board) -> Result<()> {
    let place = served.place.clone();
    let mut seeds = Seeds(SERVED_SEED);
    for framing in Framing::ALL {
        let mut initiator = Reference::initiator(environment, LARGEST, framing)?;
        if framing == Framing::ALL[0] {
            first_contact(&mut initiator, &place, framing, board);
        }
        from_reference(&mut initiator, &place, INBOUND, framing, &SIZES, &mut seeds, board);
        // Not the echo of one side's mistake: what the reference wrote is what another te reads.
        let seed = seeds.next();
        board.check(row(INBOUND, framing.name(), "te reads what it wrote", "1MiB"), || {
            initiator.ask(transfer_command("write", &place, 1 << 20, 1, seed))?;
            initiator.ask(read_command(&place, 1 << 20, 1, seed, framing))?;
            let transfer = Transfer { op: "read", size: 1 << 20, blocks: 1, seed, framing: Framing::V2 };
            te.check(&place, transfer)
        });
        let (name, message) = (format!("note-{}", framing.name()), "the layer is complete");
        board.check(row(INBOUND, framing.name(), "notify", ""), || {
            initiator.ask(json!({"do": "notify", "segment": place.segment, "addr": place.address,
                "name": name, "message": message}))?;
            served.was_notified(&name, message)
        });
        board.check(row(INBOUND, framing.name(), "probe", ""), || {
            initiator.ask(json!({"do": "probe", "segment": place.segment})).map(drop)
        });
        board.check(row(INBOUND, framing.name(), "initiator is alive", ""), || initiator.is_well());
        initiator.quit()?;
    }
    board.check(row(INBOUND, "", "te serve is alive", ""), || served.is_well());
    board.check(row(INBOUND, "", "te serve stops when asked", ""), || served.stop());
    Ok(())
}

/// What a newcomer sees before anything was written: our buffer under its address, our pattern in it.
fn first_contact(initiator: &mut Reference, place: &Place, framing: Framing, board: &mut Board) {
    board.check(row(INBOUND, framing.name(), "first buffer", ""), || {
        let answer = initiator.ask(json!({"do": "first_buffer", "segment": place.segment}))?;
        if answer["addr"] == place.address { Ok(()) } else { Err(format!("found {answer}").into()) }
    });
    board.check(row(INBOUND, framing.name(), "read what is served", &size_text(LARGEST)), || {
        initiator.ask(read_command(place, LARGEST, 1, SERVED_SEED, framing)).map(drop)
    });
    board.check(row(INBOUND, framing.name(), "read past the end fails", ""), || {
        let past = Place { address: place.address + LARGEST - 64, ..place.clone() };
        initiator.refuse(read_command(&past, 4096, 1, SERVED_SEED, framing))
    });
}

/// The reference writes and reads a place, in one request and in a batch, and verifies.
fn from_reference(
    initiator: &mut Reference,
    place: &Place,
    pair: &str,
    framing: Framing,
    sizes: &[u64],
    seeds: &mut Seeds,
    board: &mut Board,
) {
    for &size in sizes {
        for blocks in [1, BATCH] {
            let seed = seeds.next();
            let shape = if blocks == 1 { "" } else { " batch of 16" };
            board.check(row(pair, framing.name(), &format!("write{shape}"), &size_text(size)), || {
                initiator.ask(transfer_command("write", place, size, blocks, seed)).map(drop)
            });
            board.check(row(pair, framing.name(), &format!("read{shape}"), &size_text(size)), || {
                initiator.ask(read_command(place, size, blocks, seed, framing)).map(drop)
            });
        }
    }
}

/// `te` acts on the reference.
fn outbound(environment: &Environment, te: &Te, board: &mut Board) -> Result<()> {
    let mut target = Reference::target(environment, LARGEST)?;
    let place = target.place.clone();
    let mut seeds = Seeds(50);
    for framing in Framing::ALL {
        for size in SIZES {
            for blocks in [1, BATCH] {
                let shape = if blocks == 1 { "" } else { " batch of 16" };
                let name = size_text(size);
                let seed = seeds.next();
                board.check(row(OUTBOUND, framing.name(), &format!("write{shape}"), &name), || {
                    te.check(&place, Transfer { op: "write", size, blocks, seed, framing })?;
                    target.ask(check_command(size, 1, seed)).map(drop)
                });
                let seed = seeds.next();
                board.check(row(OUTBOUND, framing.name(), &format!("read{shape}"), &name), || {
                    target.ask(json!({"do": "fill", "seed": seed}))?;
                    te.check(&place, Transfer { op: "read", size, blocks, seed, framing })
                });
            }
        }
        board.check(row(OUTBOUND, framing.name(), "write and read back", "1MiB"), || {
            let seed = seeds.next();
            te.check(&place, Transfer { op: "both", size: 1 << 20, blocks: BATCH, seed, framing })
        });
    }
    board.check(row(OUTBOUND, "", "wrong bytes are noticed", "4KiB"), || {
        let seed = seeds.next();
        target.ask(json!({"do": "fill", "seed": seed}))?;
        let wrong =
            Transfer { op: "read", size: 4096, blocks: 1, seed: seed.wrapping_add(1), framing: Framing::V2 };
        must_fail(te.check(&place, wrong), "te check accepted wrong bytes")
    });
    board.check(row(OUTBOUND, "", "notify", ""), || {
        te.notify(&place.segment, "note-te", "hello from te")?;
        let answer = target.ask(json!({"do": "notifies"}))?;
        let expected = json!([["note-te", "hello from te"]]);
        if answer["notifies"] == expected { Ok(()) } else { Err(format!("arrived: {answer}").into()) }
    });
    board.check(row(OUTBOUND, "", "probe", ""), || te.probe(&place.segment));
    board.check(row(OUTBOUND, "", "target is alive", ""), || target.is_well());
    target.quit()?;
    board.check(row(OUTBOUND, "", "probe of nobody fails", ""), || {
        must_fail(te.probe(&place.segment), "te probe reached a peer that is gone")
    });
    Ok(())
}

pub(super) fn must_fail(result: Result<()>, otherwise: &str) -> Result<()> {
    match result {
        Ok(()) => Err(otherwise.into()),
        Err(_) => Ok(()),
    }
}

pub(super) fn check_command(length: u64, blocks: u64, seed: u8) -> Value {
    json!({"do": "check", "length": length, "blocks": blocks, "seed": seed})
}

pub(super) fn transfer_command(direction: &str, place: &Place, length: u64, blocks: u64, seed: u8) -> Value {
    json!({"do": direction, "segment": place.segment, "addr": place.address, "length": length,
        "blocks": blocks, "seed": seed})
}

/// A read that expects the pattern, at once with v2, after a moment with v1.
pub(super) fn read_command(place: &Place, length: u64, blocks: u64, seed: u8, framing: Framing) -> Value {
    let mut command = transfer_command("read", place, length, blocks, seed);
    if framing == Framing::V1 {
        command["within"] = LATE.as_secs().into();
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_do_not_repeat_soon() {
        let mut seeds = Seeds(0);
        let mut seen: Vec<_> = (0..200).map(|_| seeds.next()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 200);
    }

    #[test]
    fn every_size_divides_into_the_batch() {
        assert!(SIZES.iter().all(|size| size % BATCH == 0 && *size <= LARGEST));
    }

    #[test]
    fn a_success_that_had_to_be_a_failure_is_one() {
        assert!(must_fail(Ok(()), "x").is_err());
        assert!(must_fail(Err("y".into()), "x").is_ok());
    }
}
