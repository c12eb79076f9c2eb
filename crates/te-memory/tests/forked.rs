//! Alone in its process, because it forks.

use te_memory::ForkMark;

/// Forks and gives the status with which the child ends: what `check` says there.
fn status_of_child(check: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls nothing but `check`, which loads a byte or forks, and `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let status = check();
        // SAFETY: ends the child without running anything of this program's.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: the status is an integer of ours.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    libc::WEXITSTATUS(status)
}

#[test]
fn a_child_and_its_children_know_that_they_are_forked() {
    let mark = ForkMark::new();
    assert!(!mark.is_forked());
    assert_eq!(mark.process(), std::process::id());
    assert_eq!(status_of_child(|| i32::from(mark.is_forked())), 1);
    assert_eq!(status_of_child(|| status_of_child(|| i32::from(mark.is_forked()))), 1);
    // One that the child makes is the child's own.
    assert_eq!(status_of_child(|| i32::from(ForkMark::new().is_forked())), 0);
    assert!(!mark.is_forked());
}
