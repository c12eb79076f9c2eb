//! What the directory over a store writes, reads and says.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure fails the test")]

mod support;

use std::{num::NonZeroU16, sync::Arc, time::Instant};

use support::{FaultyStore, descriptor, location, name, soon};
use te_metadata::{
    ClusterId, Directory, DirectoryError, Kept, Key, Keys, MemoryStore, MetadataStore, PutRequest, Source,
    StoreDirectory,
};
use te_segment::{CompatProtocol, Endpoint, Incarnation, SegmentDescriptor, TcpFraming, TcpService};

fn over<S: MetadataStore>(store: S) -> StoreDirectory<S> {
    StoreDirectory::new(store, Keys::default())
}

async fn value(store: &impl MetadataStore, key: &str) -> Option<String> {
    store.get(&Key::new(key), soon()).await.unwrap().map(|entry| entry.value)
}

async fn write(store: &impl MetadataStore, key: &str, text: &str) {
    store.put(PutRequest::new(Key::new(key), text.to_owned()), soon()).await.unwrap();
}

fn endpoint(text: &str) -> Endpoint {
    text.parse().unwrap()
}

#[tokio::test]
async fn what_is_published_is_resolved() {
    let directory = over(MemoryStore::new());
    directory.publish(Arc::new(descriptor("node-a", 7, 3, 2)), location(), soon()).await.unwrap();
    let found = directory.resolve(&name("node-a"), soon()).await.unwrap();
    assert!(found.descriptor.same_content(&descriptor("node-a", 7, 3, 2)));
    assert_eq!(found.descriptor.incarnation(), Some(Incarnation::from_bits(7)));
    assert_eq!(found.source, Source::Store { scheme: "memory" });
    assert!(found.rejected.is_empty());
    assert_eq!(directory.locate(&name("node-a"), soon()).await.unwrap(), endpoint("10.0.0.7:15893"));
}

