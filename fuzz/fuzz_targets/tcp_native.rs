//! The fixed frames of native data connections, alone and as a stream of them.
//!
//! The first byte says whether the parts that are always the same are put right, so that what is behind them is reached.

#![no_main]

use libfuzzer_sys::fuzz_target;
use te_transport_tcp::frame::{HEADER_LEN, STATUS_LEN, Status};
use te_transport_tcp::native::{
    ANSWER_LEN, Answer, ENTRY_LEN, Entry, HELLO_LEN, Hello, LIST_MAX, List, MAGIC, Malformed, REQUEST_LEN, Request,
    Verdict,
};

fuzz_target!(|data: &[u8]| {
    let [help, data @ ..] = data else { return };
    let help = help & 1 == 1;
    for bytes in data.as_chunks::<REQUEST_LEN>().0 {
        let mut bytes = *bytes;
        if help {
            bytes[0] &= 3;
            bytes[1] &= 3;
            bytes[2..4].copy_from_slice(b"te");
            bytes[20..24].fill(0);
        }
        match Request::decode(&bytes) {
            Ok(request) => {
                assert_eq!(request.encode(), bytes);
                // What begins a hello begins no request.
                assert!(!bytes.starts_with(&MAGIC));
            }
            Err(Malformed::Operation(op)) => {
                assert_eq!(op, bytes[0]);
                if help {
                    bytes[1] = 0;
                    bytes[8..16].fill(0);
                    bytes[17..32].fill(0);
                    bytes[34..].fill(0);
                }
                if let Ok(Some(list)) = List::decode(&bytes) {
                    assert_eq!(list.encode(), bytes);
                    assert!((1..=LIST_MAX).contains(&list.count));
                }
            }
            Err(Malformed::Foreign) => assert_ne!(&bytes[2..4], b"te"),
            Err(_) => {}
        }
    }
    for bytes in data.as_chunks::<ENTRY_LEN>().0 {
        if let Ok(entry) = Entry::decode(bytes) {
            assert_eq!(entry.encode(), *bytes);
        }
    }
    for bytes in data.as_chunks::<HELLO_LEN>().0 {
        let mut bytes = *bytes;
        if help {
            bytes[..8].copy_from_slice(&MAGIC);
            bytes[16] = 0x7f;
        }
        if let Ok(hello) = Hello::decode(&bytes) {
            let again = hello.encode();
            assert_eq!(Hello::decode(&again), Ok(hello));
            assert_eq!((again[8..10].to_vec(), &again[24..]), (bytes[8..10].to_vec(), &bytes[24..]));
            let header = again.first_chunk::<HEADER_LEN>().expect("a hello is longer");
            assert!(te_transport_tcp::frame::Request::decode(header).is_err());
        } else {
            assert!(!help);
        }
    }
    for bytes in data.as_chunks::<ANSWER_LEN>().0 {
        let mut bytes = *bytes;
        if help {
            bytes[..8].copy_from_slice(&MAGIC);
        }
        if let Ok(answer) = Answer::decode(&bytes) {
            assert_eq!(answer.encode()[8], bytes[8]);
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        } else {
            assert!(!help);
        }
    }
    for bytes in data.as_chunks::<STATUS_LEN>().0 {
        if let Ok(Status::Rejected(code)) = Status::decode(*bytes)
            && let Ok(verdict) = Verdict::from_code(code)
        {
            let again = if Verdict::is_last(code) { verdict.encode_last() } else { verdict.encode() };
            assert_eq!(again, *bytes);
        }
    }
});
