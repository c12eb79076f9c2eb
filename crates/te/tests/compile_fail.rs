//! What must not compile, and what must.

/// LIFE-03: an engine is shared between threads without further ado.
const fn shared_between_threads<T: Send + Sync>() {}
const _: () = {
    shared_between_threads::<te::Engine>();
    shared_between_threads::<te::blocking::Engine>();
    shared_between_threads::<te::Segment>();
    shared_between_threads::<te::RemoteRange>();
    shared_between_threads::<te::Buffer>();
    shared_between_threads::<te::LocalSlice>();
    shared_between_threads::<te::Batch>();
    shared_between_threads::<te::Error>();
};

/// LIFE-03: what the compiler refuses. N-02: so is using the memory of a buffer while it is registered.
#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
