use proptest::prelude::*;
use te_segment::{Generation, Incarnation, NicName};

use super::*;

const VECTORS: &str = include_str!("../../../../docs/wire/vectors/rdma-handshake-v1.tsv");

fn path(server: &str, nic: &str) -> NicPath {
    NicPath::new(server, NicName::new(nic).unwrap()).unwrap()
}

fn offer(terms: bool) -> Offer {
    Offer {
        from: path("10.0.0.7:12001", "mlx5_0"),
        to: path("10.0.0.8:12001", "mlx5_1"),
        lid: 0,
        gid: Some("00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:07".parse().unwrap()),
        queue_pairs: vec![257, 258],
        ready_ack: true,
        terms: terms.then(|| Terms {
            incarnation: Incarnation::from_bits(7),
            peer: Some(Incarnation::from_bits(8)),
            peer_generation: None,
            cut: false,
            generation: Generation::new(3),
            psn: vec![1000, 16_777_215],
            mtu: 4096,
            max_rd_atomic: 16,
            extra: BTreeMap::new(),
        }),
    }
}

/// The offer once more, after the peer has accepted it with its endpoint 2.
fn confirming() -> Offer {
    let mut offer = offer(true);
    if let Some(terms) = &mut offer.terms {
        terms.peer_generation = Some(Generation::new(2));
    }
    offer
}

fn mirrored(terms: bool) -> Offer {
    let offer = offer(terms);
    Offer { from: offer.to.clone(), to: offer.from.clone(), queue_pairs: vec![17, 18], ..offer }
}

fn vector(name: &str) -> &'static str {
    VECTORS.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t')).unwrap()
}

#[test]
fn golden_objects_are_produced_and_read() {
    let legacy = Offer { ready_ack: false, ..offer(false) };
    let written = [
        ("open_reference", Handshake::open(offer(false))),
        ("open_legacy", Handshake::open(legacy)),
        ("open_te", Handshake::open(offer(true))),
        ("accept_reference", Handshake::accept(&offer(false), mirrored(true))),
        ("accept_te", Handshake::accept(&offer(true), mirrored(true))),
        ("confirm_te", Handshake::confirm(confirming())),
        ("confirmed", Handshake::confirmed()),
        ("refused", Handshake::refuse("no NIC named mlx5_1")),
    ];
    for (name, handshake) in &written {
        assert_eq!(String::from_utf8(handshake.encode()).unwrap(), format!("{}\n", vector(name)), "{name}");
        assert_eq!(Handshake::decode(vector(name).as_bytes()).as_ref(), Ok(handshake), "{name}");
    }
    assert_eq!(VECTORS.lines().filter(|line| !line.starts_with('#')).count(), written.len());
}

#[test]
fn each_role_reads_what_the_other_wrote() {
    let read = |handshake: Handshake| Handshake::decode(&handshake.encode()).unwrap();
    for terms in [false, true] {
        assert_eq!(read(Handshake::open(offer(terms))).read(), Ok(Reading::Open(offer(terms))));
        assert_eq!(read(Handshake::confirm(offer(terms))).read(), Ok(Reading::Confirm(offer(terms))));
        let answer = read(Handshake::accept(&offer(terms), mirrored(true)));
        assert_eq!(
            answer.read_answer(&offer(terms)),
            Ok(Ok(mirrored(terms))),
            "terms only where both have them"
        );
    }
    let refused = read(Handshake::refuse("")).read_answer(&offer(true));
    assert_eq!(refused, Ok(Err("refused".to_owned())));
}

#[test]
fn terms_of_one_side_alone_do_not_count() {
    let answer = Handshake::open(mirrored(true));
    assert_eq!(answer.read_answer(&offer(false)), Ok(Ok(mirrored(false))));
    let legacy = Offer { ready_ack: false, ..offer(false) };
    assert_eq!(Handshake::accept(&legacy, mirrored(true)).ready_ack, None);
}

#[test]
fn odd_but_harmless_input_is_read_as_the_reference_reads_it() {
    let text = r#"{"qp_num":[1],"qp_num":[257.0,2],"local_nic_path":"a@x","peer_nic_path":"b@y","payload":null,
        "local_lid":-1,"ready_ack":null,"local_gid":null,"reply_msg":5}"#;
    let read = Handshake::decode(text.as_bytes()).unwrap();
    assert_eq!((read.queue_pairs, read.lid, read.ready_ack), (vec![257, 2], 0, Some(false)));
    assert_eq!(read.refusal, "5");
    assert_eq!(Handshake::decode(b"null"), Ok(Handshake::default()));
    assert_eq!(Handshake::decode(b"{}"), Ok(Handshake::default()));
}

