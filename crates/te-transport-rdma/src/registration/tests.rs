use proptest::prelude::*;

use super::*;

fn nic(number: usize) -> NicName {
    format!("mlx5_{number}").parse().unwrap()
}

fn buffer() -> AddressRange {
    AddressRange::new(0x10_0000, 1_000).unwrap()
}

/// Devices that answer as told, and keep what exists.
#[derive(Default)]
struct Devices {
    /// Answers by address, by import and by export; a missing one is yes.
    register: BTreeMap<usize, Errno>,
    import: BTreeMap<usize, Errno>,
    export: Option<Errno>,
    deregister: BTreeMap<usize, Errno>,
    exists: Vec<Place>,
    undone: Vec<Place>,
    exports: u32,
    closes: u32,
}

impl Devices {
    fn number(place: &Place) -> usize {
        (0..16).find(|at| nic(*at) == place.nic).unwrap()
    }

    fn carry_out(&mut self, task: &Task) -> Result<Went, Errno> {
        let answer = |errno: Option<&Errno>| errno.map_or(Ok(()), |errno| Err(*errno));
        match task {
            Task::Register(place, range) | Task::Import(place, range, _) => {
                let number = Self::number(place);
                match task {
                    Task::Import(_, _, offset) => {
                        assert!(self.exports == 1 && self.closes == 0, "imported from what is not open");
                        assert_eq!(range.start(), buffer().start() + offset);
                        answer(self.import.get(&number))?;
                    }
                    _ => answer(self.register.get(&number))?,
                }
                assert!(!self.exists.contains(place), "registered twice");
                self.exists.push(place.clone());
                let key = |side: usize| MemoryKey::new((number * 100 + place.chunk * 10 + side) as u64);
                Ok(Went::Registered(Keys { local: key(1), remote: key(2) }))
            }
            Task::Export => {
                answer(self.export.as_ref())?;
                self.exports += 1;
                Ok(Went::Done)
            }
            Task::CloseExport => {
                self.closes += 1;
                Ok(Went::Done)
            }
            Task::Deregister(place) => {
                answer(self.deregister.get(&Self::number(place)))?;
                let last = self.exists.iter().position(|exists| exists == place).expect("it exists");
                self.exists.remove(last);
                self.undone.push(place.clone());
                Ok(Went::Done)
            }
        }
    }

    /// Runs the tasks, each outcome at a time that `order` chooses. The device acts when the outcome comes.
    fn run(&mut self, registration: &mut Registration, mut order: impl FnMut(usize) -> usize) -> Outcome {
        let mut running = Vec::new();
        for _ in 0..10_000 {
            running.extend(registration.tasks());
            if running.is_empty() {
                return registration.outcome().expect("nothing is under way");
            }
            assert_eq!(registration.outcome(), None, "it ends after the last task");
            let at = order(running.len()) % running.len();
            let task = running.swap_remove(at);
            let outcome = self.carry_out(&task);
            registration.done(task, outcome);
        }
        panic!("it does not end");
    }
}

fn register(devices: &mut Devices, nics: usize, memory: Memory) -> Outcome {
    let mut registration =
        Registration::new(buffer(), (0..nics).map(nic).collect(), 400.try_into().unwrap(), memory);
    devices.run(&mut registration, |_| 0)
}

#[test]
fn a_buffer_is_split_and_has_keys_at_every_nic() {
    let mut devices = Devices::default();
    let Outcome::Registered(chunks) = register(&mut devices, 3, Memory::Host) else { panic!() };
    assert_eq!(chunks.iter().map(|chunk| chunk.range.len()).collect::<Vec<_>>(), [400, 400, 200]);
    assert_eq!(chunks[1].keys[&nic(2)].remote, MemoryKey::new(212));
    assert_eq!((devices.exists.len(), devices.exports), (9, 0));
}

/// MR-15: eight NICs, one export, closed after the last import.
#[test]
fn eight_nics_share_one_export() {
    let all = (0..8).map(|at| (at, Errno::EFAULT)).collect();
    let mut devices = Devices { register: all, ..Devices::default() };
    assert!(matches!(register(&mut devices, 8, Memory::Device), Outcome::Registered(_)));
    assert_eq!((devices.exports, devices.closes, devices.exists.len()), (1, 1, 24));
    let mut devices = Devices::default();
    assert!(matches!(register(&mut devices, 8, Memory::DeviceByExport), Outcome::Registered(_)));
    assert_eq!((devices.exports, devices.closes), (1, 1));
}

