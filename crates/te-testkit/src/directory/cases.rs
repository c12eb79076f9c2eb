//! The cases.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use te_metadata::{Directory, DirectoryError, DirectoryEvent, DirectoryWatch, NameRule, Resolved};
use te_segment::{
    Access, AddressRange, BufferDescriptor, DescriptorVersion, Generation, Identity, Incarnation, Location,
    SegmentDescriptor, SegmentName, TcpFraming, TcpService, TransportKind, Via,
};

use super::{DirectoryRig, Publisher};
use crate::report::{Verdict, Violation, ensure};

const PASSED: Result<Verdict, Violation> = Ok(Verdict::Passed);

const fn skip(why: &'static str) -> Result<Verdict, Violation> {
    Ok(Verdict::NotApplicable(why))
}

fn patience() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

impl Publisher {
    /// A descriptor of this engine with so many buffers.
    fn describe(&self, version: u64, buffers: u64) -> Result<SegmentDescriptor, Violation> {
        let control = self.location.endpoint();
        let port = NonZeroU16::new(16_411).ok_or_else(|| Violation::new("no port"))?;
        let tcp = TcpService { host: Some(control.host().clone()), port, framing: TcpFraming::V2 };
        // The same engine in every version.
        let incarnation = Incarnation::from_bits(u128::from(control.port()) << 64 | 0x7e);
        let mut builder = SegmentDescriptor::builder(self.name.clone())
            .identity(Identity::Te { incarnation, control: Some(control) })
            .version(DescriptorVersion::new(version))
            .tcp(tcp);
        for number in 0..buffers {
            builder = builder.buffer(BufferDescriptor::new(
                AddressRange::new(0x7f00_0000_0000 + number * 0x2_0000, 0x1_0000 + number)?,
                Location::cpu(u32::try_from(number % 2)?),
                [Access::REMOTE, Access::REMOTE_READ, Access::REMOTE_WRITE][usize::try_from(number % 3)?],
                Some(Generation::new(version * 1000 + number)),
                [(TransportKind::TCP, Via::Tcp)].into(),
            )?);
        }
        Ok(builder.build()?)
    }

    async fn publish(&self, descriptor: SegmentDescriptor) -> Result<Arc<SegmentDescriptor>, Violation> {
        let descriptor = Arc::new(descriptor);
        self.directory.publish(descriptor.clone(), self.location.clone(), patience()).await?;
        Ok(descriptor)
    }
}

async fn resolve(directory: &dyn Directory, name: &SegmentName) -> Result<Resolved, Violation> {
    Ok(directory.resolve(name, patience()).await?)
}

/// Checks that a name resolves to this content.
async fn expect(directory: &dyn Directory, published: &SegmentDescriptor) -> Result<(), Violation> {
    let name = published.name();
    let Resolved { descriptor, rejected, .. } = resolve(directory, name).await?;
    ensure!(rejected.is_empty(), "{name} loses buffers: {rejected:?}");
    ensure!(descriptor.same_content(published), "{name} resolves to other content: {descriptor:?}");
    ensure!(
        descriptor.version() == published.version(),
        "{name} resolves to version {:?}",
        descriptor.version()
    );
    Ok(())
}

/// What is published is found by others, under its name.
pub(super) async fn published_segments_are_resolved(rig: &dyn DirectoryRig) -> Result<Verdict, Violation> {
    let engine = rig.publisher("resolved").await?;
    let reader = rig.reader().await?;
    ensure!(!reader.scheme().is_empty(), "the directory has no scheme");
    let published = engine.publish(engine.describe(1, 2)?).await?;
    expect(&*reader, &published).await?;
    let resolved = resolve(&*reader, &engine.name).await?;
    let tcp = resolved.tcp.ok_or_else(|| Violation::new("the TCP data port is not resolved"))?;
    ensure!(tcp.port() == 16_411, "the TCP data port is resolved to {tcp}");
    ensure!(tcp.host() == engine.location.host(), "the TCP data port is resolved to {tcp}");
    PASSED
}

