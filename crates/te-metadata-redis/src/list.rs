//! Many keys at once: which there are, what they hold, and what is left of their leases.

use std::{collections::BTreeSet, time::Duration};

use redis::{Value, aio::MultiplexedConnection};
use te_metadata::{Entry, Key};

use crate::{
    failure::Failure,
    scripts::{self, RESERVED},
    store::{nonsense, number, read},
};

/// Keys asked for in one scan step, and read in one script, so that nobody else waits long.
const SCAN: usize = 512;
const CHUNK: usize = 32;

/// The keys with a prefix, in byte order. Those that are there all the time are all among them.
pub(crate) async fn scan(
    connection: &mut MultiplexedConnection,
    prefix: &str,
) -> Result<BTreeSet<String>, Failure> {
    let pattern = scripts::pattern(prefix);
    let mut keys = BTreeSet::new();
    let mut cursor = 0;
    loop {
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN);
        let answer: Value = command.query_async(connection).await?;
        let Value::Array(parts) = answer else { return Err(nonsense()) };
        let [next, Value::Array(found)] = parts.as_slice() else { return Err(nonsense()) };
        for key in found {
            let Value::BulkString(bytes) = key else { continue };
            // Keys that are not text are nobody's of ours.
            if let Ok(key) = std::str::from_utf8(bytes)
                && key.starts_with(prefix)
                && !key.starts_with(RESERVED)
            {
                keys.insert(key.to_owned());
            }
        }
        cursor = number(next).ok_or_else(nonsense)?;
        if cursor == 0 {
            return Ok(keys);
        }
    }
}

/// Reads many keys a few at a time.
pub(crate) async fn read_all(
    connection: &mut MultiplexedConnection,
    keys: &BTreeSet<String>,
    values: bool,
) -> Result<Vec<(String, u64, Vec<u8>)>, Failure> {
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut all = Vec::with_capacity(keys.len());
    for chunk in keys.chunks(CHUNK) {
        for (key, found) in chunk.iter().zip(read(connection, chunk, values).await?) {
            if let Some((revision, value)) = found {
                all.push(((*key).to_owned(), revision, value));
            }
        }
    }
    Ok(all)
}

/// A key as it was read. A value that is no text is nobody's of ours.
pub(crate) fn text((key, revision, value): (String, u64, Vec<u8>)) -> Option<(Key, Entry)> {
    Some((Key::new(key), Entry { value: String::from_utf8(value).ok()?, revision }))
}

/// What is left of the leases of keys, in their order: one round trip for many.
pub(crate) async fn remaining(
    connection: &mut MultiplexedConnection,
    keys: &[&str],
) -> Result<Vec<Option<Duration>>, Failure> {
    let mut all = Vec::with_capacity(keys.len());
    for chunk in keys.chunks(SCAN) {
        let mut pipe = redis::pipe();
        for key in chunk {
            pipe.cmd("PTTL").arg(*key);
        }
        let answers: Vec<i64> = pipe.query_async(connection).await?;
        if answers.len() != chunk.len() {
            return Err(nonsense());
        }
        // Negative: no lease, or gone.
        all.extend(answers.into_iter().map(|left| u64::try_from(left).ok().map(Duration::from_millis)));
    }
    Ok(all)
}
