//! Writing: compact, members sorted by name, everything outside ASCII escaped, as the reference engine writes.

use std::{borrow::Cow, collections::BTreeMap, fmt::Write};

use serde_json::Value;

use crate::wire::RawJson;

/// A value to be written.
#[derive(Debug)]
pub(crate) enum Node<'a> {
    Null,
    Unsigned(u64),
    Signed(i64),
    Text(Cow<'a, str>),
    /// JSON text, taken over as it is.
    Raw(Cow<'a, str>),
    Array(Vec<Self>),
    /// Members in any order; of equal names the first is written.
    Object(Vec<(Cow<'a, str>, Self)>),
}

impl<'a> Node<'a> {
    pub(crate) fn text(text: impl Into<Cow<'a, str>>) -> Self {
        Self::Text(text.into())
    }

    pub(crate) fn texts(texts: &'a [String]) -> Self {
        Self::Array(texts.iter().map(|text| Self::text(text.as_str())).collect())
    }

    pub(crate) fn numbers(numbers: &[u64]) -> Self {
        Self::Array(numbers.iter().map(|number| Self::Unsigned(*number)).collect())
    }

    /// A value of the caller, whose depth has been checked.
    pub(crate) fn value(value: &'a Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(true) => Self::Raw(Cow::Borrowed("true")),
            Value::Bool(false) => Self::Raw(Cow::Borrowed("false")),
            Value::Number(number) => Self::Raw(Cow::Owned(number.to_string())),
            Value::String(text) => Self::text(text.as_str()),
            Value::Array(elements) => Self::Array(elements.iter().map(Self::value).collect()),
            Value::Object(members) => Self::Object(
                members
                    .iter()
                    .map(|(key, value)| (Cow::Borrowed(key.as_str()), Self::value(value)))
                    .collect(),
            ),
        }
    }

    /// An object of known members and those that were not understood.
    pub(crate) fn object(
        mut members: Vec<(Cow<'a, str>, Self)>,
        extra: &'a BTreeMap<String, RawJson>,
    ) -> Self {
        members.extend(
            extra.iter().map(|(key, raw)| (Cow::Borrowed(key.as_str()), Self::Raw(raw.as_str().into()))),
        );
        Self::Object(members)
    }

    /// The text.
    pub(crate) fn into_json(self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Unsigned(number) => push(out, number),
            Self::Signed(number) => push(out, number),
            Self::Text(text) => write_text(&text, out),
            Self::Raw(json) => out.push_str(&json),
            Self::Array(elements) => {
                out.push('[');
                for (i, element) in elements.into_iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    element.write(out);
                }
                out.push(']');
            }
            Self::Object(mut members) => {
                members.sort_by(|(a, _), (b, _)| a.cmp(b));
                members.dedup_by(|later, earlier| later.0 == earlier.0);
                out.push('{');
                for (i, (key, value)) in members.into_iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    write_text(&key, out);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

fn push(out: &mut String, value: impl std::fmt::Display) {
    // Writing to a string cannot fail.
    let _ = write!(out, "{value}");
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            ' '..='\u{7f}' => out.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}
