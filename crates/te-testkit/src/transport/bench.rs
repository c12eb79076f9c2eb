//! Two engines' worth of set-up, without engines.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use te_memory::{Hold, Region, RegionTable};
use te_segment::{
    Access, AddressRange, BufferDescriptor, DescriptorVersion, Endpoint, Generation, Host, Identity,
    Incarnation, SegmentDescriptor, SegmentName, Via,
};
use te_transport::{
    AdmitAll, AttemptId, CancelScope, Context, Op, Path, PortRange, Registration, Slice, Submission,
    SubmitMode, Transport, Unpublished,
};

use super::claims;
use super::rig::{Profile, Rig, Side, redescribe_buffers};
use crate::area::{Area, AreaDraft};
use crate::ledger::Ledger;
use crate::link::Link;
use crate::report::Violation;
use crate::switch::Switchboard;

/// Deadline of transfers that are expected to work.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// One side: what an engine would own.
pub(crate) struct Node {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) regions: RegionTable,
    name: SegmentName,
    identity: Identity,
    version: AtomicU64,
    /// Numbers of requests, from all paths of this side.
    requests: Arc<AtomicU64>,
    shareable: bool,
    registered: Mutex<Vec<(Region, Via)>>,
}

impl Node {
    fn install(rig: &dyn Rig, side: Side, switch: &Switchboard) -> Result<Self, Violation> {
        let (name, number) = match side {
            Side::Near => ("near", 1),
            Side::Far => ("far", 2),
        };
        // Random, because transports may keep state between the cases of one process by it.
        let incarnation = Incarnation::from_bits(rand::random());
        let control = Endpoint::new(Host::V4(Ipv4Addr::LOCALHOST), number)?;
        let regions = RegionTable::new(1024);
        let loopback = Host::V4(Ipv4Addr::LOCALHOST);
        let bootstrap = switch.desk(control.clone());
        let name = SegmentName::new(name)?;
        let context = Context {
            name: name.clone(),
            incarnation,
            regions: regions.clone(),
            bind: loopback.clone(),
            advertise: loopback,
            ports: PortRange::default(),
            bootstrap,
            admission: Arc::new(AdmitAll),
            publisher: Arc::new(Unpublished),
        };
        let transport = rig.backend(side).install(&rig.context(side, context))?;
        let identity = Identity::Te { incarnation, control: Some(control) };
        let (version, registered, requests) = (AtomicU64::new(0), Mutex::default(), Arc::default());
        let shareable = rig.shareable();
        Ok(Self { transport, regions, name, identity, version, requests, shareable, registered })
    }

    /// Registered and served memory of `len` zeroed bytes.
    pub(crate) fn area(&self, len: usize, access: Access) -> Result<Area, Violation> {
        let make = if self.shareable { AreaDraft::shareable } else { AreaDraft::new };
        self.register(make(&self.regions, len, access)?)
    }

    /// Registers a draft with the transport and serves it.
    pub(crate) fn register(&self, draft: AreaDraft) -> Result<Area, Violation> {
        match self.transport.register(draft.region())? {
            Registration::Registered(via) => {
                let area = draft.commit();
                self.registered.lock().push((area.region().clone(), via));
                Ok(area)
            }
            Registration::NotMine(reason) => {
                Err(Violation::new(format!("the transport does not take host memory: {reason}")))
            }
            _ => Err(Violation::new("the transport answers a registration in an unknown way")),
        }
    }

    /// The same engine in another life.
    pub(crate) fn other_life(&self) -> Identity {
        let control = match &self.identity {
            Identity::Te { control, .. } => control.clone(),
            Identity::Reference => None,
        };
        Identity::Te { incarnation: Incarnation::from_bits(rand::random()), control }
    }

    /// Leaves the region out of later descriptors.
    pub(crate) fn forget(&self, region: &Region) {
        self.registered.lock().retain(|(other, _)| other != region);
    }

