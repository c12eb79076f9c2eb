//! MR-10: registered memory cannot be freed, aliased or borrowed in safe code. The compiler proves it.

#[test]
fn misuse_of_registered_memory_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