/// Ranges, accesses, generations and locations of many buffers survive; local-only buffers are not told (MR-07).
pub(super) async fn buffers_survive_publication(rig: &dyn DirectoryRig) -> Result<Verdict, Violation> {
    const BUFFERS: u64 = 100;
    let engine = rig.publisher("buffers").await?;
    let reader = rig.reader().await?;
    let described = engine.describe(3, BUFFERS)?;
    let range = AddressRange::new(0x1000, 0x1000)?;
    let secret =
        BufferDescriptor::new(range, Location::cpu(0), Access::LOCAL, Some(Generation::new(9)), [].into())?;
    let with_secret = crate::redescribe(&described, |builder| builder.buffer(secret))?;
    engine.publish(with_secret).await?;
    let resolved = resolve(&*reader, &engine.name).await?.descriptor;
    ensure!(resolved.buffers() == described.buffers(), "buffers change: {:?}", resolved.buffers());
    PASSED
}

/// The location of a published engine is found.
pub(super) async fn locations_are_found(rig: &dyn DirectoryRig) -> Result<Verdict, Violation> {
    let engine = rig.publisher("located").await?;
    engine.publish(engine.describe(1, 0)?).await?;
    let found = rig.reader().await?.locate(&engine.name, patience()).await?;
    ensure!(found == engine.location.endpoint(), "{} is located at {found}", engine.name);
    PASSED
}

/// A name that nobody published is an answer, not an outage, and the other way round (META-01).
pub(super) async fn unknown_names_are_told_from_outages(
    rig: &dyn DirectoryRig,
) -> Result<Verdict, Violation> {
    let nobody = rig.publisher("nobody").await?;
    let reader = rig.reader().await?;
    let name = nobody.name.clone();
    // Where the owner answers, it must not be there to answer.
    drop(nobody);
    let resolved = reader.resolve(&name, patience()).await;
    let error = resolved.err().ok_or_else(|| Violation::new("a name that nobody published resolves"))?;
    let located = reader.locate(&name, patience()).await;
    if rig.states_absence() {
        ensure!(
            matches!(&error, DirectoryError::NotFound { name: told } if *told == name),
            "resolve: {error}"
        );
        ensure!(!error.is_outage(), "a missing name counts as outage: {error}");
        let absent =
            matches!(&located, Err(DirectoryError::NotFound { .. } | DirectoryError::NoLocation { .. }));
        ensure!(absent, "locate: {located:?}");
    } else {
        ensure!(!matches!(error, DirectoryError::NotFound { .. }), "no answer counts as not found");
        // A refused connection is an answer of the host, not of the segment: it may be reported as such.
        let refused = matches!(error, DirectoryError::Refused { .. });
        ensure!(error.is_outage() || refused, "no answer is no outage: {error}");
    }
    PASSED
}

/// Publishing again replaces what was there, for everybody.
pub(super) async fn publishing_again_replaces(rig: &dyn DirectoryRig) -> Result<Verdict, Violation> {
    let engine = rig.publisher("again").await?;
    let reader = rig.reader().await?;
    for (version, buffers) in [(1, 2), (2, 5), (3, 0), (4, 1), (4, 1)] {
        let published = engine.publish(engine.describe(version, buffers)?).await?;
        expect(&*reader, &published).await?;
    }
    PASSED
}

