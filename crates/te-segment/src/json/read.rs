//! Typed reading of parts of a document, each error naming the member.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::{
    error::{DescriptorError, FieldError, FieldProblem, JsonKind, Path, shorten},
    wire::RawJson,
};

/// The members of an object, sorted by name. Of members with the same name the last counts.
pub(crate) struct Members<'a>(Vec<(Cow<'a, str>, Option<&'a RawValue>)>);

impl<'a> Members<'a> {
    /// Splits a whole document, whose size and depth have been checked.
    pub(crate) fn of_document(bytes: &'a [u8]) -> Result<Self, DescriptorError> {
        let root: &RawValue = serde_json::from_slice(bytes)
            .map_err(|e| DescriptorError::Syntax { line: e.line(), column: e.column() })?;
        match kind(root) {
            JsonKind::Null => Err(DescriptorError::Null),
            JsonKind::Object => Ok(Self::read(root, &Path::Root)?),
            found => Err(DescriptorError::NotAnObject { found }),
        }
    }

    /// Splits an object.
    pub(crate) fn read(raw: &'a RawValue, path: &Path<'_>) -> Result<Self, FieldError> {
        expect(raw, JsonKind::Object, path)?;
        // The text is valid JSON; only the text of a name can be wrong.
        serde_json::from_str(raw.get()).map_err(|_| path.error(FieldProblem::Unrepresentable))
    }

    /// Takes a member out. Null counts as absent and stays.
    pub(crate) fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        let at = self.0.binary_search_by(|(key, _)| key.as_ref().cmp(name)).ok()?;
        let slot = &mut self.0.get_mut(at)?.1;
        match slot {
            Some(raw) if kind(raw) != JsonKind::Null => slot.take(),
            _ => None,
        }
    }

    /// Takes a member out and reads it.
    pub(crate) fn take_as<T>(
        &mut self,
        name: &str,
        path: &Path<'_>,
        read: impl FnOnce(&'a RawValue, &Path<'_>) -> Result<T, FieldError>,
    ) -> Result<Option<T>, FieldError> {
        self.take(name).map(|raw| read(raw, &path.member(name))).transpose()
    }

    /// Takes a member out if it can be read; otherwise it stays and the error is given back beside.
    pub(crate) fn try_take_as<T>(
        &mut self,
        name: &str,
        path: &Path<'_>,
        read: impl FnOnce(&'a RawValue, &Path<'_>) -> Result<T, FieldError>,
    ) -> Result<Option<T>, FieldError> {
        let result = self.take_as_ref(name).map(|raw| read(raw, &path.member(name))).transpose();
        if matches!(result, Ok(Some(_))) {
            self.take(name);
        }
        result
    }

    fn take_as_ref(&self, name: &str) -> Option<&'a RawValue> {
        let at = self.0.binary_search_by(|(key, _)| key.as_ref().cmp(name)).ok()?;
        self.0.get(at)?.1.filter(|raw| kind(raw) != JsonKind::Null)
    }

    /// What has not been taken.
    pub(crate) fn rest(self) -> BTreeMap<String, RawJson> {
        self.0
            .into_iter()
            .filter_map(|(key, raw)| Some((key.into_owned(), RawJson::from_raw(raw?))))
            .collect()
    }

    /// Every member that has not been taken, null ones included.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().filter_map(|(key, raw)| Some((key.as_ref(), (*raw)?)))
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Split;

        impl<'de> Visitor<'de> for Split {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(key) = map.next_key_seed(Key)? {
                    members.push((key, Some(map.next_value()?)));
                }
                // The sort is stable: of equal names the last written comes last, and is the one kept.
                members.sort_by(|(a, _), (b, _)| a.cmp(b));
                members.dedup_by(|later, earlier| {
                    let same = later.0 == earlier.0;
                    if same {
                        earlier.1 = later.1;
                    }
                    same
                });
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Split)
    }
}

/// A name of a member, borrowed where it has no escapes.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

/// What kind of value a text is.
pub(crate) fn kind(raw: &RawValue) -> JsonKind {
    match raw.get().bytes().next() {
        Some(b'{') => JsonKind::Object,
        Some(b'[') => JsonKind::Array,
        Some(b'"') => JsonKind::String,
        Some(b't' | b'f') => JsonKind::Boolean,
        Some(b'n') | None => JsonKind::Null,
        Some(_) => JsonKind::Number,
    }
}

fn expect(raw: &RawValue, expected: JsonKind, path: &Path<'_>) -> Result<(), FieldError> {
    match kind(raw) {
        found if found == expected => Ok(()),
        JsonKind::Null => Err(path.error(FieldProblem::Missing)),
        found => Err(path.error(FieldProblem::WrongType { expected, found })),
    }
}

/// Reads an integer from 0 to `max`.
pub(crate) fn read_uint(raw: &RawValue, path: &Path<'_>, max: u64) -> Result<u64, FieldError> {
    expect(raw, JsonKind::Number, path)?;
    match raw.get().parse() {
        Ok(number) if number <= max => Ok(number),
        _ => Err(path.error(FieldProblem::OutOfRange { number: shorten(raw.get()), min: 0, max })),
    }
}

/// Reads a 64-bit unsigned integer.
pub(crate) fn read_u64(raw: &RawValue, path: &Path<'_>) -> Result<u64, FieldError> {
    read_uint(raw, path, u64::MAX)
}

/// Reads a 64-bit signed integer.
pub(crate) fn read_i64(raw: &RawValue, path: &Path<'_>) -> Result<i64, FieldError> {
    expect(raw, JsonKind::Number, path)?;
    raw.get().parse().map_err(|_| {
        let number = shorten(raw.get());
        path.error(FieldProblem::OutOfRange { number, min: i64::MIN, max: i64::MAX.unsigned_abs() })
    })
}

/// Reads a string.
pub(crate) fn read_text(raw: &RawValue, path: &Path<'_>) -> Result<String, FieldError> {
    expect(raw, JsonKind::String, path)?;
    serde_json::from_str(raw.get()).map_err(|_| path.error(FieldProblem::Unrepresentable))
}

/// Splits an array into at most `limit` elements.
pub(crate) fn elements<'a>(
    raw: &'a RawValue,
    path: &Path<'_>,
    limit: usize,
) -> Result<Vec<&'a RawValue>, FieldError> {
    expect(raw, JsonKind::Array, path)?;
    let elements: Vec<&RawValue> =
        serde_json::from_str(raw.get()).map_err(|_| path.error(FieldProblem::Unrepresentable))?;
    if elements.len() > limit {
        return Err(path.error(FieldProblem::TooLong { len: elements.len(), limit }));
    }
    Ok(elements)
}

fn read_each<'a, T>(
    raw: &'a RawValue,
    path: &Path<'_>,
    read: impl Fn(&'a RawValue, &Path<'_>) -> Result<T, FieldError>,
) -> Result<Vec<T>, FieldError> {
    elements(raw, path, usize::MAX)?
        .into_iter()
        .enumerate()
        .map(|(i, element)| read(element, &path.index(i)))
        .collect()
}

/// Reads an array of 64-bit unsigned integers.
pub(crate) fn read_u64s(raw: &RawValue, path: &Path<'_>) -> Result<Vec<u64>, FieldError> {
    read_each(raw, path, read_u64)
}

/// Reads an array of strings.
pub(crate) fn read_texts(raw: &RawValue, path: &Path<'_>) -> Result<Vec<String>, FieldError> {
    read_each(raw, path, read_text)
}
