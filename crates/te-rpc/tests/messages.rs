//! Reading and writing of bodies.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use proptest::prelude::*;
use te_rpc::message::{
    ConnectionBody, MessageError, NotifyBody, ProbeReply, check_json, notify_refused, notify_success,
};

fn connection(text: &str) -> Result<ConnectionBody, MessageError> {
    ConnectionBody::decode(text.as_bytes())
}

fn assert_refuses(text: &str, error: &str) {
    assert_eq!(connection(text).unwrap_err().to_string(), error);
}

#[test]
fn all_members_are_read() {
    let body = connection(
        r#"{"payload":"p","local_nic_path":"a@x","peer_nic_path":"b@y","local_lid":7,"local_gid":"fe:80",
            "qp_num":[101,4294967295],"ready_ack":true,"reply_msg":"r","jetty_num":[1],"efa_addr":"ff",
            "cxi_addr":"0x1","barex_port":17000}"#,
    )
    .unwrap();
    let expected = ConnectionBody {
        payload: "p".into(),
        local_nic_path: "a@x".into(),
        peer_nic_path: "b@y".into(),
        local_lid: 7,
        local_gid: "fe:80".into(),
        qp_num: vec![101, u32::MAX],
        ready_ack: Some(true),
        reply_msg: "r".into(),
        jetty_num: Some(vec![1]),
        efa_addr: Some("ff".into()),
        cxi_addr: Some("0x1".into()),
        barex_port: Some(17000),
        extra: Default::default(),
    };
    assert_eq!(body, expected);
}

#[test]
fn unknown_members_survive() {
    let text = "{\"local_gid\":\"\",\"local_lid\":0,\"local_nic_path\":\"\",\"payload\":\"\",\"peer_nic_path\":\"\",\
                \"qp_num\":[],\"reply_msg\":\"\",\"te\":{\"v\":1},\"zz\":[null,18446744073709551615]}\n";
    assert_eq!(connection(text).unwrap().encode(), text.as_bytes());
}

#[test]
fn a_missing_ready_ack_differs_from_a_false_one() {
    assert_eq!(connection("{}").unwrap().ready_ack, None);
    assert_eq!(connection(r#"{"ready_ack":false}"#).unwrap().ready_ack, Some(false));
    assert_eq!(connection(r#"{"ready_ack":null}"#).unwrap().ready_ack, Some(false));
}

#[test]
fn an_empty_object_and_null_are_all_defaults() {
    assert_eq!(connection("{}").unwrap(), ConnectionBody::default());
    assert_eq!(connection("null").unwrap(), ConnectionBody::default());
}

#[test]
fn a_lid_that_is_no_unsigned_number_is_ignored() {
    for lid in ["-1", "\"7\"", "4294967296", "1.5", "[]", "null"] {
        assert_eq!(connection(&format!("{{\"local_lid\":{lid}}}")).unwrap().local_lid, 0, "{lid}");
    }
}

#[test]
fn numbers_and_flags_stand_for_text_and_integral_floats_for_integers() {
    let body = connection(r#"{"payload":5,"reply_msg":true,"qp_num":[101.0]}"#).unwrap();
    assert_eq!(
        (body.payload.as_str(), body.reply_msg.as_str(), body.qp_num.as_slice()),
        ("5", "true", &[101][..])
    );
}

#[test]
fn of_a_repeated_member_the_last_counts() {
    assert_eq!(connection(r#"{"payload":"a","payload":"b"}"#).unwrap().payload, "b");
}

#[test]
fn a_negative_queue_pair_number_is_refused() {
    assert_refuses(r#"{"qp_num":[-1]}"#, "member `qp_num` is not a list of numbers from 0 to 4294967295");
}

#[test]
fn text_among_queue_pair_numbers_is_refused() {
    assert_refuses(r#"{"qp_num":["x"]}"#, "member `qp_num` is not a list of numbers from 0 to 4294967295");
}

#[test]
fn an_array_for_text_is_refused() {
    assert_refuses(r#"{"local_nic_path":[1]}"#, "member `local_nic_path` is not text");
}

#[test]
fn an_array_for_the_object_is_refused() {
    assert_refuses("[]", "body is an array where an object is due");
}

#[test]
fn a_refusal_is_never_empty() {
    assert_eq!(ConnectionBody::refusal("").rejection(), Some("refused"));
    assert_eq!(ConnectionBody::default().rejection(), None);
}

#[test]
fn a_request_for_the_control_channel_is_recognised() {
    let text = r#"{"ctrl_channel":true,"peer_nic_path":"__ctrl__","qp_num":[],"notify_qp_num":9,"notify_rq_depth":64}"#;
    assert!(connection(text).unwrap().is_control_channel());
    assert!(!connection("{}").unwrap().is_control_channel());
}

#[test]
fn an_empty_notification_is_two_empty_texts() {
    assert_eq!(NotifyBody::decode(b"{}").unwrap(), NotifyBody::new("", ""));
}

#[test]
fn a_notification_of_another_type_is_refused() {
    for body in ["[]", "5", "\"a\"", r#"{"name":{"a":1},"notify_msg":"m"}"#] {
        assert!(NotifyBody::decode(body.as_bytes()).is_err(), "{body}");
    }
}

#[test]
fn any_text_accepts_a_notification_and_an_empty_one_refuses_it() {
    assert!(NotifyBody::decode(&notify_success()).unwrap().is_accepted());
    assert!(!NotifyBody::decode(&notify_refused()).unwrap().is_accepted());
}

#[test]
fn null_is_the_answer_of_a_peer_without_probes() {
    let reply = ProbeReply::decode(b"null\n").unwrap();
    assert!(!reply.is_success());
    assert_eq!(reply.status, "");
}

#[test]
fn any_json_passes_the_check() {
    for body in ["{}", "[]", "5", "null", "\"\"", " {\"a\":[1.5e300,-2,true]} \n"] {
        check_json(body.as_bytes()).unwrap();
    }
}

#[test]
fn what_is_not_json_fails_the_check() {
    for body in [&b""[..], b"{not json", b"{} {}", b"\"\xff\"", b"{\"\xff\":1}", b"nul", b"\xef\xbb\xbf{}"] {
        assert!(check_json(body).is_err(), "{body:?}");
    }
}

#[test]
fn deep_nesting_fails_the_check() {
    let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
    check_json(&nested(127)).unwrap();
    for depth in [128, 2000, 500_000] {
        assert!(check_json(&nested(depth)).is_err(), "{depth}");
    }
}

proptest! {
    #[test]
    fn a_notification_round_trips(name: String, msg: String) {
        let body = NotifyBody::new(name, msg);
        prop_assert_eq!(NotifyBody::decode(&body.encode()).unwrap(), body);
    }

    #[test]
    fn what_was_read_is_written_to_be_read_the_same(
        name in "[a-z_]{0,12}|qp_num|ready_ack|local_lid|payload|barex_port",
        value in "-?[0-9]{1,20}|\"[a-z]*\"|\\[[0-9]{0,9}\\]|true|null|1e[0-9]|\\{\\}",
    ) {
        if let Ok(body) = connection(&format!("{{\"{name}\":{value}}}")) {
            prop_assert_eq!(ConnectionBody::decode(&body.encode()).unwrap(), body);
        }
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let checked = check_json(&bytes).is_ok();
        prop_assert!(checked || ConnectionBody::decode(&bytes).is_err());
        prop_assert!(checked || NotifyBody::decode(&bytes).is_err());
        prop_assert!(checked || ProbeReply::decode(&bytes).is_err());
    }
}