/// A withdrawn name is gone, its neighbours are not, and withdrawing again is no error.
pub(super) async fn withdrawn_segments_are_gone(rig: &dyn DirectoryRig) -> Result<Verdict, Violation> {
    let (engine, other) = (rig.publisher("withdrawn").await?, rig.publisher("withdrawn-not").await?);
    let reader = rig.reader().await?;
    let published = engine.publish(engine.describe(1, 2)?).await?;
    let stays = other.publish(other.describe(1, 3)?).await?;
    for attempt in ["first", "second"] {
        let withdrawn = engine.directory.withdraw(&engine.name, patience()).await;
        withdrawn.map_err(|error| Violation::from(error).at(format_args!("{attempt} withdrawal")))?;
        match reader.resolve(&engine.name, patience()).await {
            Ok(found) => return Err(Violation::new(format!("still resolves, to {:?}", found.descriptor))),
            Err(error) if rig.states_absence() => {
                ensure!(
                    matches!(error, DirectoryError::NotFound { .. }),
                    "after the {attempt} withdrawal: {error}"
                );
                let located = reader.locate(&engine.name, patience()).await;
                ensure!(located.is_err(), "still located, at {located:?}");
            }
            Err(_) => {}
        }
        expect(&*reader, &stays).await?;
    }
    engine.directory.publish(published.clone(), engine.location.clone(), patience()).await?;
    expect(&*reader, &published).await?;
    PASSED
}

/// Names are used as they are: with slashes, spaces, wildcards, in any script and length.
pub(super) async fn odd_names_stay_apart(rig: &dyn DirectoryRig) -> Result<Verdict, Violation> {
    let reader = rig.reader().await?;
    if reader.name_rule() != NameRule::Any {
        return skip("names are addresses");
    }
    let odd =
        ["n", "N", "n/a", "n/a/b", "a", "n a", "n%20a", "n+a", "n*", "n?", "größe", "寸", "🦀", "n/rpc_meta"];
    let mut published = Vec::new();
    for (number, wish) in (1_u64..).zip(odd) {
        let engine = rig.publisher(wish).await?;
        let descriptor = engine.publish(engine.describe(number, number % 4)?).await?;
        published.push((engine, descriptor));
    }
    for (_, descriptor) in &published {
        expect(&*reader, descriptor).await?;
    }
    for (engine, _) in published.iter().step_by(2) {
        engine.directory.withdraw(&engine.name, patience()).await?;
    }
    for (_, descriptor) in published.iter().skip(1).step_by(2) {
        expect(&*reader, descriptor).await?;
    }
    PASSED
}

/// Where names are addresses, other names are refused as such and nobody is asked.
pub(super) async fn unfit_names_are_refused(rig: &dyn DirectoryRig) -> Result<Verdict, Violation> {
    let reader = rig.reader().await?;
    if reader.name_rule() == NameRule::Any {
        return skip("every name fits");
    }
    for text in ["decode-7", "10.0.0.7", "10.0.0.7:0", "10.0.0.7:70000", "::1:8000", "host:port"] {
        let name = SegmentName::new(text)?;
        for (call, error) in [
            ("resolve", reader.resolve(&name, patience()).await.err()),
            ("locate", reader.locate(&name, patience()).await.err()),
        ] {
            let invalid = matches!(error, Some(DirectoryError::NameInvalid { .. }));
            ensure!(invalid, "{call} of {text:?} should be refused for the name: {error:?}");
        }
    }
    PASSED
}

/// A record over the limit is refused with both numbers, and what was published before stays.
pub(super) async fn oversized_records_are_refused_whole(
    rig: &dyn DirectoryRig,
) -> Result<Verdict, Violation> {
    let engine = rig.publisher("oversized").await?;
    let reader = rig.reader().await?;
    let Some(limit) = engine.directory.max_value().filter(|limit| *limit <= 8 << 20) else {
        return skip("the directory states no limit, or a very large one");
    };
    let published = engine.publish(engine.describe(1, 1)?).await?;
    let buffers = u64::try_from(limit / 40 + 1)?;
    let large = Arc::new(engine.describe(2, buffers)?);
    match engine.directory.publish(large, engine.location.clone(), patience()).await {
        Err(DirectoryError::TooLarge { size, limit: stated, .. }) => {
            ensure!(stated == limit && size > limit, "the error speaks of {size} of {stated} bytes");
        }
        other => {
            return Err(Violation::new(format!("{buffers} buffers and a limit of {limit} bytes: {other:?}")));
        }
    }
    expect(&*reader, &published).await?;
    PASSED
}

