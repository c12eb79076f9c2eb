//! Location strings: parsing is total, and every string survives it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use te_segment::Location;

fuzz_target!(|text: &str| {
    let location = Location::parse(text);
    assert_eq!(location.to_string(), text);
    assert_eq!(location.canonical(), location);
});
