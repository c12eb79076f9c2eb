//! What records of the reference engine mean.

use te_segment::{
    Access, CompatProtocol, DecodeOptions, DescriptorError, FieldProblem, FindError, Identity, Location,
    MemoryKey, SegmentDescriptor, TcpFraming, TransportKind, Via, wire::Word,
};

use crate::support::{decode, keys, name, nic, options, range, rejected, table, wrong};

fn variant(word: &str) -> SegmentDescriptor {
    let row = table("variants.tsv").into_iter().find(|row| row[0] == word).unwrap();
    let decoded = decode(&row[1]);
    assert_eq!((decoded.rejected, decoded.ignored), (vec![], vec![]), "{word}");
    decoded.descriptor
}

fn kinds(descriptor: &SegmentDescriptor) -> Vec<Vec<&str>> {
    descriptor.buffers().iter().map(|b| b.via().keys().map(TransportKind::as_str).collect()).collect()
}

/// Each variation of one descriptor, tried with the reference engine: what is read here.
#[test]
fn every_variation_reads_as_the_table_says() {
    for row in table("variations.tsv") {
        let read = match SegmentDescriptor::decode(row[4].as_bytes()) {
            Err(error) => format!("error {}", error.field().unwrap_or("-")),
            Ok(decoded) => match decoded.rejected.first() {
                Some(rejected) => format!("rejected {}", rejected.field),
                None => format!("buffers {}", decoded.descriptor.buffers().len()),
            },
        };
        assert_eq!(read, row[3], "{}", row[0]);
    }
}

#[test]
fn every_word_of_the_reference_is_read() {
    for word in Word::ALL {
        let descriptor = variant(word.as_str());
        assert_eq!(descriptor.identity(), &Identity::Reference);
        assert!(!descriptor.buffers().is_empty() || !descriptor.files().is_empty(), "{word}");
        for buffer in descriptor.buffers() {
            assert_eq!((buffer.access(), buffer.generation()), (Access::REMOTE, None));
            assert!(buffer.via_transport(&word.transport()).is_some(), "{word}");
        }
    }
}

#[test]
fn tcp_record_states_the_data_listener() {
    let descriptor = variant("tcp");
    let tcp = descriptor.tcp().unwrap();
    assert_eq!((tcp.host.clone().unwrap().bare().as_str(), tcp.port.get()), ("10.1.2.3", 16020));
    assert_eq!(tcp.framing, TcpFraming::V2);
}

/// META-06: the data address is its own member; the control address is not derived from it.
#[test]
fn data_address_and_name_are_separate() {
    let descriptor = decode(
        r#"{"name":"127.0.0.1:15001","protocol":"tcp","tcp_data_host":"127.0.0.2","tcp_data_port":9}"#,
    )
    .descriptor;
    assert_eq!(descriptor.name().as_str(), "127.0.0.1:15001");
    assert_eq!(descriptor.tcp().unwrap().host.clone().unwrap().bare(), "127.0.0.2");
    assert_eq!(descriptor.control(), None);
}

