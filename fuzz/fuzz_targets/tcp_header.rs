//! Request headers and statuses of the TCP data port, alone and as a stream of them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use te_transport_tcp::frame::{HEADER_LEN, Request, STATUS_LEN, STATUS_MAGIC, Status};

fuzz_target!(|data: &[u8]| {
    for bytes in data.as_chunks::<HEADER_LEN>().0 {
        match Request::decode(bytes) {
            Ok(request) => {
                let again = request.encode();
                // All but the padding comes back, and the padding is zero.
                assert_eq!(again[..17], bytes[..17]);
                assert_eq!(again[17..], [0; 7]);
                assert_eq!(Request::decode(&again), Ok(request));
            }
            Err(error) => {
                assert_eq!(error.opcode, bytes[16]);
                assert!(error.opcode & 0x7f > 1);
            }
        }
    }
    for bytes in data.as_chunks::<STATUS_LEN>().0 {
        match Status::decode(*bytes) {
            Ok(status) => assert_eq!(status.encode(), *bytes),
            Err(error) => {
                assert_ne!(bytes[4..], STATUS_MAGIC.to_le_bytes());
                assert_eq!(error.found.to_le_bytes(), *bytes);
            }
        }
    }
});
