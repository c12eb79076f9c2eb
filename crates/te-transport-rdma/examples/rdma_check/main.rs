//! Checks on real verbs, for the guest, between two network namespaces.
//!
//! `rdma_check contract|stalls|rails NAMESPACE NEAR=FAR.. [CASE..]`: a namespace, for each rail the device here and the one in
//! it, and the cases of the contract if not all of them. `rdma_check cycles NAMESPACE NEAR=FAR.. COUNT` has a rail go down and
//! come up so many times. Prints a line for each check that begins with `ok` or `not ok`, and ends with 1 if any is not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "it is a test, and a failure of it is a panic")]

mod contract;
mod rails;
mod within;

use std::path::PathBuf;
use std::process::ExitCode;

use within::Rails;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(which), Some(namespace)) = (arguments.next(), arguments.next()) else {
        return usage();
    };
    let (rails, cases): (Vec<_>, Vec<_>) = arguments.partition(|argument| argument.contains('='));
    let rails = rails.iter().filter_map(|rail| rail.split_once('='));
    let rails = rails.map(|(near, far)| (near.to_owned(), far.to_owned())).collect();
    let rails = Rails { namespace: PathBuf::from("/run/netns").join(namespace), rails };
    let well = match which.as_str() {
        "contract" => contract::run(rails, false, &cases),
        "stalls" => contract::run(rails, true, &cases),
        "cycles" => match cases.first().map(|count| count.parse::<u8>()) {
            Some(Ok(count)) if count > 0 => rails::endure(&rails, count),
            _ => return usage(),
        },
        _ => rails::run(&rails),
    };
    ExitCode::from(u8::from(!well))
}

fn usage() -> ExitCode {
    eprintln!("rdma_check contract|stalls|rails NAMESPACE NEAR=FAR.. [CASE..]");
    eprintln!("rdma_check cycles NAMESPACE NEAR=FAR.. COUNT, from 1 to 255");
    ExitCode::from(2)
}