#[test]
fn the_control_channel_of_the_reference_is_recognised() {
    let text = br#"{"ctrl_channel":true,"peer_nic_path":"__ctrl__@x","qp_num":[],"notify_qp_num":9}"#;
    assert_eq!(Handshake::decode(text).unwrap().read(), Ok(Reading::ControlChannel));
    // As it is sent: without a NIC in the path, which nothing else may lack.
    let sent = br#"{"ctrl_channel":true,"peer_nic_path":"__ctrl__","qp_num":[],"notify_qp_num":9}"#;
    assert_eq!(Handshake::decode(sent).and_then(Handshake::read), Ok(Reading::ControlChannel));
}

#[test]
fn bad_input_is_an_error_that_names_the_member() {
    let text = |text: &str| match Handshake::decode(text.as_bytes()).and_then(Handshake::read) {
        Err(error) => error.to_string(),
        Ok(read) => panic!("{read:?}"),
    };
    let with = |more: &str| {
        text(&format!(r#"{{"local_nic_path":"a@x","peer_nic_path":"b@y","qp_num":[1],{more}}}"#))
    };
    for (found, says) in [
        (text("[]"), "no JSON object"),
        (text("5"), "no JSON object"),
        (text("{"), "no JSON object"),
        (text("{} x"), "no JSON object"),
        (text("{}"), "`local_nic_path` is not there"),
        (text(r#"{"local_nic_path":"a@x"}"#), "`peer_nic_path` is not there"),
        (text(r#"{"local_nic_path":"a"}"#), "`local_nic_path` is not SERVER@NIC"),
        (text(r#"{"local_nic_path":"a@x","peer_nic_path":"b@y"}"#), "`qp_num` is not there"),
        (with(r#""qp_num":[-1]"#), "`qp_num` is not a list"),
        (with(r#""qp_num":[16777216]"#), "`qp_num` is not a list"),
        (with(&format!(r#""qp_num":[{}1]"#, "1,".repeat(255))), "`qp_num` is not a list"),
        (with(r#""local_gid":"fe:80""#), "`local_gid` is not 16"),
        (with(r#""payload":[]"#), "`payload` is not text"),
        (with(r#""ready_ack":"yes""#), "`ready_ack` is not true or false"),
        (with(r#""te":{"v":1}"#), "`te.incarnation` is not"),
        (with(&format!(r#""x":{}{}"#, "[".repeat(100), "]".repeat(100))), "`x` cannot be kept"),
        (
            with(
                r#""te":{"v":1,"incarnation":"00000000000000000000000000000001","generation":1,"mtu":1024,
                "max_rd_atomic":1,"psn":[1,2]}"#,
            ),
            "`te.psn` is not as long as qp_num",
        ),
    ] {
        assert!(found.contains(says), "{found} / {says}");
    }
    let long = vec![b' '; MAX_HANDSHAKE_BYTES + 1];
    assert!(matches!(Handshake::decode(&long), Err(WireError::TooLong { .. })));
}

#[test]
fn an_answer_to_another_request_is_refused() {
    let stranger = Offer { from: path("c:1", "mlx5_1"), ..mirrored(true) };
    let answer = Handshake::open(stranger).read_answer(&offer(true));
    assert!(matches!(answer, Err(WireError::NotMirrored { .. })), "{answer:?}");
    let short = Offer { queue_pairs: vec![17], terms: None, ..mirrored(true) };
    let answer = Handshake::open(short).read_answer(&offer(true));
    assert_eq!(answer, Err(WireError::QueuePairs { ours: 2, theirs: 1 }));
}

#[test]
fn a_request_for_an_earlier_life_is_recognised() {
    assert!(offer(true).is_for(Incarnation::from_bits(8)));
    assert!(!offer(true).is_for(Incarnation::from_bits(9)));
    assert!(offer(false).is_for(Incarnation::from_bits(9)), "a reference peer does not say");
}

#[test]
fn unknown_members_survive() {
    let text = r#"{"efa_addr":"00ff","local_gid":"","local_lid":0,"local_nic_path":"","payload":"","peer_nic_path":"",
"qp_num":[],"reply_msg":"","te":{"v":2,"big":123456789012345678901234567890}}"#
        .replace('\n', "");
    let read = Handshake::decode(text.as_bytes()).unwrap();
    assert_eq!(read.terms, None, "of another version");
    assert_eq!(String::from_utf8(read.encode()).unwrap(), format!("{text}\n"));
}

proptest! {
    #[test]
    fn what_is_read_comes_back(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..900, cut in 0usize..40) {
        for name in ["open_te", "accept_te"] {
            let mut text = vector(name).as_bytes().to_vec();
            let at = at.min(text.len());
            let end = (at + cut).min(text.len());
            text.splice(at..end, bytes.iter().copied());
            if let Ok(read) = Handshake::decode(&text) {
                prop_assert_eq!(Handshake::decode(&read.encode()), Ok(read));
            }
        }
    }
}
