//! Conditions, and clients that compete.

use std::sync::Arc;

use te_metadata::{MetadataStore, PutCondition, PutRequest};

use super::{PASSED, skip};
use crate::report::{Verdict, Violation, ensure};
use crate::store::bench::{StoreBench, is_conflict, patience};

const TASKS: usize = 64;

const UNCONDITIONAL: &str = "the store does not decide conditions";

/// A put that asks for an absent key takes effect only then.
pub(in crate::store) async fn absent_puts_do_not_overwrite(bench: &StoreBench) -> Result<Verdict, Violation> {
    if !bench.store.info().conditional {
        return skip(UNCONDITIONAL);
    }
    let key = bench.key("claimed");
    bench.put_on(&key, "first", PutCondition::Absent).await?;
    conflicts(bench.put_on(&key, "second", PutCondition::Absent).await, "a claim of a claimed key")?;
    bench.expect(&key, Some("first")).await?;
    bench.delete(&key).await?;
    bench.put_on(&key, "third", PutCondition::Absent).await?;
    bench.expect(&key, Some("third")).await?;
    PASSED
}

/// Compare-and-set succeeds on the current revision only.
pub(in crate::store) async fn stale_puts_do_not_overwrite(bench: &StoreBench) -> Result<Verdict, Violation> {
    if !bench.store.info().conditional {
        return skip(UNCONDITIONAL);
    }
    let key = bench.key("compared");
    let first = bench.put(&key, "first").await?;
    let second = bench.put_on(&key, "second", PutCondition::Revision(first)).await?;
    conflicts(bench.put_on(&key, "stale", PutCondition::Revision(first)).await, "a put on an old revision")?;
    bench.expect(&key, Some("second")).await?;
    bench.delete(&key).await?;
    conflicts(bench.put_on(&key, "late", PutCondition::Revision(second)).await, "a put on a deleted key")?;
    bench.expect(&key, None).await?;
    let again = bench.put(&key, "again").await?;
    ensure!(again != second && again != first, "a deleted key got an old revision again");
    conflicts(bench.put_on(&key, "late", PutCondition::Revision(second)).await, "a put on an earlier life")?;
    bench.expect(&key, Some("again")).await?;
    PASSED
}

/// A conditional delete spares what it was not meant for.
pub(in crate::store) async fn stale_deletes_do_nothing(bench: &StoreBench) -> Result<Verdict, Violation> {
    if !bench.store.info().conditional {
        return skip(UNCONDITIONAL);
    }
    let key = bench.key("spared");
    let first = bench.put(&key, "first").await?;
    let second = bench.put(&key, "second").await?;
    conflicts(bench.store.delete(&key, Some(first), patience()).await, "a delete of an old revision")?;
    bench.expect(&key, Some("second")).await?;
    ensure!(
        bench.store.delete(&key, Some(second), patience()).await?,
        "the current revision was not deleted"
    );
    bench.expect(&key, None).await?;
    ensure!(!bench.store.delete(&key, Some(second), patience()).await?, "a missing key was deleted");
    PASSED
}

fn conflicts<T: std::fmt::Debug>(
    outcome: Result<T, te_metadata::StoreError>,
    what: &str,
) -> Result<(), Violation> {
    match outcome {
        Err(error) if is_conflict(&error) => Ok(()),
        other => Err(Violation::new(format!("{what} should conflict: {other:?}"))),
    }
}

/// Runs `work` in many tasks, each with a handle, and gives their results.
async fn compete<T, F>(
    bench: &StoreBench,
    work: impl Fn(usize, Arc<dyn MetadataStore>) -> F,
) -> Result<Vec<T>, Violation>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Violation>> + Send + 'static,
{
    let mut tasks = Vec::with_capacity(TASKS);
    for number in 0..TASKS {
        // A few handles shared by many tasks: neither one each nor one for all.
        let store = if number % 16 == 0 { bench.rig.open().await? } else { bench.store.clone() };
        tasks.push(tokio::spawn(work(number, store)));
    }
    let mut results = Vec::with_capacity(TASKS);
    for task in tasks {
        results.push(task.await??);
    }
    Ok(results)
}