    /// What the engine would publish now.
    pub(crate) fn descriptor(&self) -> Result<SegmentDescriptor, Violation> {
        let registered = self.registered.lock();
        let served = registered.iter().filter(|(region, _)| region.access().is_remote());
        let buffers = served.map(|(region, via)| {
            let (range, access, generation) = (region.range(), region.access(), region.generation());
            self.buffer(range, access, generation, via)
        });
        self.describe(buffers.collect::<Result<_, _>>()?)
    }

    /// A descriptor that claims all addresses for everybody, so that only the target can know better. Where regions are
    /// reached in different ways, each claims the addresses around it: what is allowed must work.
    pub(crate) fn boast(&self) -> Result<SegmentDescriptor, Violation> {
        let mut registered = self.registered.lock().clone();
        let (_, first) = registered.first().ok_or_else(|| Violation::new("nothing is registered"))?;
        if registered.iter().all(|(_, via)| via == first) {
            registered.truncate(1);
        }
        registered.sort_by_key(|(region, _)| region.range());
        let ranges: Vec<_> = registered.iter().map(|(region, _)| region.range()).collect();
        let claims = claims::around(&ranges)?;
        let claimed = claims.into_iter().zip(&registered);
        let buffers = claimed
            .map(|(claim, (region, via))| self.buffer(claim, Access::REMOTE, region.generation(), via));
        self.describe(buffers.collect::<Result<_, _>>()?)
    }

    fn buffer(
        &self,
        range: AddressRange,
        access: Access,
        generation: Generation,
        via: &Via,
    ) -> Result<BufferDescriptor, Violation> {
        let via = BTreeMap::from([(self.transport.kind(), via.clone())]);
        Ok(BufferDescriptor::new(range, te_segment::Location::cpu(0), access, Some(generation), via)?)
    }

    fn describe(&self, buffers: Vec<BufferDescriptor>) -> Result<SegmentDescriptor, Violation> {
        let version = self.version.fetch_add(1, Ordering::Relaxed);
        let builder = SegmentDescriptor::builder(self.name.clone())
            .identity(self.identity.clone())
            .version(DescriptorVersion::new(version));
        Ok(self.transport.advertise(builder).buffers(buffers).build()?)
    }
}

/// Both sides of a case.
pub(crate) struct Bench {
    pub(crate) near: Node,
    pub(crate) far: Node,
    pub(crate) profile: Profile,
    rig: Arc<dyn Rig>,
}

/// One slice to submit.
pub(crate) struct Piece {
    pub(crate) op: Op,
    pub(crate) local: Hold,
    pub(crate) remote: AddressRange,
    pub(crate) generation: Option<Generation>,
}

/// A path, and whether requests on it name generations.
#[derive(Clone)]
pub(crate) struct Way {
    pub(crate) path: Arc<dyn Path>,
    names_generations: bool,
    requests: Arc<AtomicU64>,
}

impl Bench {
    pub(crate) fn new(rig: &Arc<dyn Rig>) -> Result<Self, Violation> {
        let switch = Switchboard::default();
        let near =
            Node::install(&**rig, Side::Near, &switch).map_err(|violation| violation.at("near side"))?;
        let far = Node::install(&**rig, Side::Far, &switch).map_err(|violation| violation.at("far side"))?;
        Ok(Self { near, far, profile: rig.profile(), rig: rig.clone() })
    }

    /// A path to the far side as it describes itself now.
    pub(crate) fn way(&self) -> Result<Way, Violation> {
        self.open(self.rig.present(self.far.descriptor()?)?)
    }

    /// A path whose descriptor hides no mistake from the target.
    pub(crate) fn blind_way(&self) -> Result<Way, Violation> {
        self.open(self.rig.present(self.far.boast()?)?)
    }

