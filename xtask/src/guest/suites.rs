//! Checks that run in a guest: each prints a line that begins with `ok` or `not ok`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::boot::{self, Ended};
use super::options::Options;
use crate::Result;
use crate::args::Args;
use crate::interop::environment::Environment;
use crate::outcome::Outcome;
use crate::shell::Cmd;
use crate::workspace::Workspace;

/// Some checks, what the guest has to have for them, and the programs they use.
struct Suite {
    name: &'static str,
    needs: fn() -> Options,
    /// Examples to be built: the package and the name. The script finds them as `$NAME`.
    examples: &'static [(&'static str, &'static str)],
    /// Whatever else it needs, by the names under which the script finds it.
    also: fn(&Workspace) -> Result<Found>,
    script: &'static str,
    /// Lines it prints at least. Fewer means that it ended early.
    lines: usize,
}

/// Paths, by the names that a script has for them.
type Found = Vec<(&'static str, PathBuf)>;

/// Runs only where it is named: its times are close to those at which emulated queue pairs give up, and the same cases run
/// over NICs in a process in the crate's own tests.
const STALLS: &str = "stalls";

const SUITES: [Suite; 6] = [
    Suite {
        name: "smoke",
        needs: || Options {
            rails: 2,
            nvmet: 64 << 20,
            nvme: 64 << 20,
            cxl: 256 << 20,
            pmem: 256 << 20,
            huge_pages: 16,
            timeout: 240,
            ..Options::default()
        },
        examples: &[],
        also: nothing,
        script: include_str!("smoke.sh"),
        lines: 13,
    },
    Suite {
        name: "verbs",
        needs: || Options { rails: 2, timeout: 240, ..Options::default() },
        examples: &[("te-sys-verbs", "verbs_check")],
        also: nothing,
        script: include_str!("verbs.sh"),
        lines: 21,
    },
    Suite {
        name: "rdma",
        needs: || Options { rails: 2, timeout: 780, ..Options::default() },
        examples: &[("te-transport-rdma", "rdma_check")],
        also: nothing,
        script: concat!(include_str!("objects.sh"), include_str!("rdma.sh")),
        lines: 42,
    },
    Suite {
        name: "engine",
        needs: || Options { rails: 2, timeout: 780, ..Options::default() },
        examples: &[],
        also: the_program,
        script: include_str!("engine.sh"),
        lines: 6,
    },
    Suite {
        name: STALLS,
        // Lets a rail lose everything.
        needs: || Options {
            rails: 2,
            modules: vec!["sch_netem".to_owned()],
            timeout: 780,
            ..Options::default()
        },
        examples: &[("te-transport-rdma", "rdma_check")],
        also: nothing,
        script: "\"$rdma_check\" stalls peer rxe0=rxep0 rxe1=rxep1",
        lines: 36,
    },
    Suite {
        name: "reference",
        needs: || Options { rails: 2, timeout: 780, ..Options::default() },
        examples: &[],
        also: the_reference,
        script: "\"$python\" \"$meeting\" \"$te\" \"$python\"",
        lines: 4,
    },
];

/// For a night: rails that go down and come up.
const CYCLES: Suite = Suite {
    name: "cycles",
    needs: || Options { rails: 2, ..Options::default() },
    examples: &[("te-transport-rdma", "rdma_check")],
    also: nothing,
    script: concat!(include_str!("objects.sh"), include_str!("cycles.sh")),
    lines: 1,
};

/// Seconds that a cycle may take in a guest without hardware support, and those to start it.
const CYCLE_SECONDS: u64 = 60;
const START_SECONDS: u64 = 240;
/// What `rdma_check` counts to.
const MOST_CYCLES: u64 = 255;
/// Lines that a cycle prints: down and up, for either direction.
const CYCLE_LINES: usize = 4;

/// So many cycles, in one guest.
pub(crate) fn endure(workspace: &Workspace, cycles: u64) -> Result<Outcome> {
    if !(1..=MOST_CYCLES).contains(&cycles) {
        return Err(format!("--cycles takes 1 to {MOST_CYCLES}").into());
    }
    let options = Options {
        timeout: START_SECONDS.saturating_add(cycles.saturating_mul(CYCLE_SECONDS)),
        ..Options::default()
    };
    let lines = usize::try_from(cycles)?.saturating_mul(CYCLE_LINES).saturating_add(CYCLES.lines);
    run_with(workspace, &[&Suite { lines, ..CYCLES }], options, &format!("cycles={cycles}\n"))
}

fn nothing(_: &Workspace) -> Result<Found> {
    Ok(Vec::new())
}

/// The program.
fn the_program(workspace: &Workspace) -> Result<Found> {
    if !Cmd::cargo("build").args(["--locked", "-p", "te-cli", "--features", "rdma"]).run()? {
        return Err("te does not build".into());
    }
    Ok(vec![("te", workspace.target.join("debug/te"))])
}

/// The program, and the reference engine's interpreter.
fn the_reference(workspace: &Workspace) -> Result<Found> {
    let mut found = the_program(workspace)?;
    let environment = Environment::prepare(workspace)?;
    let meeting = environment.scripts.join("rdma_meeting.py");
    found.extend([("python", environment.python), ("meeting", meeting)]);
    Ok(found)
}

/// What every suite's script may use: `check NAME COMMAND..` prints one line, with what the command printed.
const PRELUDE: &str = r#"
check() {
	check_name=$1
	shift
	if check_said=$("$@" 2>&1); then check_word=ok; else check_word='not ok'; fi
	echo "$check_word $check_name: $(echo $check_said | cut -c1-300)"
}
"#;

pub(crate) fn names() -> Vec<&'static str> {
    SUITES.iter().map(|suite| suite.name).collect()
}

