//! Where a segment's records lie in a store.
//!
//! The scheme is the reference engine's (wire spec): `mooncake/ram/NAME` for a segment, `mooncake/NAME` when the
//! name itself contains a `/`, `mooncake/rpc_meta/NAME` for the RPC location; a cluster id is one more component
//! after `mooncake/`. Names are used as they are, without any escaping.

use std::fmt;

use te_segment::SegmentName;

const ROOT: &str = "mooncake/";
const RAM: &str = "ram/";
const RPC_META: &str = "rpc_meta/";
const MAX_CLUSTER_BYTES: usize = 1024;

/// Why a text is not a cluster id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterIdError {
    /// The text is empty. A deployment without a cluster id has no [`ClusterId`] at all.
    #[error("cluster id is empty")]
    Empty,
    /// The text is longer than the limit.
    #[error("cluster id has {len} bytes, at most {limit} are allowed")]
    TooLong {
        /// Length in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The first component would make another cluster's keys look like ours.
    #[error("first component {component:?} of a cluster id is reserved by the key scheme")]
    Reserved {
        /// The component.
        component: String,
    },
    /// A character that no key may hold.
    #[error("character {character:?} at byte {at} of a cluster id is not allowed")]
    Character {
        /// The character.
        character: char,
        /// Its byte offset.
        at: usize,
    },
}

/// Separates deployments that share one store: a component of every key.
///
/// Kept without its trailing `/`; the reference engine treats `a` and `a/` alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterId(String);

impl ClusterId {
    /// Checks a cluster id: 1 to 1,024 bytes, no control character, first component neither empty nor `ram` nor
    /// `rpc_meta`. One trailing `/` is dropped.
    ///
    /// # Errors
    /// [`ClusterIdError`] says which rule the text breaks.
    pub fn new(text: &str) -> Result<Self, ClusterIdError> {
        let id = text.strip_suffix('/').unwrap_or(text);
        if text.is_empty() {
            return Err(ClusterIdError::Empty);
        }
        if text.len() > MAX_CLUSTER_BYTES {
            return Err(ClusterIdError::TooLong { len: text.len(), limit: MAX_CLUSTER_BYTES });
        }
        if let Some((at, character)) = id.char_indices().find(|(_, c)| c.is_control()) {
            return Err(ClusterIdError::Character { character, at });
        }
        match id.split('/').next().unwrap_or_default() {
            first @ ("" | "ram" | "rpc_meta") => {
                Err(ClusterIdError::Reserved { component: first.to_owned() })
            }
            _ => Ok(Self(id.to_owned())),
        }
    }

    /// The id without a trailing `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A key of a metadata store, without a leading `/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(String);

impl Key {
    /// A key of any text. [`Keys`] makes the ones of segments.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What a key found in a store is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySubject {
    /// The descriptor of this segment.
    Segment(SegmentName),
    /// The RPC location of this segment's engine.
    RpcMeta(SegmentName),
}

/// Makes the keys of one deployment and reads them back.
///
/// No two names share a key within one cluster id, and no segment key equals an RPC location key, because a
/// [`SegmentName`] never begins with `ram/` or `rpc_meta/`. Across deployments the scheme cannot promise that: with
/// no cluster id the name `c/ram/x` has the key of segment `x` of cluster `c`.
///
/// ```
/// use te_metadata::{ClusterId, Keys};
/// use te_segment::SegmentName;
///
/// let keys = Keys::new(Some(ClusterId::new("blue")?));
/// assert_eq!(keys.segment(&SegmentName::new("decode-7")?).as_str(), "mooncake/blue/ram/decode-7");
/// assert_eq!(keys.segment(&SegmentName::new("nvmeof/disk7")?).as_str(), "mooncake/blue/nvmeof/disk7");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    cluster: Option<ClusterId>,
}

impl Keys {
    /// The keys of the deployment with this cluster id; `None` is the deployment without one.
    pub fn new(cluster: Option<ClusterId>) -> Self {
        Self { cluster }
    }

    /// The cluster id, if the deployment has one.
    pub fn cluster(&self) -> Option<&ClusterId> {
        self.cluster.as_ref()
    }

    /// What all keys of this deployment begin with; ends in `/`.
    pub fn prefix(&self) -> String {
        match &self.cluster {
            Some(cluster) => format!("{ROOT}{cluster}/"),
            None => ROOT.to_owned(),
        }
    }

    /// The key of a segment's descriptor. A name that contains `/` has no `ram/` before it.
    pub fn segment(&self, name: &SegmentName) -> Key {
        let ram = if name.as_str().contains('/') { "" } else { RAM };
        Key(format!("{}{ram}{name}", self.prefix()))
    }

    /// The key of the RPC location of the engine with this name.
    pub fn rpc_meta(&self, name: &SegmentName) -> Key {
        Key(format!("{}{RPC_META}{name}", self.prefix()))
    }

