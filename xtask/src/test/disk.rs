//! Room on the disk that holds `target/`. Servers and compilers that find none fail in ways that name anything else.

use std::path::Path;

use crate::Result;
use crate::shell::Cmd;

const GIB: u64 = 1 << 30;

/// With less than this a stage does not begin.
const NEEDED: u64 = 2 * GIB;

/// What is free where `path` is, or will be, in bytes.
pub(crate) fn free(path: &Path) -> Result<u64> {
    let path = path.ancestors().find(|path| path.exists()).unwrap_or_else(|| Path::new("."));
    parse(&Cmd::new("df").args(["-Pk"]).arg(path).read()?)
}

/// The fourth column of the second line, which POSIX promises to be what is available, in KiB.
fn parse(table: &str) -> Result<u64> {
    let available = table.lines().nth(1).and_then(|line| line.split_whitespace().nth(3));
    let kib: u64 = available.ok_or("df printed no second line of four columns")?.parse()?;
    Ok(kib * 1024)
}

/// An error if a stage would run out of room.
pub(crate) fn suffices(free: u64, path: &Path) -> Result<()> {
    if free < NEEDED {
        return Err(format!(
            "{} has {} left, and a stage needs {}: remove what is old there, or set CARGO_TARGET_DIR to another disk",
            path.display(),
            shown(free),
            shown(NEEDED)
        )
        .into());
    }
    Ok(())
}

/// In GiB, one decimal.
pub(crate) fn shown(bytes: u64) -> String {
    format!("{}.{} GiB", bytes / GIB, bytes % GIB * 10 / GIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_available_column_is_read() {
        let table = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/x 100 60 40 60% /\n";
        assert_eq!(parse(table).unwrap(), 40 * 1024);
        assert!(parse("Filesystem\n").is_err());
    }

    #[test]
    fn too_little_room_is_said_before_anything_fails_of_it() {
        assert!(suffices(NEEDED, Path::new("/x")).is_ok());
        let error = suffices(GIB / 2, Path::new("/x")).unwrap_err().to_string();
        assert!(error.starts_with("/x has 0.5 GiB left, and a stage needs 2.0 GiB"), "{error}");
    }

    #[test]
    fn this_disk_can_be_asked() {
        assert!(free(Path::new(".")).unwrap() > 0);
        assert!(free(Path::new("target/not/there/yet")).unwrap() > 0);
    }
}