/// The suites that run unless others are named.
fn unnamed() -> Vec<&'static Suite> {
    SUITES.iter().filter(|suite| suite.name != STALLS).collect()
}

/// `guest-test [SUITE..] [OPTION..]`: the suites in one guest.
pub(crate) fn command(mut args: Args) -> Result<Outcome> {
    let options = Options::parse(&mut args)?;
    let mut wanted = Vec::new();
    while let Some(name) = args.positional() {
        let suite = SUITES.iter().find(|suite| suite.name == name);
        wanted.push(suite.ok_or_else(|| format!("no suite `{name}`; there are {}", names().join(", ")))?);
    }
    args.finish()?;
    if wanted.is_empty() {
        wanted = unnamed();
    }
    let outcome = run(&Workspace::load()?, &wanted, options)?;
    outcome.print();
    Ok(outcome)
}

/// A stage of the tests.
pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    run(workspace, &unnamed(), Options::default())
}

fn run(workspace: &Workspace, wanted: &[&Suite], options: Options) -> Result<Outcome> {
    run_with(workspace, wanted, options, "")
}

/// `settings`: variables of the scripts.
fn run_with(
    workspace: &Workspace,
    wanted: &[&Suite],
    mut options: Options,
    settings: &str,
) -> Result<Outcome> {
    let mut script = format!("{PRELUDE}{settings}");
    for suite in wanted {
        options = options.and(&(suite.needs)());
        for (package, example) in suite.examples {
            let program = build(workspace, package, example)?;
            writeln!(script, "{example}={}", quoted(&program))?;
        }
        for (name, path) in (suite.also)(workspace)? {
            writeln!(script, "{name}={}", quoted(&path))?;
        }
        writeln!(script, "echo 'suite {}'\n{}", suite.name, suite.script)?;
    }
    // The checks' lines are what counts.
    script.push_str("\nexit 0\n");
    let mut ended = super::start(workspace, &options, &script)?;
    if ended.never_began(wanted) {
        // The emulator hangs before its first line now and then. That says nothing of us, so it gets one more chance.
        println!("the guest ended with status {} before its first check; once more", ended.status);
        ended = super::start(workspace, &options, &script)?;
    }
    Ok(judge(wanted, &ended))
}

impl Ended {
    /// Whether it died, or took too long, before any suite began.
    fn never_began(&self, wanted: &[&Suite]) -> bool {
        let begins = |suite: &&Suite| self.output.contains(&format!("suite {}", suite.name));
        self.status != 0 && !wanted.iter().any(begins)
    }
}

fn build(workspace: &Workspace, package: &str, example: &str) -> Result<PathBuf> {
    if !Cmd::cargo("build").args(["--locked", "-p", package, "--example", example]).run()? {
        return Err(format!("{example} does not build").into());
    }
    Ok(workspace.target.join("debug/examples").join(example))
}

/// Counts the lines of each suite.
fn judge(wanted: &[&Suite], ended: &Ended) -> Outcome {
    let mut outcome = Outcome::default();
    if ended.status != 0 {
        outcome.fail(match ended.status {
            124 => "the guest took too long".to_owned(),
            status => format!("the guest ended with status {status}"),
        });
    }
    for suite in wanted {
        let begin = format!("suite {}", suite.name);
        let lines = ended.output.lines().map(str::trim_end).skip_while(|line| *line != begin).skip(1);
        let mut seen = 0;
        for line in lines.take_while(|line| !line.starts_with("suite ")) {
            if line.starts_with("ok ") {
                outcome.pass();
                seen += 1;
            } else if let Some(why) = line.strip_prefix("not ok ") {
                outcome.fail(format!("{}: {why}", suite.name));
                seen += 1;
            }
        }
        if seen < suite.lines {
            outcome.fail(format!("{}: {seen} checks of at least {} were made", suite.name, suite.lines));
        }
    }
    outcome
}

/// A path as a word of a script.
pub(super) fn quoted(path: &Path) -> String {
    boot::quoted(&path.to_string_lossy())
}

/// Runs one command in a guest.
pub(crate) fn words(command: &[String]) -> String {
    boot::words(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Suite =
        Suite { name: "two", needs: Options::default, examples: &[], also: nothing, script: "", lines: 2 };

    fn judged(status: u8, output: &str) -> Outcome {
        judge(&[&TWO], &Ended { status, output: output.to_owned() })
    }

    #[test]
    fn lines_of_the_suite_count() {
        let outcome =
            judged(0, "ok before: x\nsuite two\r\nok a: 1\nnoise\nnot ok b: why\nsuite other\nok c: 1\n");
        assert_eq!((outcome.passed, outcome.failed), (1, 1));
        assert_eq!(outcome.notes, ["two: b: why"]);
    }

    #[test]
    fn a_suite_that_ends_early_or_never_begins_fails() {
        assert_eq!(judged(0, "suite two\nok a: 1\n").failed, 1);
        assert_eq!(judged(0, "").failed, 1);
    }

    #[test]
    fn only_a_guest_that_never_began_gets_another_chance() {
        let ended = |status, output: &str| Ended { status, output: output.to_owned() };
        assert!(ended(124, "").never_began(&[&TWO]));
        assert!(!ended(124, "suite two\nok a: 1\n").never_began(&[&TWO]));
        assert!(!ended(0, "").never_began(&[&TWO]));
    }

    #[test]
    fn a_guest_that_died_fails() {
        let outcome = judged(125, "suite two\nok a: 1\nok b: 1\n");
        assert_eq!((outcome.passed, outcome.failed), (2, 1));
    }
}
