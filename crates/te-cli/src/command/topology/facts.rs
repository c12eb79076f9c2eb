//! An object of facts: what is known is a member, what is not known is null and has its reason in `unknown`.

use serde_json::{Map, Value};
use te_topology::Fact;

/// A JSON object in the making.
#[derive(Default)]
pub(super) struct Facts {
    members: Map<String, Value>,
    unknown: Map<String, Value>,
}

impl Facts {
    /// A member that is always known.
    pub(super) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.members.insert(key.to_owned(), value.into());
        self
    }

    /// A member that may not be known.
    pub(super) fn fact<T: Clone + Into<Value>>(self, key: &str, fact: &Fact<T>) -> Self {
        self.shown(key, fact, |value| value.clone().into())
    }

    /// A member that may not be known, in another form.
    pub(super) fn shown<T>(mut self, key: &str, fact: &Fact<T>, show: impl FnOnce(&T) -> Value) -> Self {
        let value = match fact {
            Ok(value) => show(value),
            Err(unknown) => {
                self.unknown.insert(key.to_owned(), unknown.to_string().into());
                Value::Null
            }
        };
        self.with(key, value)
    }

    /// The object.
    pub(super) fn object(self) -> Value {
        let mut members = self.members;
        if !self.unknown.is_empty() {
            members.insert("unknown".to_owned(), self.unknown.into());
        }
        members.into()
    }
}

#[cfg(test)]
mod tests {
    use te_topology::Root;

    use super::*;

    #[test]
    fn what_is_not_known_has_its_reason() {
        let absent: Fact<u64> = Root::at("/no/such/tree").parsed("sys/x", "a number");
        let facts = Facts::default().with("name", "a").fact("size", &absent).fact("free", &Ok(3_u64));
        let expected = r#"{"free":3,"name":"a","size":null,"unknown":{"size":"sys/x: not there"}}"#;
        assert_eq!(facts.object().to_string(), expected);
    }
}
