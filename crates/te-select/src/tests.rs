//! Facts about selection.

use proptest::prelude::*;
use te_segment::{DeviceKind, Location, TransportKind};
use te_transport::{Assessment, Capabilities, Fencing, Op, Reach};

use crate::{Installed, Locality, NoPath, Policy, Request, Verdict, plan};

fn capabilities(reach: Reach) -> Capabilities {
    Capabilities {
        read: true,
        write: true,
        host_memory: true,
        device_memory: false,
        max_slice: u64::MAX,
        reach,
        fencing: Fencing::LocalOnly,
        checks_identity: false,
        registers_at_once: true,
    }
}

fn usable(kind: TransportKind, capabilities: &Capabilities) -> Installed<'_> {
    Installed::new(kind, capabilities, Assessment::Usable("fine".into()), true)
}

fn request<'a>(policy: &'a Policy, local: &'a Location) -> Request<'a> {
    Request { op: Op::Read, local, policy }
}

/// FO-09: the intersection is used although one side has more.
#[test]
fn intersection_of_both_sides_is_chosen() {
    let network = capabilities(Reach::Network);
    let installed = [usable(TransportKind::RDMA, &network), usable(TransportKind::TCP, &network)];
    let policy = Policy::default();
    let plan = plan(&request(&policy, &Location::Any), Locality::Network, &installed, &[TransportKind::TCP])
        .unwrap();
    assert_eq!(plan.chosen(), &TransportKind::TCP);
    assert_eq!(plan.order().count(), 1);
    assert_eq!(plan.candidates()[1].verdict, Verdict::Rejected);
}

/// FO-09: an empty intersection lists both sets.
#[test]
fn empty_intersection_names_both_sides() {
    let network = capabilities(Reach::Network);
    let installed = [usable(TransportKind::RDMA, &network), usable(TransportKind::CXL, &network)];
    let policy = Policy::default();
    let error = plan(&request(&policy, &Location::Any), Locality::Network, &installed, &[TransportKind::TCP])
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "no common path: the peer offers tcp; ours: cxl (the peer does not offer the buffer this way), \
         rdma (the peer does not offer the buffer this way)"
    );
}

/// SEL-01: an explicit list is exact, and its order counts.
#[test]
fn explicit_list_is_exact_and_ordered() {
    let network = capabilities(Reach::Network);
    let kinds = [TransportKind::RDMA, TransportKind::TCP, TransportKind::CXL];
    let installed: Vec<_> = kinds.iter().map(|kind| usable(kind.clone(), &network)).collect();
    let policy = Policy { only: Some(vec![TransportKind::TCP, TransportKind::RDMA]) };
    let plan = plan(&request(&policy, &Location::Any), Locality::Network, &installed, &kinds).unwrap();
    assert_eq!(plan.order().cloned().collect::<Vec<_>>(), [TransportKind::TCP, TransportKind::RDMA]);
    assert_eq!(plan.candidates()[2].reason, "not in the explicit transport list");
}

/// SEL-06: an unknown name is an error, never a silent downgrade.
#[test]
fn unknown_transport_in_the_list_is_an_error() {
    let network = capabilities(Reach::Network);
    let installed = [usable(TransportKind::TCP, &network)];
    let policy = Policy { only: Some(vec![TransportKind::RDMA, TransportKind::TCP]) };
    let error = plan(&request(&policy, &Location::Any), Locality::Network, &installed, &[TransportKind::TCP])
        .unwrap_err();
    assert!(matches!(error, NoPath::UnknownTransport { ref got, .. } if *got == TransportKind::RDMA));
    assert_eq!(error.to_string(), "transport rdma is not installed; installed: tcp");
}

/// SEL-08: a transport that said "not mine" for the region is passed over, not a failure.
#[test]
fn transport_without_the_region_is_passed_over() {
    let network = capabilities(Reach::Network);
    let installed = [
        Installed::new(TransportKind::RDMA, &network, Assessment::Usable("fine".into()), false),
        usable(TransportKind::TCP, &network),
    ];
    let policy = Policy::default();
    let offered = [TransportKind::RDMA, TransportKind::TCP];
    let plan = plan(&request(&policy, &Location::Any), Locality::Network, &installed, &offered).unwrap();
    assert_eq!(plan.chosen(), &TransportKind::TCP);
    assert_eq!(plan.candidates()[1].reason, "the local buffer is not registered with it");
}

#[test]
fn device_memory_needs_a_transport_that_serves_it() {
    let network = capabilities(Reach::Network);
    let installed = [usable(TransportKind::TCP, &network)];
    let policy = Policy::default();
    let local = Location::Device { kind: DeviceKind::Cuda, index: 0 };
    let error =
        plan(&request(&policy, &local), Locality::Network, &installed, &[TransportKind::TCP]).unwrap_err();
    assert!(error.to_string().contains("does not serve device memory (cuda:0)"), "{error}");
}

fn any_reach() -> impl Strategy<Value = Reach> {
    prop_oneof![Just(Reach::Process), Just(Reach::Host), Just(Reach::Network)]
}