#[tokio::test]
async fn location_record_is_the_reference_engines() {
    let directory = over(MemoryStore::new());
    directory.publish(Arc::new(descriptor("node-a", 7, 1, 1)), location(), soon()).await.unwrap();
    assert_eq!(
        value(directory.store(), "mooncake/rpc_meta/node-a").await.as_deref(),
        Some(r#"{"ip_or_host_name":"10.0.0.7","rpc_port":15893}"#)
    );
}

#[tokio::test]
async fn ipv6_location_is_written_without_brackets_and_read_back() {
    let directory = over(MemoryStore::new());
    let at = endpoint("[2001:db8::7]:15893");
    directory.publish(Arc::new(descriptor("node-a", 7, 1, 1)), at.clone().into(), soon()).await.unwrap();
    let text = value(directory.store(), "mooncake/rpc_meta/node-a").await.unwrap();
    assert!(text.contains(r#""2001:db8::7""#), "{text}");
    assert_eq!(directory.locate(&name("node-a"), soon()).await.unwrap(), at);
}

#[tokio::test]
async fn descriptor_record_has_one_protocol_word_and_the_extension() {
    let directory = over(MemoryStore::new());
    directory.publish(Arc::new(descriptor("node-a", 7, 1, 1)), location(), soon()).await.unwrap();
    let text = value(directory.store(), "mooncake/ram/node-a").await.unwrap();
    let record: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(record["protocol"], "tcp");
    assert_eq!(record["tcp_data_host"], "10.0.0.7");
    assert_eq!(record["te"]["incarnation"], format!("{:032x}", 7));
    assert!(!text.ends_with('\n'));
}

#[tokio::test]
async fn compat_transport_can_be_set() {
    let directory = over(MemoryStore::new()).with_compat(CompatProtocol::Rdma);
    directory.publish(Arc::new(descriptor("node-a", 7, 1, 1)), location(), soon()).await.unwrap();
    let text = value(directory.store(), "mooncake/ram/node-a").await.unwrap();
    assert!(text.contains(r#""protocol":"rdma""#), "{text}");
}

#[tokio::test]
async fn cluster_id_separates_deployments() {
    let store = MemoryStore::new();
    let blue = StoreDirectory::new(store.clone(), Keys::new(Some(ClusterId::new("blue").unwrap())));
    blue.publish(Arc::new(descriptor("dir/node-c", 7, 1, 1)), location(), soon()).await.unwrap();
    assert!(value(&store, "mooncake/blue/dir/node-c").await.is_some());
    assert!(value(&store, "mooncake/blue/rpc_meta/dir/node-c").await.is_some());
    let error = over(store).resolve(&name("dir/node-c"), soon()).await.unwrap_err();
    assert_eq!(error, DirectoryError::NotFound { name: name("dir/node-c") });
}

#[tokio::test]
async fn values_end_in_a_newline_where_the_store_wants_it() {
    let directory = over(FaultyStore { newline: true, ..FaultyStore::new() });
    directory.publish(Arc::new(descriptor("node-a", 7, 1, 1)), location(), soon()).await.unwrap();
    for key in ["mooncake/ram/node-a", "mooncake/rpc_meta/node-a"] {
        assert!(value(&directory.store().inner, key).await.unwrap().ends_with("}\n"), "{key}");
    }
    directory.resolve(&name("node-a"), soon()).await.unwrap();
    directory.locate(&name("node-a"), soon()).await.unwrap();
}

#[tokio::test]
async fn location_is_written_first_and_deleted_first() {
    let directory = over(FaultyStore::new());
    directory.publish(Arc::new(descriptor("node-a", 7, 1, 1)), location(), soon()).await.unwrap();
    directory.withdraw(&name("node-a"), soon()).await.unwrap();
    assert_eq!(
        *directory.store().log.lock(),
        [
            "put mooncake/rpc_meta/node-a",
            "put mooncake/ram/node-a",
            "delete mooncake/rpc_meta/node-a",
            "delete mooncake/ram/node-a"
        ]
    );
}

/// The place says the same in every version.
#[tokio::test]
async fn a_new_version_is_one_write() {
    let directory = over(FaultyStore::new());
    for version in 1..=3 {
        directory
            .publish(Arc::new(descriptor("node-a", 7, version, version)), location(), soon())
            .await
            .unwrap();
    }
    let expected = [
        "put mooncake/rpc_meta/node-a",
        "put mooncake/ram/node-a",
        "put mooncake/ram/node-a",
        "put mooncake/ram/node-a",
    ];
    assert_eq!(*directory.store().log.lock(), expected);
    assert_eq!(directory.resolve(&name("node-a"), soon()).await.unwrap().descriptor.buffers().len(), 3);
}

/// META-04: whatever of the two records is lost, the next version brings both, once the loss has been noticed.
#[tokio::test]
async fn a_lost_record_comes_back_with_the_next_version() {
    for lost in [
        &["mooncake/rpc_meta/node-a"][..],
        &["mooncake/ram/node-a"],
        &["mooncake/rpc_meta/node-a", "mooncake/ram/node-a"],
    ] {
        for lease in [None, Some(std::time::Duration::from_secs(60))] {
            let mut directory = over(FaultyStore::new());
            if let Some(lease) = lease {
                directory = directory.with_lease(lease);
            }
            directory.publish(Arc::new(descriptor("node-a", 7, 1, 1)), location(), soon()).await.unwrap();
            assert_eq!(directory.keep(soon()).await.unwrap(), Kept::Kept);
            for key in lost {
                directory.store().delete(&Key::new(*key), None, soon()).await.unwrap();
            }
            assert_eq!(directory.keep(soon()).await.unwrap(), Kept::Missing);
            directory.publish(Arc::new(descriptor("node-a", 7, 1, 1)), location(), soon()).await.unwrap();
            assert_eq!(directory.keep(soon()).await.unwrap(), Kept::Kept);
            directory.resolve(&name("node-a"), soon()).await.unwrap();
            directory.locate(&name("node-a"), soon()).await.unwrap();
        }
    }
}

/// META-04: a publish may be the first to meet a store that came back empty.
#[tokio::test]
async fn publishing_into_an_emptied_store_brings_both_records() {
    let directory = over(FaultyStore::new());
    directory.publish(Arc::new(descriptor("node-a", 7, 1, 1)), location(), soon()).await.unwrap();
    for key in ["mooncake/rpc_meta/node-a", "mooncake/ram/node-a"] {
        directory.store().delete(&Key::new(key), None, soon()).await.unwrap();
    }
    directory.publish(Arc::new(descriptor("node-a", 7, 2, 2)), location(), soon()).await.unwrap();
    directory.resolve(&name("node-a"), soon()).await.unwrap();
    directory.locate(&name("node-a"), soon()).await.unwrap();
}

#[tokio::test]
async fn withdrawing_what_is_not_there_is_no_error() {
    over(MemoryStore::new()).withdraw(&name("node-a"), soon()).await.unwrap();
}

/// META-03.
#[tokio::test]
async fn publishing_again_is_fine_where_the_store_guards_locations() {
    let directory = over(FaultyStore { guards_rpc_meta: true, ..FaultyStore::new() });
    directory.publish(Arc::new(descriptor("node-a", 7, 1, 1)), location(), soon()).await.unwrap();
    directory.publish(Arc::new(descriptor("node-a", 7, 2, 2)), location(), soon()).await.unwrap();
    let found = directory.resolve(&name("node-a"), soon()).await.unwrap();
    assert_eq!(found.descriptor.buffers().len(), 2);
}

/// META-03.
#[tokio::test]
async fn a_guarded_location_of_somebody_else_is_name_taken_and_nothing_is_written() {
    let directory = over(FaultyStore { guards_rpc_meta: true, ..FaultyStore::new() });
    directory.publish(Arc::new(descriptor("node-a", 7, 1, 1)), location(), soon()).await.unwrap();
    let other = endpoint("10.0.0.8:15000");
    let error =
        directory.publish(Arc::new(descriptor("node-a", 8, 1, 2)), other.into(), soon()).await.unwrap_err();
    assert_eq!(
        error,
        DirectoryError::NameTaken { name: name("node-a"), holder: Some(endpoint("10.0.0.7:15893")) }
    );
    assert_eq!(error.to_string(), "name node-a is held by 10.0.0.7:15893");
    let found = directory.resolve(&name("node-a"), soon()).await.unwrap();
    assert_eq!(found.descriptor.incarnation(), Some(Incarnation::from_bits(7)));
}

#[tokio::test]
async fn a_record_over_the_limit_is_refused_before_anything_is_sent() {
    let directory = over(MemoryStore::with_max_value(500));
    let error =
        directory.publish(Arc::new(descriptor("node-a", 7, 1, 50)), location(), soon()).await.unwrap_err();
    let DirectoryError::TooLarge { size, limit: 500, store } = &error else { panic!("{error}") };
    assert!(*size > 500 && store == "memory");
    assert!(!error.is_retryable());
    assert!(directory.store().list("", soon()).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_outage_is_not_not_found() {
    let directory = over(FaultyStore::new());
    *directory.store().down.lock() = true;
    let error = directory.resolve(&name("node-a"), soon()).await.unwrap_err();
    assert!(error.is_outage() && error.is_retryable());
    assert_eq!(error.to_string(), "resolve of node-a got no answer from faulty: connection refused");
}

#[tokio::test]
async fn a_passed_deadline_is_told_apart() {
    let error = over(MemoryStore::new()).resolve(&name("node-a"), Instant::now()).await.unwrap_err();
    assert!(matches!(error, DirectoryError::DeadlineExceeded { .. }), "{error}");
}

/// META-11.
#[tokio::test]
async fn an_invalid_record_names_the_field() {
    let directory = over(MemoryStore::new());
    let record = r#"{"name":"node-a","protocol":"tcp","tcp_data_port":-1,"buffers":[]}"#;
    write(directory.store(), "mooncake/ram/node-a", record).await;
    let error = directory.resolve(&name("node-a"), soon()).await.unwrap_err();
    let DirectoryError::InvalidDescriptor { field, from, .. } = &error else { panic!("{error}") };
    assert_eq!((field.as_str(), from.as_str()), ("tcp_data_port", "memory"));
    assert!(!error.is_retryable() && !error.is_outage());
}

#[tokio::test]
async fn values_that_are_no_descriptor_are_errors() {
    let directory = over(MemoryStore::new());
    for text in ["", "null", "[]", "{", "{}", "\u{0}", "{\"protocol\":[]}"] {
        write(directory.store(), "mooncake/ram/node-a", text).await;
        let error = directory.resolve(&name("node-a"), soon()).await.unwrap_err();
        assert!(matches!(error, DirectoryError::InvalidDescriptor { .. }), "{text}: {error}");
    }
}

#[tokio::test]
async fn values_that_are_no_location_are_errors() {
    let directory = over(MemoryStore::new());
    for text in ["null", "{}", r#"{"ip_or_host_name":"h","rpc_port":0}"#, r#"{"rpc_port":1}"#] {
        write(directory.store(), "mooncake/rpc_meta/node-a", text).await;
        let error = directory.locate(&name("node-a"), soon()).await.unwrap_err();
        assert!(matches!(error, DirectoryError::InvalidLocation { .. }), "{text}: {error}");
    }
}

/// A record as a reference engine writes it, with `data` as members about its data port.
fn reference_record(data: &str) -> String {
    format!(
        r#"{{"buffers":[{{"addr":94757358125056,"length":65536,"name":"node-b"}}],"name":"node-b","protocol":"tcp","rdma_server_name":""{data},"timestamp":"2026-11-29 16:23:14.817112"}}"#
    )
}

#[tokio::test]
async fn the_data_host_of_the_record_is_used_alone() {
    let directory = over(MemoryStore::new());
    let data = r#","tcp_data_host":"10.1.1.1","tcp_data_port":15548,"tcp_proto_version":2"#;
    write(directory.store(), "mooncake/ram/node-b", &reference_record(data)).await;
    // No location is there, and none is needed.
    let found = directory.resolve(&name("node-b"), soon()).await.unwrap();
    assert_eq!(found.tcp, Some(endpoint("10.1.1.1:15548")));
}

#[tokio::test]
async fn without_a_data_host_the_location_of_the_opened_name_counts() {
    let directory = over(MemoryStore::new());
    // Opened by a name that is not the record's own.
    let data = r#","tcp_data_port":15548,"tcp_proto_version":2"#;
    write(directory.store(), "mooncake/ram/alias", &reference_record(data)).await;
    let place = r#"{"ip_or_host_name":"10.2.2.2","rpc_port":15612}"#;
    write(directory.store(), "mooncake/rpc_meta/alias", place).await;
    let found = directory.resolve(&name("alias"), soon()).await.unwrap();
    assert_eq!(found.tcp, Some(endpoint("10.2.2.2:15548")));
}

#[tokio::test]
async fn without_data_host_and_location_the_open_fails() {
    let directory = over(MemoryStore::new());
    let data = r#","tcp_data_host":"","tcp_data_port":15548"#;
    write(directory.store(), "mooncake/ram/node-b", &reference_record(data)).await;
    let error = directory.resolve(&name("node-b"), soon()).await.unwrap_err();
    assert!(matches!(error, DirectoryError::NoLocation { .. }), "{error}");
}

#[tokio::test]
async fn a_record_without_data_port_needs_no_location() {
    let directory = over(MemoryStore::new());
    write(directory.store(), "mooncake/ram/node-b", &reference_record(r#","tcp_data_port":0"#)).await;
    let found = directory.resolve(&name("node-b"), soon()).await.unwrap();
    assert_eq!((found.tcp, found.descriptor.buffers().len()), (None, 1));
}

#[tokio::test]
async fn our_own_record_without_data_host_is_reached_at_its_location() {
    let directory = over(MemoryStore::new());
    let service = TcpService { host: None, port: NonZeroU16::new(16411).unwrap(), framing: TcpFraming::V2 };
    let record = SegmentDescriptor::builder(name("node-a"))
        .identity(descriptor("node-a", 7, 1, 0).identity().clone())
        .tcp(service)
        .build()
        .unwrap();
    directory.publish(Arc::new(record), location(), soon()).await.unwrap();
    let found = directory.resolve(&name("node-a"), soon()).await.unwrap();
    assert_eq!(found.tcp, Some(endpoint("10.0.0.7:16411")));
}
