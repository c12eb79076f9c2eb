//! Stopping a process for real.

use std::{fs, io, thread, time::Duration};

use rustix::process::{Pid, Signal, kill_process};

/// Stops every thread of a process, as SIGSTOP does, and returns when they have stopped.
///
/// The signal alone returns at once: a thread on another core goes on for a moment and may still answer what was sent
/// after the call.
///
/// # Errors
///
/// When there is no such process, or it is not ours.
pub fn freeze(pid: Pid) -> io::Result<()> {
    kill_process(pid, Signal::STOP)?;
    while !stopped(pid)? {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Lets a frozen process go on.
///
/// # Errors
///
/// When there is no such process, or it is not ours.
pub fn thaw(pid: Pid) -> io::Result<()> {
    Ok(kill_process(pid, Signal::CONT)?)
}

/// Whether no thread of the process can run.
fn stopped(pid: Pid) -> io::Result<bool> {
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread that ended in the meantime does not run either.
        let Ok(stat) = fs::read_to_string(thread?.path().join("stat")) else { continue };
        // The state follows the name, which is in brackets and may hold any character.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        if !matches!(state, Some('T' | 't' | 'Z' | 'X')) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn frozen_process_does_not_run_until_it_is_thawed() {
        let mut busy =
            Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_child(&busy);
        let used = || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.split(' ').nth(11).unwrap().parse::<u64>().unwrap()
        };
        freeze(pid).unwrap();
        let then = used();
        thread::sleep(Duration::from_millis(100));
        assert_eq!(used(), then);
        thaw(pid).unwrap();
        while used() == then {
            thread::sleep(Duration::from_millis(1));
        }
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(freeze(pid).is_err());
    }
}
