//! The scripts that the server runs, each atomically.
//!
//! Redis has no revisions, so there is a note beside each key: the revision, and the SHA-1 of the value it is about. A
//! write by somebody who knows nothing of notes leaves the note of an older value behind; whoever reads next finds that
//! it is not about this value and gives the value a revision of its own. Revisions are microseconds of the server's
//! clock, or one more than the last if that is later: they grow, also across the loss of all data.

use std::sync::LazyLock;

use redis::Script;

/// All keys of the store's own begin with it.
pub(crate) const RESERVED: &str = "te:revision";
/// The last revision given.
pub(crate) const COUNTER: &str = "te:revision";
/// Larger values are not put into the message about their change.
pub(crate) const INLINE: usize = 64 << 10;

/// The key of a key's note.
pub(crate) fn note(key: &str) -> String {
    format!("{RESERVED}:{key}")
}

/// The channel on which changes of a key are told. Channels are shared by all databases of a server.
pub(crate) fn channel(database: u32, key: &str) -> String {
    format!("te:changes:{database}:{key}")
}

const COMMON: &str = r"
local function next_revision(counter)
  local time = redis.call('TIME')
  local new = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local last = tonumber(redis.call('GET', counter) or '0') or 0
  if last >= new then new = last + 1 end
  local text = string.format('%.0f', new)
  redis.call('SET', counter, text)
  return text
end

local function write_note(note, revision, value, ttl)
  local text = revision .. ' ' .. redis.sha1hex(value)
  if ttl and tonumber(ttl) > 0 then
    redis.call('SET', note, text, 'PX', ttl)
  else
    redis.call('SET', note, text)
  end
end

local function revision_of(value, key, note, counter)
  local text = redis.call('GET', note)
  if text then
    local revision, hash = string.match(text, '^(%d+) (%x+)$')
    if hash == redis.sha1hex(value) then return revision end
  end
  local revision = next_revision(counter)
  write_note(note, revision, value, redis.call('PTTL', key))
  return revision
end
";

/// `KEYS`: counter, then key and note of each; `ARGV`: `values` or `revisions`. Gives for each key a list: empty if it
/// is not there or no text, else revision and, if asked for, value. The revision is 0 where notes cannot be written.
pub(crate) static READ: LazyLock<Script> = LazyLock::new(|| {
    script(
        r"
local found = {}
for at = 2, #KEYS, 2 do
  local value = redis.pcall('GET', KEYS[at])
  if type(value) == 'table' and #KEYS == 3 then return value end
  if type(value) ~= 'string' then
    found[#found + 1] = {}
  else
    local known, revision = pcall(revision_of, value, KEYS[at], KEYS[at + 1], KEYS[1])
    if not known or type(revision) ~= 'string' then revision = '0' end
    if ARGV[1] == 'values' then
      found[#found + 1] = { revision, value }
    else
      found[#found + 1] = { revision }
    end
  end
end
return found
",
    )
});

/// `KEYS`: counter, key, note; `ARGV`: value, expected revision or empty for none, milliseconds or empty, channel, size
/// up to which the value is told. Gives `{ok, revision}`, not `ok` with the revision found, empty if none.
pub(crate) static PUT: LazyLock<Script> = LazyLock::new(|| {
    script(
        r"
local value = redis.call('GET', KEYS[2])
local current = ''
if value then current = revision_of(value, KEYS[2], KEYS[3], KEYS[1]) end
if current ~= ARGV[2] then return { 0, current } end
local revision = next_revision(KEYS[1])
if ARGV[3] == '' then
  redis.call('SET', KEYS[2], ARGV[1])
else
  redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[3])
end
write_note(KEYS[3], revision, ARGV[1], ARGV[3] ~= '' and ARGV[3])
if #ARGV[1] <= tonumber(ARGV[5]) then
  redis.pcall('PUBLISH', ARGV[4], 'P' .. revision .. ' ' .. ARGV[1])
else
  redis.pcall('PUBLISH', ARGV[4], 'N' .. revision)
end
return { 1, revision }
",
    )
});

/// `KEYS`: counter, key, note; `ARGV`: expected revision, channel. Answers like [`PUT`].
pub(crate) static DELETE: LazyLock<Script> = LazyLock::new(|| {
    script(
        r"
local value = redis.call('GET', KEYS[2])
if not value then return { 0, '' } end
local current = revision_of(value, KEYS[2], KEYS[3], KEYS[1])
if current ~= ARGV[1] then return { 0, current } end
local revision = next_revision(KEYS[1])
redis.call('DEL', KEYS[2], KEYS[3])
redis.pcall('PUBLISH', ARGV[2], 'D' .. revision)
return { 1, revision }
",
    )
});

/// `KEYS`: counter, key, note; `ARGV`: expected revision, milliseconds. Answers like [`PUT`].
pub(crate) static RENEW: LazyLock<Script> = LazyLock::new(|| {
    script(
        r"
local value = redis.call('GET', KEYS[2])
if not value then return { 0, '' } end
local current = revision_of(value, KEYS[2], KEYS[3], KEYS[1])
if current ~= ARGV[1] then return { 0, current } end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
redis.call('PEXPIRE', KEYS[3], ARGV[2])
return { 1, current }
",
    )
});

fn script(body: &str) -> Script {
    Script::new(&format!("{COMMON}{body}"))
}

/// A text that a pattern of the server matches exactly, and any continuation of it.
pub(crate) fn pattern(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 1);
    for character in prefix.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern.push('*');
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_no_pattern() {
        assert_eq!(pattern("a*b?[c]\\"), "a\\*b\\?\\[c\\]\\\\*");
        assert_eq!(pattern(""), "*");
    }

    #[test]
    fn own_keys_are_reserved() {
        assert!(note("a").starts_with(RESERVED) && COUNTER.starts_with(RESERVED));
    }
}