/// Of many engines that claim one key at the same time, exactly one gets it.
pub(in crate::store) async fn one_of_many_claims_a_key(bench: &StoreBench) -> Result<Verdict, Violation> {
    if !bench.store.info().conditional {
        return skip(UNCONDITIONAL);
    }
    for round in 0..4 {
        let key = bench.key(&format!("contested-{round}"));
        let claims = compete(bench, |number, store| {
            let claim = PutRequest::new(key.clone(), number.to_string()).on(PutCondition::Absent);
            async move {
                match store.put(claim, patience()).await {
                    Ok(_) => Ok(Some(number)),
                    Err(error) if is_conflict(&error) => Ok(None),
                    Err(error) => Err(error.into()),
                }
            }
        });
        let winners: Vec<_> = claims.await?.into_iter().flatten().collect();
        let [winner] = winners[..] else {
            return Err(Violation::new(format!("{} tasks claimed one key", winners.len())));
        };
        bench.expect(&key, Some(&winner.to_string())).await?;
    }
    PASSED
}

/// Many tasks that count up one value by compare-and-set lose no step.
pub(in crate::store) async fn no_update_is_lost(bench: &StoreBench) -> Result<Verdict, Violation> {
    const STEPS: usize = 4;
    if !bench.store.info().conditional {
        return skip(UNCONDITIONAL);
    }
    let key = bench.key("counter");
    bench.put(&key, "0").await?;
    let count = |_, store: Arc<dyn MetadataStore>| {
        let key = key.clone();
        async move {
            let mut conflicts = 0;
            for _ in 0..STEPS {
                while !step(&*store, &key).await? {
                    // Each conflict is somebody else's step.
                    conflicts += 1;
                    ensure!(
                        conflicts <= TASKS * STEPS,
                        "{conflicts} conflicts with at most {} steps",
                        TASKS * STEPS
                    );
                }
            }
            Ok(())
        }
    };
    compete(bench, count).await?;
    bench.expect(&key, Some(&(TASKS * STEPS).to_string())).await?;
    PASSED
}

/// Adds one; false if somebody else was faster.
async fn step(store: &dyn MetadataStore, key: &te_metadata::Key) -> Result<bool, Violation> {
    let entry = store.get(key, patience()).await?.ok_or_else(|| Violation::new("the counter is gone"))?;
    let next = entry.value.parse::<usize>()? + 1;
    let request = PutRequest::new(key.clone(), next.to_string()).on(PutCondition::Revision(entry.revision));
    match store.put(request, patience()).await {
        Ok(_) => Ok(true),
        Err(error) if is_conflict(&error) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Many tasks that put, read and delete keys of their own never see anybody else's value (META-10).
pub(in crate::store) async fn concurrent_writers_do_not_mix(
    bench: &StoreBench,
) -> Result<Verdict, Violation> {
    const ROUNDS: usize = 8;
    compete(bench, |number, store| {
        let key = bench.key(&format!("task-{number}"));
        async move {
            for round in 0..ROUNDS {
                let value = format!("{number}:{round}:{}", "x".repeat(number * 7));
                store.put(PutRequest::new(key.clone(), value.clone()), patience()).await?;
                let found = store.get(&key, patience()).await?.map(|entry| entry.value);
                ensure!(found.as_ref() == Some(&value), "task {number} reads {found:?} in round {round}");
                if round % 3 == 2 {
                    ensure!(
                        store.delete(&key, None, patience()).await?,
                        "task {number} finds its key deleted"
                    );
                    ensure!(
                        store.get(&key, patience()).await?.is_none(),
                        "task {number} reads a deleted key"
                    );
                }
            }
            Ok(())
        }
    })
    .await?;
    if bench.store.info().list {
        let left = bench.list(bench.prefix()).await?.len();
        ensure!(left == TASKS, "{left} of {TASKS} keys are left");
    }
    PASSED
}