#[test]
fn framing_is_an_upper_bound_and_one_if_missing() {
    for (text, framing) in [
        ("", TcpFraming::V1),
        (r#","tcp_proto_version":1"#, TcpFraming::V1),
        (r#","tcp_proto_version":2"#, TcpFraming::V2),
        (r#","tcp_proto_version":18446744073709551615"#, TcpFraming::V2),
    ] {
        let descriptor =
            decode(&format!(r#"{{"name":"n","protocol":"tcp","tcp_data_port":1{text}}}"#)).descriptor;
        assert_eq!(descriptor.tcp().unwrap().framing, framing, "{text}");
    }
}

#[test]
fn port_0_or_none_is_no_data_listener() {
    for text in ["", r#","tcp_data_port":0"#, r#","tcp_data_port":null"#] {
        assert_eq!(decode(&format!(r#"{{"name":"n","protocol":"tcp"{text}}}"#)).descriptor.tcp(), None);
    }
}

#[test]
fn unusable_data_host_counts_as_absent_and_is_reported() {
    for (host, reported) in
        [(r#""""#, 0), ("null", 0), (r#""0.0.0.0""#, 1), (r#""a:1""#, 1), ("7", 0), ("[]", 0)]
    {
        let text = format!(r#"{{"name":"n","protocol":"tcp","tcp_data_host":{host},"tcp_data_port":9}}"#);
        let decoded = decode(&text);
        assert_eq!(decoded.descriptor.tcp().unwrap().host, None, "{host}");
        assert_eq!(decoded.ignored.len(), reported, "{host}");
    }
}

#[test]
fn keys_go_by_the_name_of_the_device() {
    let descriptor = variant("rdma");
    let buffer = descriptor.find(range(140_001_000_001_536, 1)).unwrap();
    assert_eq!(buffer.via_transport(&TransportKind::RDMA), Some(&keys(&[("mlx5_1", 82), ("mlx5_0", 81)])));
    assert_eq!(buffer.keys(&TransportKind::RDMA, &nic("mlx5_1")), [MemoryKey::new(82)]);
    assert_eq!(descriptor.device(&nic("mlx5_1")).unwrap().lid(), 7);
}

/// MR-07: a buffer whose owner gave out no key is not offered.
#[test]
fn buffer_without_keys_is_local_only() {
    let descriptor = variant("rdma");
    assert_eq!(descriptor.buffers().len(), 1);
    assert!(matches!(
        descriptor.find(range(140_002_000_001_536, 1)),
        Err(FindError::OutsideAnyBuffer { .. })
    ));
}

/// MR-08: keys are 64 bits wide whatever the transport.
#[test]
fn keys_above_32_bits_are_exact() {
    for word in [Word::Efa, Word::Cxi] {
        let descriptor = variant(word.as_str());
        let keys = |device: String| descriptor.buffers()[0].keys(&word.transport(), &nic(&device));
        assert_eq!(keys(format!("{word}0")), [MemoryKey::new((1 << 32) + 1)]);
        assert_eq!(keys(format!("{word}1")), [MemoryKey::new(u64::MAX)]);
    }
}

fn rdma_record(devices: usize, rkey: usize, lkey: usize) -> String {
    let devices: Vec<_> = (0..devices)
        .map(|i| serde_json::json!({"name": format!("d{i}"), "lid": 0, "gid": "ignore"}))
        .collect();
    let good = serde_json::json!({"name": "cpu:0", "addr": 1, "length": 1,
        "rkey": vec![1; devices.len()], "lkey": vec![1; devices.len()]});
    let odd = serde_json::json!({"name": "cpu:0", "addr": 4096, "length": 1, "rkey": vec![1; rkey], "lkey": vec![1; lkey]});
    serde_json::json!({"name": "n", "protocol": "rdma", "devices": devices, "buffers": [good, odd]})
        .to_string()
}

/// META-11: more keys than devices are rejected by name instead of being used as indexes.
#[test]
fn sixty_four_keys_for_one_device_are_rejected() {
    let decoded = decode(&rdma_record(1, 64, 64));
    assert_eq!(decoded.descriptor.buffers().len(), 1, "the good buffer stays");
    assert_eq!(decoded.rejected[0].index, 1);
    assert_eq!(decoded.rejected[0].field, "buffers[1].rkey");
    let reason = FieldProblem::CountMismatch { expected: 1, found: 64, of: "devices" };
    assert_eq!(decoded.rejected[0].reason, reason);
}

/// META-11
#[test]
fn every_mismatch_of_key_counts_names_the_list() {
    assert_eq!(rejected(&rdma_record(2, 1, 2)), ["buffers[1].rkey"]);
    assert_eq!(rejected(&rdma_record(2, 2, 1)), ["buffers[1].lkey"]);
    assert_eq!(rejected(&rdma_record(2, 2, 0)), ["buffers[1].lkey"]);
    assert_eq!(rejected(&rdma_record(2, 2, 2)), Vec::<String>::new());
}

/// META-11: a matrix naming devices that are not listed gives no index to go past the end with.
#[test]
fn devices_of_the_matrix_that_are_not_listed_are_dropped() {
    let text = r#"{"name":"n","protocol":"rdma","devices":[{"name":"a","gid":"ignore"}],
        "priority_matrix":{"cpu:0":[["z","a"],["y"]]}}"#;
    let topology = decode(text).descriptor.topology().clone();
    assert_eq!(topology.nics().into_iter().collect::<Vec<_>>(), [&nic("a")]);
}

#[test]
fn matrix_of_another_shape_is_ignored_and_reported() {
    for matrix in [r#"{"cpu:0":[["a"]]}"#, "[]", r#"{"cpu:0":[["a"],[7]]}"#, r#"{"cpu:0":null}"#] {
        let text = format!(r#"{{"name":"n","protocol":"rdma","priority_matrix":{matrix}}}"#);
        let decoded = decode(&text);
        assert!(decoded.descriptor.topology().is_empty());
        assert!(decoded.ignored[0].field.starts_with("priority_matrix"), "{matrix}");
    }
}

#[test]
fn repeated_device_is_refused() {
    let text = r#"{"name":"n","protocol":"rdma","devices":[{"name":"a","gid":"ignore"},{"name":"a","gid":"ignore"}]}"#;
    assert_eq!(wrong(text), ("devices[1].name".to_owned(), FieldProblem::Duplicate { name: "a".to_owned() }));
}

#[test]
fn ranges_of_an_engine_with_two_transports_are_one_buffer() {
    let descriptor = variant("rdma_after_tcp");
    assert_eq!(kinds(&descriptor), [["rdma", "tcp"]]);
    assert_eq!(descriptor.buffers()[0].location(), &Location::cpu(0));
    assert_eq!(descriptor.rdma_server_name(), Some("10.9.9.9:15021"));
}

#[test]
fn list_of_protocols_gives_each_range_its_transports() {
    assert_eq!(kinds(&variant("array")), [vec!["hip", "rdma", "tcp"], vec!["cxl"]]);
}

#[test]
fn cxl_buffer_lies_at_the_base_plus_its_offset() {
    let descriptor = variant("cxl");
    let buffer = descriptor.find(range(140_003_000_000_512 + 1_048_576, 65536)).unwrap();
    assert_eq!(buffer.via_transport(&TransportKind::CXL), Some(&Via::Cxl { offset: 1_048_576 }));
}

#[test]
fn cxl_buffer_without_a_base_is_rejected() {
    let text =
        r#"{"name":"n","protocol":"cxl","cxl_name":"d","buffers":[{"name":"n","offset":0,"length":1}]}"#;
    assert_eq!(rejected(text), ["cxl_base_addr"]);
}

#[test]
fn file_segment_has_files_and_no_buffers() {
    let descriptor = variant("nvmeof");
    let file = &descriptor.files()[0];
    assert_eq!((file.path.as_str(), file.length), ("/dev/nvme3n1", 549_755_813_888));
    assert_eq!(file.local_paths.get("node-y").map(String::as_str), Some("/mnt/y/disk3"));
    assert!(descriptor.buffers().is_empty());
    let refused = descriptor.encode(&options(CompatProtocol::Tcp));
    assert_eq!(refused.unwrap_err().field(), Some("files"));
}

#[test]
fn buffer_with_an_empty_handle_is_skipped_without_a_word() {
    let decoded = decode(
        r#"{"name":"n","protocol":"hip","buffers":[{"name":"hip:0","addr":1,"length":1,"shm_name":""},{"length":0}]}"#,
    );
    assert_eq!((decoded.descriptor.buffers().len(), decoded.rejected), (0, vec![]));
}

#[test]
fn wrong_buffers_are_rejected_by_name_and_the_rest_stays() {
    let text = r#"{"name":"n","protocol":"tcp","tcp_data_port":9,"buffers":[
        {"name":"n","addr":4096,"length":16},
        {"name":"","addr":1,"length":1}, {"addr":1,"length":1}, {"name":"n","addr":0,"length":1},
        {"name":"n","length":1}, {"name":"n","addr":1,"length":0}, {"name":"n","addr":1},
        {"name":"n","addr":18446744073709551615,"length":1}, {"name":"n","addr":-1,"length":1},
        {"name":"n","addr":1.0,"length":1}, {"name":"n","addr":18446744073709551616,"length":1},
        {"name":7,"addr":1,"length":1}, {"name":"n","addr":"1","length":1}, 7, null, [],
        {"name":"n","addr":4100,"length":1},
        {"name":"n","addr":8192,"length":16}]}"#;
    let fields = [
        "buffers[1].name",
        "buffers[2].name",
        "buffers[3].addr",
        "buffers[4].addr",
        "buffers[5].length",
        "buffers[6].length",
        "buffers[7].length",
        "buffers[8].addr",
        "buffers[9].addr",
        "buffers[10].addr",
        "buffers[11].name",
        "buffers[12].addr",
        "buffers[13]",
        "buffers[14]",
        "buffers[15]",
        "buffers[16]",
    ];
    assert_eq!(rejected(text), fields);
    let starts: Vec<u64> = decode(text).descriptor.buffers().iter().map(|b| b.range().start()).collect();
    assert_eq!(starts, [4096, 8192]);
}

#[test]
fn other_protocols_name_their_wrong_members() {
    let table = [
        (r#"{"protocol":"nccl","buffers":[{"name":"a","addr":1,"length":1}]"#, "buffers[0].device_id"),
        (
            r#"{"protocol":"nccl","buffers":[{"name":"a","addr":1,"length":1,"device_id":-1}]"#,
            "buffers[0].device_id",
        ),
        (r#"{"protocol":"ub","buffers":[{"name":"a","addr":1,"length":1,"tseg":[]}]"#, "buffers[0].tseg"),
        (r#"{"protocol":"ub","buffers":[{"name":"a","addr":1,"length":1,"tseg":[1]}]"#, "buffers[0].tseg[0]"),
        (
            r#"{"protocol":"hip","buffers":[{"name":"a","addr":1,"length":1,"shm_name":1}]"#,
            "buffers[0].shm_name",
        ),
        (
            r#"{"protocol":"rdma","buffers":[{"name":"a","addr":1,"length":1,"rkey":["1"]}]"#,
            "buffers[0].rkey[0]",
        ),
        (r#"{"protocol":"nvmeof","buffers":[{"length":1}]"#, "buffers[0].file_path"),
        (r#"{"protocol":["tcp","rdma"],"buffers":[{"protocol":"x","name":"a"}]"#, "buffers[0].protocol"),
    ];
    for (text, field) in table {
        assert_eq!(rejected(&format!(r#"{text},"name":"n"}}"#)), [field], "{text}");
    }
}

#[test]
fn wrong_members_of_the_record_are_named() {
    let table = [
        (r#""protocol":"TCP""#, "protocol"),
        (r#""protocol":"tcp,rdma""#, "protocol"),
        (r#""protocol":[]"#, "protocol"),
        (r#""protocol":["tcp","tcp"]"#, "protocol[1]"),
        (r#""protocol":["tcp","x"]"#, "protocol[1]"),
        (r#""protocol":{}"#, "protocol"),
        (r#""protocol":"tcp","tcp_data_port":65536"#, "tcp_data_port"),
        (r#""protocol":"tcp","tcp_data_port":-1"#, "tcp_data_port"),
        (r#""protocol":"tcp","tcp_data_port":"1""#, "tcp_data_port"),
        (r#""protocol":"tcp","tcp_proto_version":1e999"#, "tcp_proto_version"),
        (r#""protocol":"tcp","buffers":{}"#, "buffers"),
        (r#""protocol":"tcp","timestamp":7"#, "timestamp"),
        (r#""protocol":"tcp","rdma_server_name":[]"#, "rdma_server_name"),
        (r#""protocol":"rdma","devices":[{"gid":"ignore"}]"#, "devices[0].name"),
        (r#""protocol":"rdma","devices":[{"name":"a","gid":""}]"#, "devices[0].gid"),
        (r#""protocol":"rdma","devices":[{"name":"a","gid":"fe80::1"}]"#, "devices[0].gid"),
        (r#""protocol":"rdma","devices":[{"name":"a","gid":"ignore","lid":65536}]"#, "devices[0].lid"),
        (r#""protocol":"rdma","devices":[7]"#, "devices[0]"),
        (r#""protocol":"cxl","cxl_base_addr":-1"#, "cxl_base_addr"),
    ];
    for (text, field) in table {
        assert_eq!(wrong(&format!(r#"{{"name":"n",{text}}}"#)).0, field, "{text}");
    }
}

#[test]
fn name_that_is_not_allowed_is_named() {
    for text in [r#""/a""#, r#""ram/a""#, "7", r#""a\u0000b""#, r#""""#, r#""\ud800""#] {
        assert_eq!(wrong(&format!(r#"{{"name":{text},"protocol":"tcp"}}"#)).0, "name", "{text}");
    }
}

#[test]
fn record_without_name_has_the_name_it_was_opened_by() {
    let options = DecodeOptions { opened_as: Some(name("opened")), ..DecodeOptions::default() };
    let decoded = SegmentDescriptor::decode_with(br#"{"protocol":"tcp"}"#, &options).unwrap();
    assert_eq!(decoded.descriptor.name(), &name("opened"));
}

#[test]
fn null_is_told_from_other_roots() {
    assert_eq!(SegmentDescriptor::decode(b"null\n"), Err(DescriptorError::Null));
    assert!(matches!(SegmentDescriptor::decode(b"[]"), Err(DescriptorError::NotAnObject { .. })));
    assert!(matches!(SegmentDescriptor::decode(b""), Err(DescriptorError::Syntax { .. })));
    assert!(matches!(SegmentDescriptor::decode(b"{} x"), Err(DescriptorError::Syntax { .. })));
}