/// A call whose deadline is over fails at once and says nothing about the segment.
pub(super) async fn late_calls_fail_at_once(rig: &dyn DirectoryRig) -> Result<Verdict, Violation> {
    let engine = rig.publisher("late").await?;
    let reader = rig.reader().await?;
    engine.publish(engine.describe(1, 1)?).await?;
    let late = Instant::now() - Duration::from_millis(10);
    let began = Instant::now();
    for (call, error) in [
        ("resolve", reader.resolve(&engine.name, late).await.err()),
        // The owner's directory may know its own location without asking anybody.
        ("locate", reader.locate(&engine.name, late).await.err().filter(|_| rig.states_absence())),
    ] {
        match error {
            None => ensure!(call == "locate" && !rig.states_absence(), "{call} succeeded after its deadline"),
            Some(error) => ensure!(error.is_outage(), "{call} after its deadline: {error}"),
        }
    }
    ensure!(began.elapsed() < rig.grace(), "late calls took {:?}", began.elapsed());
    PASSED
}

/// Many engines that publish, resolve and withdraw at the same time see each other's records whole (META-09).
pub(super) async fn concurrent_engines_do_not_mix(rig: &dyn DirectoryRig) -> Result<Verdict, Violation> {
    const ENGINES: usize = 24;
    let mut tasks = Vec::new();
    for number in 0..ENGINES {
        let engine = rig.publisher(&format!("many-{number}")).await?;
        let reader = rig.reader().await?;
        tasks.push(tokio::spawn(async move {
            for version in 1..6 {
                let buffers = u64::try_from(number)? % 7 + version;
                let published = engine.publish(engine.describe(version, buffers)?).await?;
                expect(&*reader, &published).await?;
                let location = reader.locate(&engine.name, patience()).await?;
                ensure!(location == engine.location.endpoint(), "{} is located at {location}", engine.name);
            }
            Ok::<_, Violation>(engine)
        }));
    }
    for task in tasks {
        let engine = task.await??;
        engine.directory.withdraw(&engine.name, patience()).await?;
    }
    PASSED
}

/// Who watches learns of changes and withdrawals, in order.
pub(super) async fn changes_are_watched(rig: &dyn DirectoryRig) -> Result<Verdict, Violation> {
    let engine = rig.publisher("watched").await?;
    let reader = rig.reader().await?;
    let Some(mut watch) = reader.watch(patience()).await? else {
        return skip("the directory has no watch");
    };
    let name = &engine.name;
    engine.publish(engine.describe(1, 1)?).await?;
    see(rig, &mut watch, &DirectoryEvent::Changed(name.clone())).await?;
    engine.publish(engine.describe(2, 2)?).await?;
    see(rig, &mut watch, &DirectoryEvent::Changed(name.clone())).await?;
    engine.directory.withdraw(name, patience()).await?;
    see(rig, &mut watch, &DirectoryEvent::Removed(name.clone())).await?;
    PASSED
}

/// The next event about the name of `expected`, which must be that one. Others share the directory.
async fn see(
    rig: &dyn DirectoryRig,
    watch: &mut DirectoryWatch,
    expected: &DirectoryEvent,
) -> Result<(), Violation> {
    let about = |event: &DirectoryEvent| match event {
        DirectoryEvent::Changed(name) | DirectoryEvent::Removed(name) => Some(name.clone()),
        _ => None,
    };
    let seen = async {
        loop {
            let event = watch.next().await.ok_or_else(|| Violation::new("the watch ended"))??;
            if about(&event) == about(expected) {
                return Ok::<_, Violation>(event);
            }
        }
    };
    let seen = tokio::time::timeout(rig.grace(), seen).await;
    let seen = seen.map_err(|_| Violation::new(format!("no event came instead of {expected:?}")))??;
    ensure!(seen == *expected, "{seen:?} came instead of {expected:?}");
    Ok(())
}
