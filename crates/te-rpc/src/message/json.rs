//! Total reading and sorted writing of JSON objects.

use std::{collections::BTreeMap, fmt};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::MessageError;

/// Checks that `bytes` are one JSON text, nested at most 127 levels, without building anything from it.
pub fn check_json(bytes: &[u8]) -> Result<(), MessageError> {
    serde_json::from_slice::<WellFormed>(bytes).map(drop).map_err(MessageError::NotJson)
}

/// Accepts any JSON value and keeps nothing. Unlike [`serde::de::IgnoredAny`] it recurses, so that the nesting limit
/// of the parser applies, and it checks text for UTF-8.
struct WellFormed;

impl<'de> Deserialize<'de> for WellFormed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for WellFormed {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self, A::Error> {
        while seq.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

/// The members of an object body; null has none.
pub(crate) struct Members(Map<String, Value>);

impl Members {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, MessageError> {
        match serde_json::from_slice(body).map_err(MessageError::NotJson)? {
            Value::Object(members) => Ok(Self(members)),
            Value::Null => Ok(Self(Map::new())),
            other => Err(MessageError::NotAnObject { found: kind_of(&other) }),
        }
    }

    /// A text member; missing and null are empty.
    pub(crate) fn text(&mut self, member: &'static str) -> Result<String, MessageError> {
        Ok(self.optional_text(member)?.unwrap_or_default())
    }

    /// A text member; missing and null are [`None`].
    pub(crate) fn optional_text(&mut self, member: &'static str) -> Result<Option<String>, MessageError> {
        match self.0.remove(member) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(Value::Bool(flag)) => Ok(Some(flag.to_string())),
            Some(Value::Array(_) | Value::Object(_)) => {
                Err(MessageError::Member { member, expected: "text" })
            }
        }
    }

    /// A list of 32-bit numbers; missing and null are [`None`].
    pub(crate) fn numbers(&mut self, member: &'static str) -> Result<Option<Vec<u32>>, MessageError> {
        let wrong = MessageError::Member { member, expected: "a list of numbers from 0 to 4294967295" };
        match self.0.remove(member) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(items)) => {
                let numbers = items.iter().map(|item| integer(item).and_then(|n| u32::try_from(n).ok()));
                numbers.collect::<Option<_>>().map(Some).ok_or(wrong)
            }
            Some(_) => Err(wrong),
        }
    }

    /// An integer; missing and null are [`None`].
    pub(crate) fn integer(&mut self, member: &'static str) -> Result<Option<i64>, MessageError> {
        match self.0.remove(member) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => integer(&value)
                .and_then(|n| i64::try_from(n).ok())
                .map(Some)
                .ok_or(MessageError::Member { member, expected: "an integer" }),
        }
    }

    /// A flag whose presence matters: missing is [`None`], null is present and false.
    pub(crate) fn flag(&mut self, member: &'static str) -> Result<Option<bool>, MessageError> {
        match self.0.remove(member) {
            None => Ok(None),
            Some(Value::Null) => Ok(Some(false)),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(Value::Number(number)) => Ok(Some(number.as_f64() != Some(0.0))),
            Some(_) => Err(MessageError::Member { member, expected: "true or false" }),
        }
    }

    /// A member as it is.
    pub(crate) fn raw(&mut self, member: &str) -> Option<Value> {
        self.0.remove(member)
    }

    /// What was not taken.
    pub(crate) fn rest(self) -> BTreeMap<String, Value> {
        self.0.into_iter().collect()
    }
}

/// The number as an integer, also if it is written as an integral float.
pub(crate) fn integer(value: &Value) -> Option<i128> {
    let Value::Number(number) = value else { return None };
    if let Some(n) = number.as_i64() {
        return Some(i128::from(n));
    }
    if let Some(n) = number.as_u64() {
        return Some(i128::from(n));
    }
    // Beyond 2^53 a float is no longer every integer, so it does not say which one was meant.
    let float = number.as_f64()?;
    (float.fract() == 0.0 && float.abs() <= (1_i64 << 53) as f64).then_some(float as i128)
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Collects the members of an outgoing object, sorted. A member of the message itself wins over an unknown one.
pub(crate) struct Writer(BTreeMap<String, Value>);

impl Writer {
    pub(crate) fn new(unknown: &BTreeMap<String, Value>) -> Self {
        Self(unknown.clone())
    }

    pub(crate) fn member(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    pub(crate) fn optional(self, name: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.member(name, value),
            None => self,
        }
    }

    /// Compact JSON and a newline.
    pub(crate) fn finish(self) -> Vec<u8> {
        // Collected through a sorted map: an object of the JSON library may keep insertion order instead.
        let mut bytes = vec![b'{'];
        for (index, (name, value)) in self.0.into_iter().enumerate() {
            if index > 0 {
                bytes.push(b',');
            }
            bytes.extend_from_slice(Value::String(name).to_string().as_bytes());
            bytes.push(b':');
            bytes.extend_from_slice(value.to_string().as_bytes());
        }
        bytes.extend_from_slice(b"}\n");
        bytes
    }
}