    /// A path over a controlled link, if the rig has one.
    pub(crate) fn linked_way(&self) -> Result<Option<(Way, Link)>, Violation> {
        let far = self.rig.present(self.far.descriptor()?)?;
        let Some(link) = self.rig.link(&far)? else { return Ok(None) };
        Ok(Some((self.open((*link.descriptor).clone())?, link)))
    }

    /// A path to what a changed descriptor says.
    pub(crate) fn changed_way(
        &self,
        change: impl FnOnce(te_segment::DescriptorBuilder) -> te_segment::DescriptorBuilder,
    ) -> Result<Result<Way, String>, Violation> {
        let far = self.far.descriptor()?;
        let changed = redescribe_buffers(&far, far.buffers().to_vec(), change)?;
        Ok(self.try_open(self.rig.present(changed)?))
    }

    pub(crate) fn open(&self, descriptor: SegmentDescriptor) -> Result<Way, Violation> {
        self.try_open(descriptor)
            .map_err(|reason| Violation::new(format!("no path to the far side: {reason}")))
    }

    fn try_open(&self, descriptor: SegmentDescriptor) -> Result<Way, String> {
        let names_generations = descriptor.incarnation().is_some();
        let path = self.near.transport.path(&Arc::new(descriptor))?;
        Ok(Way { path, names_generations, requests: self.near.requests.clone() })
    }

    /// Until when something must have been noticed that happens now.
    pub(crate) fn soon(&self) -> Instant {
        Instant::now() + self.profile.grace
    }

    /// Areas of `len` bytes on both sides, painted differently, open to everything.
    pub(crate) fn areas(&self, len: usize) -> Result<(Area, Area), Violation> {
        let (near, far) = (self.near.area(len, Access::LOCAL)?, self.far.area(len, Access::REMOTE)?);
        near.paint(0x11)?;
        far.paint(0xe7)?;
        Ok((near, far))
    }
}

impl Way {
    /// A slice between two areas.
    pub(crate) fn piece(
        &self,
        op: Op,
        near: (&Area, u64),
        far: (&Area, u64),
        len: u64,
    ) -> Result<Piece, Violation> {
        self.piece_to(op, near, far.0.part(far.1, len)?, far.0.region().generation())
    }

    /// A slice to any addresses, with the generation that they may have.
    pub(crate) fn piece_to(
        &self,
        op: Op,
        (near, at): (&Area, u64),
        remote: AddressRange,
        generation: Generation,
    ) -> Result<Piece, Violation> {
        let generation = Some(generation).filter(|_| self.names_generations);
        Ok(Piece { op, local: near.hold(at, remote.len())?, remote, generation })
    }

    /// Submits all pieces as one batch.
    pub(crate) fn submit(&self, pieces: Vec<Piece>, ledger: &Arc<Ledger>, order: &Order) {
        let slice = |(index, piece)| {
            let Piece { op, local, remote, generation } = piece;
            let attempt = AttemptId { request: self.requests.fetch_add(1, Ordering::Relaxed), attempt: 1 };
            Slice { op, local, remote, generation, attempt, token: ledger.token(index) }
        };
        let slices = (0_u32..).zip(pieces).map(slice).collect();
        let submission = Submission { slices, deadline: order.deadline, scope: order.scope.clone() };
        self.path.submit(submission, order.mode);
    }
}

/// How a batch is submitted.
#[derive(Clone)]
pub(crate) struct Order {
    pub(crate) deadline: Instant,
    pub(crate) scope: CancelScope,
    pub(crate) mode: SubmitMode,
}

impl Order {
    pub(crate) fn within(limit: Duration) -> Self {
        Self { deadline: Instant::now() + limit, scope: CancelScope::new(), mode: SubmitMode::Background }
    }

    pub(crate) fn patient() -> Self {
        Self::within(PATIENCE)
    }

    pub(crate) fn in_mode(mut self, mode: SubmitMode) -> Self {
        self.mode = mode;
        self
    }
}