/// MR-01: by address, then as a dma-buf, then staged, and why.
#[test]
fn memory_that_no_nic_reaches_is_staged_with_reasons() {
    let mut devices = Devices {
        register: BTreeMap::from([(1, Errno::EFAULT)]),
        export: Some(Errno::EOPNOTSUPP),
        ..Devices::default()
    };
    let reasons = [
        "it cannot be exported as a dma-buf: error 95: the device or its driver cannot do it",
        "mlx5_1 cannot register it by address: error 14: the memory is not mapped, or the NIC cannot reach it by its \
         address",
    ];
    assert_eq!(register(&mut devices, 2, Memory::Device), Outcome::Stage(reasons.map(str::to_owned).into()));
    assert!(devices.exists.is_empty());
    let import = BTreeMap::from([(0, Errno::EOPNOTSUPP)]);
    let mut devices = Devices { register: [(0, Errno::EFAULT)].into(), import, ..Devices::default() };
    let Outcome::Stage(reasons) = register(&mut devices, 2, Memory::Device) else { panic!() };
    assert!(reasons[0].starts_with("mlx5_0 cannot import its dma-buf"), "{reasons:?}");
    assert_eq!((devices.exports, devices.closes, devices.exists.len()), (1, 1, 0));
}

#[test]
fn host_memory_that_cannot_be_registered_is_a_failure_that_says_why() {
    let says = |errno| {
        let mut devices = Devices { register: [(1, errno)].into(), ..Devices::default() };
        match register(&mut devices, 2, Memory::Host) {
            Outcome::Failed { cause, retryable, .. } => {
                assert!(devices.exists.is_empty() && devices.exports == 0);
                (cause, retryable)
            }
            other => panic!("{other:?}"),
        }
    };
    assert!(says(Errno::EFAULT).0.contains("is not mapped"));
    // MR-14
    let (cause, retryable) = says(Errno::EAGAIN);
    assert!(cause.contains("no memory keys left") && retryable);
    assert_eq!(
        says(Errno::ENOMEM),
        (
            "registering at mlx5_1 failed: error 12: not enough memory can be locked: raise the limit (ulimit -l)"
                .into(),
            true
        )
    );
    assert!(!says(Errno::EINVAL).1 && !says(Errno::EPERM).1 && !says(Errno(16)).1);
    let (cause, retryable) = says(Errno::EIO);
    assert!(cause.contains("the device does not work") && retryable);
    assert!(matches!(register(&mut Devices::default(), 0, Memory::Host), Outcome::Stage(_)));
}

#[test]
fn what_could_not_be_undone_is_kept_and_tried_again() {
    let mut devices = Devices {
        register: [(2, Errno::EINVAL)].into(),
        deregister: [(0, Errno(16))].into(),
        ..Devices::default()
    };
    let Outcome::Failed { left, .. } = register(&mut devices, 3, Memory::Host) else { panic!() };
    assert_eq!(left.failed().len(), devices.exists.len());
    assert!(!left.failed().is_empty());
    devices.deregister.clear();
    let mut again = left.again();
    while let Some(place) = again.next().cloned() {
        again.done(devices.carry_out(&Task::Deregister(place)).map(drop));
    }
    assert!(devices.exists.is_empty() && again.failed().is_empty());
}

fn errno() -> impl Strategy<Value = Errno> {
    prop_oneof![
        3 => Just(Errno::EFAULT),
        1 => Just(Errno::ENOMEM),
        1 => Just(Errno::EINVAL),
        1 => Just(Errno::EOPNOTSUPP)
    ]
}

fn answers() -> impl Strategy<Value = BTreeMap<usize, Errno>> {
    proptest::collection::btree_map(0_usize..4, errno(), 0..3)
}

proptest! {
    /// Whatever the devices answer in whatever order: all or nothing, one export at most, closed once, undone in reverse.
    #[test]
    fn it_is_all_or_nothing(
        register in answers(),
        import in answers(),
        export in proptest::option::of(errno()),
        memory in prop_oneof![Just(Memory::Host), Just(Memory::Device), Just(Memory::DeviceByExport)],
        choices in proptest::collection::vec(any::<usize>(), 64),
    ) {
        let mut devices = Devices { register, import, export, ..Devices::default() };
        let nics = (0..4).map(nic).collect();
        let mut registration = Registration::new(buffer(), nics, 400.try_into().unwrap(), memory);
        let mut choices = choices.into_iter().cycle();
        let outcome = devices.run(&mut registration, |_| choices.next().unwrap());
        prop_assert!(devices.exports <= 1);
        prop_assert_eq!(devices.exports, devices.closes);
        match &outcome {
            Outcome::Registered(chunks) => {
                prop_assert_eq!(devices.exists.len(), 12);
                prop_assert!(chunks.iter().all(|chunk| chunk.keys.len() == 4));
            }
            Outcome::Stage(reasons) => {
                prop_assert!(devices.exists.is_empty() && !reasons.is_empty());
                prop_assert!(memory != Memory::Host);
            }
            Outcome::Failed { left, .. } => {
                prop_assert!(devices.exists.is_empty() && left.failed().is_empty());
            }
        }
        let mut made = registration.unwind();
        if !matches!(outcome, Outcome::Registered(_)) {
            for undone in &devices.undone {
                prop_assert_eq!(made.next(), Some(undone));
                made.done(Ok(()));
            }
            prop_assert_eq!(made.next(), None);
        }
        prop_assert_eq!(registration.tasks(), vec![]);
    }
}