    /// What a key is about, or `None` if this deployment would not have written it.
    pub fn subject(&self, key: &str) -> Option<KeySubject> {
        let rest = match &self.cluster {
            Some(cluster) => key.strip_prefix(ROOT)?.strip_prefix(cluster.as_str())?.strip_prefix('/')?,
            None => key.strip_prefix(ROOT)?,
        };
        let (name, rpc_meta) = match (rest.strip_prefix(RAM), rest.strip_prefix(RPC_META)) {
            (Some(name), _) if name.contains('/') => return None,
            (Some(name), _) => (name, false),
            (None, Some(name)) => (name, true),
            (None, None) if rest.contains('/') => (rest, false),
            (None, None) => return None,
        };
        let name = SegmentName::new(name).ok()?;
        Some(if rpc_meta { KeySubject::RpcMeta(name) } else { KeySubject::Segment(name) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> SegmentName {
        SegmentName::new(text).unwrap()
    }

    fn cluster(text: &str) -> Keys {
        Keys::new(Some(ClusterId::new(text).unwrap()))
    }

    #[test]
    fn plain_name_lies_under_ram() {
        assert_eq!(Keys::default().segment(&name("node-a")).as_str(), "mooncake/ram/node-a");
    }

    #[test]
    fn name_with_a_slash_gets_no_ram() {
        assert_eq!(Keys::default().segment(&name("nvmeof/disk7")).as_str(), "mooncake/nvmeof/disk7");
    }

    #[test]
    fn names_are_not_escaped() {
        assert_eq!(
            Keys::default().segment(&name("[2001:db8::1]:12345")).as_str(),
            "mooncake/ram/[2001:db8::1]:12345"
        );
    }

    /// The keys a reference engine used with cluster id `clu` and the name `dir/node-c`.
    #[test]
    fn cluster_id_is_one_more_component() {
        let keys = cluster("clu");
        assert_eq!(keys.segment(&name("dir/node-c")).as_str(), "mooncake/clu/dir/node-c");
        assert_eq!(keys.rpc_meta(&name("dir/node-c")).as_str(), "mooncake/clu/rpc_meta/dir/node-c");
    }

    #[test]
    fn cluster_id_with_trailing_slash_is_the_same_cluster() {
        assert_eq!(cluster("clu/"), cluster("clu"));
    }

    #[test]
    fn cluster_ids_that_would_shadow_other_keys_are_refused() {
        for id in ["ram", "rpc_meta", "ram/x", "/", "/a"] {
            assert!(matches!(ClusterId::new(id), Err(ClusterIdError::Reserved { .. })), "{id}");
        }
        assert_eq!(ClusterId::new(""), Err(ClusterIdError::Empty));
        assert!(matches!(ClusterId::new("a\n"), Err(ClusterIdError::Character { at: 1, .. })));
        assert!(matches!(ClusterId::new(&"a".repeat(1025)), Err(ClusterIdError::TooLong { .. })));
    }

    #[test]
    fn key_of_another_cluster_is_nobodys() {
        let key = cluster("other").segment(&name("x"));
        assert_eq!(cluster("clu").subject(key.as_str()), None);
        assert_eq!(cluster("oth").subject(key.as_str()), None);
    }

    fn any_name() -> impl Strategy<Value = SegmentName> {
        "[a-c/:.]{1,8}|(ram|rpc_meta|mooncake)[/a]{0,3}|[a-z]{1,4}/(ram|rpc_meta)/[a-c]{0,3}|\\PC{1,12}"
            .prop_filter_map("a legal name", |text| SegmentName::new(&text).ok())
    }

    fn any_keys() -> impl Strategy<Value = Keys> {
        prop_oneof![
            Just(Keys::default()),
            "[a-c/]{1,4}"
                .prop_filter_map("a legal id", |id| Some(Keys::new(Some(ClusterId::new(&id).ok()?)))),
        ]
    }

    proptest! {
        #[test]
        fn no_two_names_share_a_key(a in any_name(), b in any_name(), keys in any_keys()) {
            prop_assert_eq!(keys.segment(&a) == keys.segment(&b), a == b);
            prop_assert_eq!(keys.rpc_meta(&a) == keys.rpc_meta(&b), a == b);
            prop_assert_ne!(keys.segment(&a), keys.rpc_meta(&b));
        }

        #[test]
        fn a_key_leads_back_to_its_name(a in any_name(), keys in any_keys()) {
            prop_assert_eq!(
                keys.subject(keys.segment(&a).as_str()), Some(KeySubject::Segment(a.clone())));
            prop_assert_eq!(
                keys.subject(keys.rpc_meta(&a).as_str()), Some(KeySubject::RpcMeta(a.clone())));
        }

        #[test]
        fn any_text_as_key_is_handled(text in "(mooncake/)?(ram/|rpc_meta/)?\\PC{0,12}", keys in any_keys()) {
            if let Some(KeySubject::Segment(name)) = keys.subject(&text) {
                prop_assert_eq!(keys.segment(&name).as_str().to_owned(), text);
            }
        }
    }
}