fn any_locality() -> impl Strategy<Value = Locality> {
    prop_oneof![Just(Locality::SameProcess), Just(Locality::SameHost), Just(Locality::Network)]
}

proptest! {
    /// SEL-02: what works only within a host is never used beyond it; SEL-03: the plan never names an absent one.
    #[test]
    fn plan_respects_reach_and_names_only_installed_ones(
        reaches in proptest::collection::vec((any_reach(), any::<bool>(), any::<bool>()), 0..7),
        locality in any_locality(),
        reverse in any::<bool>(),
    ) {
        let caps: Vec<_> = reaches.iter().map(|(reach, ..)| capabilities(*reach)).collect();
        let mut installed: Vec<_> = crate::DEFAULT_ORDER
            .iter()
            .zip(&caps)
            .zip(&reaches)
            .map(|((kind, caps), (_, _, registered))| {
                Installed::new(kind.clone(), caps, Assessment::Usable(String::new()), *registered)
            })
            .collect();
        let offered: Vec<_> = crate::DEFAULT_ORDER
            .iter()
            .zip(&reaches)
            .filter(|(_, (_, offered, _))| *offered)
            .map(|(kind, _)| kind.clone())
            .collect();
        let policy = Policy::default();
        let forward = plan(&request(&policy, &Location::Any), locality, &installed, &offered);
        if reverse {
            installed.reverse();
            prop_assert_eq!(&forward, &plan(&request(&policy, &Location::Any), locality, &installed, &offered));
        }
        if let Ok(plan) = forward {
            prop_assert_eq!(plan.candidates().len(), reaches.len());
            let mut last = 0;
            for kind in plan.order() {
                let at = crate::rank(kind);
                prop_assert!(at >= last);
                last = at;
                let (reach, offered, registered) = reaches[at];
                prop_assert!(offered && registered);
                let within_reach = match reach {
                    Reach::Process => locality == Locality::SameProcess,
                    Reach::Host => locality <= Locality::SameHost,
                    _ => true,
                };
                prop_assert!(within_reach);
            }
        }
    }
}

/// FO-06: a path that failed lately comes last with the reason, and stays usable.
#[test]
fn deferred_transports_come_last_and_say_why() {
    let network = capabilities(Reach::Network);
    let kinds = [TransportKind::RDMA, TransportKind::TCP, TransportKind::CXL];
    let installed: Vec<_> = kinds.iter().map(|kind| usable(kind.clone(), &network)).collect();
    let policy = Policy { only: Some(vec![TransportKind::RDMA, TransportKind::TCP]) };
    let plan = plan(&request(&policy, &Location::Any), Locality::Network, &installed, &kinds).unwrap();
    let deferred =
        plan.clone().deferring(|kind| (*kind == TransportKind::RDMA).then(|| "it failed".to_owned()));
    assert_eq!(deferred.order().cloned().collect::<Vec<_>>(), [TransportKind::TCP, TransportKind::RDMA]);
    assert_eq!(deferred.chosen(), &TransportKind::TCP);
    assert_eq!(deferred.candidates()[1].reason, "fine; it failed");
    assert_eq!(deferred.candidates()[1].verdict, Verdict::Next);
    assert_eq!(deferred.candidates()[2].verdict, Verdict::Rejected);
    assert_eq!(plan.clone().deferring(|_| None), plan);
    let all = plan.clone().deferring(|_| Some("it failed".to_owned()));
    assert_eq!(all.order().collect::<Vec<_>>(), plan.order().collect::<Vec<_>>());
}

/// SEL-05: a transport of one host says why nothing is proven, if it knows.
#[test]
fn unproven_locality_is_explained() {
    let (host, network) = (capabilities(Reach::Host), capabilities(Reach::Network));
    let kinds = [TransportKind::SHM, TransportKind::TCP];
    let policy = Policy::default();
    for (assessment, expected) in [
        (Assessment::Usable("offered".into()), "the peer has not proven that it runs on this host"),
        (
            Assessment::Unusable("nobody listens".into()),
            "the peer has not proven that it runs on this host: nobody listens",
        ),
    ] {
        let installed = [
            Installed::new(TransportKind::SHM, &host, assessment, true),
            usable(TransportKind::TCP, &network),
        ];
        let request = request(&policy, &Location::Any);
        let unproven = plan(&request, Locality::Network, &installed, &kinds).unwrap();
        assert_eq!(unproven.chosen(), &TransportKind::TCP);
        assert_eq!(unproven.candidates()[1].reason, expected);
    }
    let installed = [usable(TransportKind::TCP, &network), usable(TransportKind::SHM, &host)];
    let proven = plan(&request(&policy, &Location::Any), Locality::SameHost, &installed, &kinds).unwrap();
    assert_eq!(proven.order().collect::<Vec<_>>(), kinds.iter().collect::<Vec<_>>());
}

