//! What is made of the keys that a store holds.

use te_metadata::{Entry, Key};

use super::*;

const PLACE: &str = r#"{"ip_or_host_name":"10.0.0.7","rpc_port":15001}"#;
const LEASE: Duration = Duration::from_secs(7);

fn record(name: &str) -> String {
    format!(r#"{{"name":"{name}","protocol":"tcp","tcp_data_port":1,"devices":[],"buffers":[]}}"#)
}

fn found(key: &str, value: &str) -> LeasedEntry {
    let entry = Entry { value: value.to_owned(), revision: 1 };
    LeasedEntry { key: Key::new(key), entry, remaining: None }
}

fn listing(cluster: Option<&str>, found: &[LeasedEntry]) -> Listing {
    sort_out(&Keys::new(cluster.map(|id| ClusterId::new(id).unwrap())), found)
}

/// The names listed, and how many are elsewhere.
fn names(cluster: Option<&str>, found: &[LeasedEntry]) -> (Vec<String>, Vec<(String, usize)>) {
    let listing = listing(cluster, found);
    let names = listing.names.iter().map(|one| one.name.to_string()).collect();
    (names, listing.others.into_iter().map(|(id, count)| (id.to_string(), count)).collect())
}

/// The two records of a name in a cluster.
fn published(cluster: Option<&str>, name: &str) -> Vec<LeasedEntry> {
    let keys = Keys::new(cluster.map(|id| ClusterId::new(id).unwrap()));
    let segment = SegmentName::new(name).unwrap();
    vec![
        found(keys.segment(&segment).as_str(), &record(name)),
        found(keys.rpc_meta(&segment).as_str(), PLACE),
    ]
}

#[test]
fn a_record_and_its_place_are_one_line() {
    let listing = listing(None, &published(None, "node"));
    let [listed] = listing.names.as_slice() else { panic!("{listing:?}") };
    assert!(listed.descriptor.is_some(), "{:?}", listed.unreadable);
    assert_eq!(listed.endpoint.as_ref().map(ToString::to_string).as_deref(), Some("10.0.0.7:15001"));
    assert_eq!(listed.lease, None);
}

#[test]
fn the_shorter_of_two_leases_counts() {
    let mut records = published(None, "node");
    records[0].remaining = Some(LEASE * 2);
    records[1].remaining = Some(LEASE);
    assert_eq!(listing(None, &records).names[0].lease, Some(LEASE));
    records[1].remaining = None;
    assert_eq!(listing(None, &records).names[0].lease, Some(LEASE * 2));
}

#[test]
fn what_cannot_be_read_is_listed_with_the_reason() {
    let listing = listing(None, &[found("mooncake/ram/node", "{")]);
    let [listed] = listing.names.as_slice() else { panic!("{listing:?}") };
    assert!(listed.descriptor.is_none() && listed.unreadable.is_some());
}

#[test]
fn keys_of_nobody_are_passed_over() {
    let unrelated = [found("other", "x"), found("mooncake/x", "x"), found("mooncake/", "x")];
    assert_eq!(names(None, &unrelated), (vec![], vec![]));
}

/// Names with and without a slash, in clusters with and without one, beside each other.
#[test]
fn names_of_other_clusters_are_counted_and_not_listed() {
    let mut records = Vec::new();
    for cluster in [None, Some("blue"), Some("lab/east")] {
        for name in ["node", "rack-1/node", "rack-1/shelf/node"] {
            records.extend(published(cluster, name));
        }
    }
    let all = ["node", "rack-1/node", "rack-1/shelf/node"].map(str::to_owned).to_vec();
    let others = vec![("blue".to_owned(), 3), ("lab/east".to_owned(), 3)];
    assert_eq!(names(None, &records), (all.clone(), others));
    assert_eq!(names(Some("blue"), &records), (all.clone(), vec![]));
    assert_eq!(names(Some("lab"), &records), (vec![], vec![("east".to_owned(), 3)]));
    assert_eq!(names(Some("lab/east"), &records), (all, vec![]));
}

/// The place alone, and the record alone, tell as well.
#[test]
fn half_a_name_of_another_cluster_is_no_name_of_ours() {
    for name in ["node", "rack-1/node"] {
        for half in published(Some("blue"), name) {
            let expected = (vec![], vec![("blue".to_owned(), 1)]);
            assert_eq!(names(None, std::slice::from_ref(&half)), expected, "{half:?}");
        }
    }
}

/// A record that somebody wrote for a file has no engine and no place.
#[test]
fn names_with_a_slash_and_no_place_are_ours() {
    let records = [
        found("mooncake/nvmeof/disk7", &record("nvmeof/disk7")),
        found("mooncake/nvmeof/disk8", "{"),
        found("mooncake/rack/alias", &record("node")),
    ];
    let expected = ["nvmeof/disk7", "nvmeof/disk8", "rack/alias"].map(str::to_owned).to_vec();
    assert_eq!(names(None, &records), (expected, vec![]));
}

/// `lab/ram/x` may be a name; its place says so.
#[test]
fn a_name_that_looks_like_another_clusters_is_ours_if_its_place_is() {
    let records = published(None, "lab/ram/x");
    assert_eq!(names(None, &records), (vec!["lab/ram/x".to_owned()], vec![]));
}
