//! `cargo xtask reliability`: runs the fault matrix and writes what came of it into `docs/reliability.md`.

use std::fs;

use crate::Result;
use crate::args::Args;
use crate::outcome::Outcome;
use crate::provision;
use crate::shell::Cmd;
use crate::workspace::Workspace;

const HEAD: &str = "\
# Reliability

What a request ends with when its peer fails, and when transfers work again. Written by

```console
$ cargo xtask reliability
```

from `crates/te-cli/tests/faults.rs`, which every test run executes, too: there it asserts that each request ends by its
deadline with the right kind of error and that the peer's bytes are right afterwards; the times are asserted nowhere.

Each cell has a peer process of its own with one buffer of 64 MiB; the deadline of a request is 2 s. *Ended after* counts
from the submission. *Works again after* counts from the end of the fault, for a killed peer from the moment in which its
next life has published itself, to the first read of the whole buffer that is verified. The restart of a peer under the
same name, at the same addresses, is `cargo xtask soak restart`.

Over shared memory (`shm`) a copy needs no answer: what is stopped does not hold it up, and a partition of the network does
not exist within one host.

";

pub(crate) fn command(args: Args) -> Result<Outcome> {
    args.finish()?;
    let workspace = Workspace::load()?;
    provision::testing()?;
    let table = workspace.target.join("reliability.md");
    let success = Cmd::cargo("test")
        .args(["--locked", "--release", "-p", "te-cli", "--test", "faults", "--", "--nocapture"])
        .env("TE_RELIABILITY_PAGE", &table)
        .run()?;
    if success {
        let date = Cmd::new("date").arg("+%Y-%m-%d").read()?;
        let machine = Cmd::new("uname").args(["-srm"]).read()?;
        let table = fs::read_to_string(table)?;
        let page = format!("{HEAD}Taken on {} ({}).\n\n{table}", date.trim(), machine.trim());
        fs::write(workspace.root.join("docs/reliability.md"), page)?;
    }
    let outcome = Outcome::of_command("fault matrix", success);
    outcome.print();
    Ok(outcome)
}