/// SEL-05: a copy within the process comes first where the group proves it, and says what is missing where it does not.
#[test]
fn copies_within_the_process_come_first_and_need_their_proof() {
    let caps = [capabilities(Reach::Process), capabilities(Reach::Host), capabilities(Reach::Network)];
    let kinds = [TransportKind::LOCAL, TransportKind::SHM, TransportKind::TCP];
    let policy = Policy::default();
    let decide = |locality, own: Assessment| {
        let local = Installed::new(TransportKind::LOCAL, &caps[0], own, true);
        let installed = [usable(TransportKind::TCP, &caps[2]), usable(TransportKind::SHM, &caps[1]), local];
        plan(&request(&policy, &Location::Any), locality, &installed, &kinds).unwrap()
    };
    let same = decide(Locality::SameProcess, Assessment::Usable("in the group".into()));
    assert_eq!(same.order().collect::<Vec<_>>(), kinds.iter().collect::<Vec<_>>());
    for locality in [Locality::SameHost, Locality::Network] {
        let other = decide(locality, Assessment::Unusable("it is in no local group".into()));
        let rejected = other.candidates().iter().find(|one| one.kind == TransportKind::LOCAL).unwrap();
        assert_eq!(
            (rejected.verdict, rejected.reason.as_str()),
            (
                Verdict::Rejected,
                "the peer has not proven that it is an engine of this process: it is in no local group"
            )
        );
    }
}

/// SEL-03: what is not compiled in, or has no hardware, is in no result, whatever is forced and whatever the peer offers.
#[test]
fn no_result_names_an_absent_transport() {
    const HCA: TransportKind = TransportKind::RDMA;
    const NVLINK: TransportKind = TransportKind::NVLINK;
    const TCP: TransportKind = TransportKind::TCP;
    /// What of NVLink there is: none, GPUs of one host, GPUs of one fabric over hosts.
    #[derive(Clone, Copy, Debug)]
    enum Link {
        None,
        Node,
        Fabric,
    }
    use Link::{Fabric, Node, None as NoLink};
    let (host, far) = (Locality::SameHost, Locality::Network);
    // An HCA is there, NVLink, where the peer is, what is forced; the transports to try in order, or the error.
    type Row = (bool, Link, Locality, Option<Vec<TransportKind>>, Result<Vec<TransportKind>, &'static str>);
    let table: Vec<Row> = vec![
        (true, Fabric, far, None, Ok(vec![NVLINK, HCA, TCP])),
        (true, Node, host, None, Ok(vec![NVLINK, HCA, TCP])),
        (true, Node, far, None, Ok(vec![HCA, TCP])),
        (true, NoLink, host, None, Ok(vec![HCA, TCP])),
        (false, Fabric, far, None, Ok(vec![NVLINK, TCP])),
        (false, Node, host, None, Ok(vec![NVLINK, TCP])),
        (false, NoLink, far, None, Ok(vec![TCP])),
        // What is forced needs nothing else to be there.
        (false, Node, host, Some(vec![NVLINK]), Ok(vec![NVLINK])),
        (false, Fabric, far, Some(vec![NVLINK]), Ok(vec![NVLINK])),
        (true, NoLink, far, Some(vec![HCA]), Ok(vec![HCA])),
        (true, Fabric, far, Some(vec![TCP, NVLINK]), Ok(vec![TCP, NVLINK])),
        // It is not replaced by what was not asked for.
        (true, Node, far, Some(vec![NVLINK]), Err("the peer has not proven that it runs on this host")),
        (
            true,
            NoLink,
            host,
            Some(vec![NVLINK]),
            Err("transport nvlink is not installed; installed: tcp, rdma"),
        ),
        (false, Node, host, Some(vec![HCA]), Err("transport rdma is not installed; installed: tcp, nvlink")),
        (false, NoLink, far, Some(vec![HCA, TCP]), Err("transport rdma is not installed; installed: tcp")),
    ];
    let offered = crate::DEFAULT_ORDER;
    let (of_host, of_network) = (capabilities(Reach::Host), capabilities(Reach::Network));
    for (hca, link, locality, forced, expected) in table {
        let row = format!("HCA {hca}, NVLink {link:?}, {locality:?}, forced {forced:?}");
        let mut installed = vec![usable(TCP, &of_network)];
        installed.extend(hca.then(|| usable(HCA, &of_network)));
        match link {
            NoLink => {}
            Node => installed.push(usable(NVLINK, &of_host)),
            Fabric => installed.push(usable(NVLINK, &of_network)),
        }
        let policy = Policy { only: forced };
        match (plan(&request(&policy, &Location::Any), locality, &installed, &offered), expected) {
            (Ok(plan), Ok(expected)) => {
                assert_eq!(plan.order().cloned().collect::<Vec<_>>(), expected, "{row}");
                let mut there = vec![TCP];
                there.extend(hca.then_some(HCA));
                there.extend((!matches!(link, NoLink)).then_some(NVLINK));
                let mut named = plan.candidates().iter().map(|candidate| &candidate.kind);
                assert!(named.all(|kind| there.contains(kind)), "{row}: {plan:?}");
            }
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{row}: {error}"),
            (found, _) => panic!("{row}: {found:?}"),
        }
    }
}
