//! Keys are used as they are.

use te_metadata::{PutRequest, StoreErrorKind};

use super::{PASSED, skip};
use crate::report::{Verdict, Violation, ensure};
use crate::store::bench::{StoreBench, patience};

/// Key texts that some store, URL or pattern language reads in its own way.
fn odd() -> Vec<String> {
    let texts = [
        "plain",
        "Plain",
        "PLAIN",
        "a",
        "a/",
        "a/b",
        "a//b",
        "a/../b",
        "a/./b",
        "b",
        ".",
        "..",
        " ",
        " a",
        "a ",
        "a b",
        "a+b",
        "a%20b",
        "a%2Fb",
        "%",
        "%%",
        "a?b",
        "a#b",
        "a&b",
        "a=b",
        "a;b",
        "a:b",
        "a@b",
        "*",
        "a*",
        "?",
        "[ab]",
        "{a}",
        "\\",
        "\"",
        "'",
        "`",
        "$(a)",
        "~",
        "|",
        "<a>",
        "é",
        "e\u{301}",
        "寸",
        "🦀",
        "\u{10ffff}",
        "rpc_meta",
        "ram",
    ];
    let mut odd: Vec<_> = texts.map(str::to_owned).to_vec();
    // As long as names get, and two that differ in the last byte only.
    odd.extend(["k".repeat(1023) + "1", "k".repeat(1023) + "2", "ü".repeat(512), "d/".repeat(511) + "x"]);
    odd
}

/// Odd keys are different keys: each keeps its own value, in gets and in lists, and only the one deleted is gone. A
/// store that cannot keep some apart refuses them.
pub(in crate::store) async fn odd_keys_stay_apart(bench: &StoreBench) -> Result<Verdict, Violation> {
    let mut odd = odd();
    if !bench.store.info().exact_keys {
        let refused: Vec<_> = odd.extract_if(.., |text| text.ends_with(char::is_whitespace)).collect();
        for text in refused {
            let request = PutRequest::new(bench.key(&text), "x".to_owned());
            let error = bench.store.put(request, patience()).await.err().map(|error| error.kind);
            ensure!(matches!(error, Some(StoreErrorKind::Invalid { .. })), "key {text:?} gives {error:?}");
        }
    }
    for (number, text) in odd.iter().enumerate() {
        let put = bench.put(&bench.key(text), &format!("value {number}")).await;
        put.map_err(|violation| {
            violation.at(format_args!("key {:?}", text.chars().take(20).collect::<String>()))
        })?;
    }
    for (number, text) in odd.iter().enumerate() {
        bench.expect(&bench.key(text), Some(&format!("value {number}"))).await?;
    }
    if bench.store.info().list {
        let mut expected: Vec<_> = odd.iter().map(|text| bench.key(text)).collect();
        expected.sort();
        let listed: Vec<_> = bench.list(bench.prefix()).await?.into_iter().map(|(key, _)| key).collect();
        let stranger = listed.iter().find(|key| !expected.contains(key));
        let missing = expected.iter().find(|key| !listed.contains(key));
        ensure!(listed == expected, "the list lacks {missing:?}, has {stranger:?}, or is out of order");
    }
    for text in odd.iter().step_by(2) {
        ensure!(bench.delete(&bench.key(text)).await?, "key {text:?} could not be deleted");
    }
    for (number, text) in odd.iter().enumerate() {
        let value = format!("value {number}");
        bench.expect(&bench.key(text), Some(value.as_str()).filter(|_| number % 2 == 1)).await?;
    }
    PASSED
}

/// A list has every key with the prefix and no other, in byte order, with the values and revisions that a get gives.
pub(in crate::store) async fn lists_are_exact_and_in_order(bench: &StoreBench) -> Result<Verdict, Violation> {
    if !bench.store.info().list {
        return skip("the store cannot list");
    }
    let texts = ["l", "l/", "l/b", "l/a", "l/a/z", "l/ä", "l/Z", "l/a!", "l0", "l-", "m/l/a", "L/a"];
    for text in texts {
        bench.put(&bench.key(text), text).await?;
    }
    for prefix in ["", "l", "l/", "l/a", "l/a/", "l/a/z", "l/none", "l%", "*"] {
        let whole = format!("{}{prefix}", bench.prefix());
        let mut expected: Vec<_> = texts.iter().filter(|text| text.starts_with(prefix)).copied().collect();
        expected.sort_unstable();
        let listed = bench.list(&whole).await?;
        let found: Vec<_> =
            listed.iter().filter_map(|(key, _)| key.as_str().strip_prefix(bench.prefix())).collect();
        ensure!(found == expected && found.len() == listed.len(), "prefix {prefix:?} lists {found:?}");
        for (key, entry) in listed {
            ensure!(bench.entry(&key).await? == entry, "list and get of {key} differ");
        }
    }
    PASSED
}
