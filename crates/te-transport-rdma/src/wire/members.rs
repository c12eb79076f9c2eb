//! Reading the members of an object one by one, and writing them sorted.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use te_segment::wire::RawJson;

use super::{MAX_HANDSHAKE_BYTES, MAX_QUEUE_PAIRS, WireError};

/// The members of an object as text. Of members with one name the last counts.
pub(super) struct Members(BTreeMap<String, Box<RawValue>>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Split;

        impl<'de> Visitor<'de> for Split {
            type Value = Members;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_unit<E>(self) -> Result<Members, E> {
                Ok(Members(BTreeMap::new()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = BTreeMap::new();
                while let Some((name, value)) = map.next_entry()? {
                    members.insert(name, value);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_any(Split)
    }
}

impl Members {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() > MAX_HANDSHAKE_BYTES {
            return Err(WireError::TooLong { len: bytes.len(), limit: MAX_HANDSHAKE_BYTES });
        }
        serde_json::from_slice(bytes).map_err(|error| WireError::NotAnObject { cause: error.to_string() })
    }

    /// Whether a member, which stays, is true.
    pub(super) fn is_true(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|raw| raw.get() == "true")
    }

    /// A member that is an object itself, if it is one whose `accept` says so; else it stays.
    pub(super) fn object(&mut self, name: &str, accept: impl Fn(&mut Self) -> bool) -> Option<Self> {
        let Entry::Occupied(found) = self.0.entry(name.to_owned()) else { return None };
        let read = || serde_json::from_str::<Self>(found.get().get()).ok();
        let wanted = accept(&mut read()?).then(read)?;
        found.remove();
        wanted
    }

    /// A member taken out and read, if it is there and nested less than the parser's limit.
    fn take(&mut self, name: &'static str) -> Result<Option<Value>, WireError> {
        let Some(raw) = self.0.remove(name) else { return Ok(None) };
        let shallow = WireError::Member { member: name, expected: "nested so shallowly that it can be read" };
        serde_json::from_str(raw.get()).map(Some).map_err(|_| shallow)
    }

    pub(super) fn text(&mut self, member: &'static str) -> Result<String, WireError> {
        match self.take(member)? {
            None | Some(Value::Null) => Ok(String::new()),
            Some(Value::String(text)) => Ok(text),
            Some(Value::Number(number)) => Ok(number.to_string()),
            Some(Value::Bool(flag)) => Ok(flag.to_string()),
            Some(_) => Err(WireError::Member { member, expected: "text" }),
        }
    }

    /// An unsigned integer; `None` for everything else.
    pub(super) fn number(&mut self, member: &'static str) -> Option<u64> {
        self.take(member).ok().flatten().as_ref().and_then(integer)
    }

    /// A list of numbers of 24 bits, as queue pairs and packet sequences are; missing and null are empty.
    pub(super) fn numbers_24(&mut self, member: &'static str) -> Result<Vec<u32>, WireError> {
        let wrong = WireError::Member { member, expected: "a list of at most 255 numbers of 24 bits" };
        match self.take(member)? {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(items)) if items.len() <= MAX_QUEUE_PAIRS => items
                .iter()
                .map(|item| integer(item).filter(|n| *n < 1 << 24).and_then(|n| u32::try_from(n).ok()))
                .collect::<Option<_>>()
                .ok_or(wrong),
            Some(_) => Err(wrong),
        }
    }

    /// A flag whose presence matters: null is present and false.
    pub(super) fn flag(&mut self, member: &'static str) -> Result<Option<bool>, WireError> {
        match self.take(member)? {
            None => Ok(None),
            Some(Value::Null) => Ok(Some(false)),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(Value::Number(number)) => Ok(Some(number.as_f64() != Some(0.0))),
            Some(_) => Err(WireError::Member { member, expected: "true or false" }),
        }
    }

    /// What was not taken.
    pub(super) fn rest(self) -> Result<BTreeMap<String, RawJson>, WireError> {
        let keep = |(name, raw): (String, Box<RawValue>)| match RawJson::parse(raw.get()) {
            Ok(kept) => Ok((name, kept)),
            Err(error) => {
                Err(WireError::Unkept { member: name.chars().take(64).collect(), cause: error.to_string() })
            }
        };
        self.0.into_iter().map(keep).collect()
    }
}

/// The unsigned integer that a number is, also if it is written as an integral float.
fn integer(value: &Value) -> Option<u64> {
    let Value::Number(number) = value else { return None };
    number.as_u64().or_else(|| {
        // Beyond 2^53 a float no longer says which integer was meant.
        let float = number.as_f64()?;
        (float.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&float)).then_some(float as u64)
    })
}

/// Members going out, sorted. A known member wins over an unknown one of its name.
pub(super) struct Writer(BTreeMap<String, String>);

impl Writer {
    pub(super) fn new(unknown: &BTreeMap<String, RawJson>) -> Self {
        Self(unknown.iter().map(|(name, raw)| (name.clone(), raw.as_str().to_owned())).collect())
    }

    pub(super) fn value(self, name: &str, value: impl Into<Value>) -> Self {
        self.raw(name, Some(value.into().to_string()))
    }

    pub(super) fn optional(self, name: &str, value: Option<impl Into<Value>>) -> Self {
        self.raw(name, value.map(|value| value.into().to_string()))
    }

    /// JSON text, if there is any.
    pub(super) fn raw(mut self, name: &str, json: Option<String>) -> Self {
        if let Some(json) = json {
            self.0.insert(name.to_owned(), json);
        }
        self
    }

    pub(super) fn object(self) -> String {
        let members = self.0.into_iter().map(|(name, json)| format!("{}:{json}", Value::String(name)));
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    }

    pub(super) fn line(self) -> Vec<u8> {
        let mut line = self.object().into_bytes();
        line.push(b'\n');
        line
    }
}
