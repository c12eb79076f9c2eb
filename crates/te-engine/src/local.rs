//! The segment this engine offers: it exists from construction, so there is never "no local descriptor".

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::{Mutex, RwLock};
use te_memory::{Region, RegionState, RegionTable};
use te_metadata::format_timestamp;
use te_segment::{
    BufferDescriptor, CompatProtocol, DescriptorError, DescriptorVersion, EncodeOptions, Endpoint,
    Generation, Identity, Incarnation, SegmentDescriptor, SegmentName, TransportKind, Via,
};
use te_transport::Transport;

/// How each region can be reached, by transport.
pub(crate) type Vias = BTreeMap<TransportKind, Via>;

/// The local segment: regions, how they can be reached, and the descriptor made of both on demand.
pub struct LocalSegment {
    name: SegmentName,
    incarnation: Incarnation,
    control: Endpoint,
    regions: RegionTable,
    transports: RwLock<Vec<Arc<dyn Transport>>>,
    vias: Mutex<BTreeMap<Generation, Vias>>,
    version: AtomicU64,
    built: Mutex<Option<Built>>,
    encoded: Mutex<Vec<Encoded>>,
}

/// A descriptor as it was sent to peers of one kind.
struct Encoded {
    version: u64,
    compat: CompatProtocol,
    extension: bool,
    text: Arc<str>,
}

struct Built {
    version: u64,
    descriptor: Arc<SegmentDescriptor>,
}

impl LocalSegment {
    pub(crate) fn new(
        name: SegmentName,
        incarnation: Incarnation,
        control: Endpoint,
        regions: RegionTable,
    ) -> Self {
        Self {
            name,
            incarnation,
            control,
            regions,
            transports: RwLock::new(Vec::new()),
            vias: Mutex::new(BTreeMap::new()),
            version: AtomicU64::new(1),
            built: Mutex::new(None),
            encoded: Mutex::new(Vec::new()),
        }
    }

    /// The segment's name.
    #[must_use]
    pub fn name(&self) -> &SegmentName {
        &self.name
    }

    /// This life of the engine.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Where the control listener is reached.
    #[must_use]
    pub fn control(&self) -> &Endpoint {
        &self.control
    }

    pub(crate) fn regions(&self) -> &RegionTable {
        &self.regions
    }

    pub(crate) fn install(&self, transport: Arc<dyn Transport>) {
        self.transports.write().push(transport);
        self.bump();
    }

    pub(crate) fn set_vias(&self, generation: Generation, vias: Vias) {
        self.vias.lock().insert(generation, vias);
    }

    pub(crate) fn forget_vias(&self, generation: Generation) {
        self.vias.lock().remove(&generation);
    }

    /// Version of the descriptor that would be served now.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// States that the offer changed; the descriptor is rebuilt when next asked for.
    pub(crate) fn bump(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// The current descriptor. Built at most once per version, so a thousand registrations cost one build.
    ///
    /// # Errors
    ///
    /// When the parts do not fit together, which is a defect of a transport.
    pub fn descriptor(&self) -> Result<Arc<SegmentDescriptor>, DescriptorError> {
        let mut built = self.built.lock();
        // Read before building: what changes meanwhile has a newer version and is built next time.
        let version = self.version();
        if let Some(built) = built.as_ref().filter(|built| built.version == version) {
            return Ok(built.descriptor.clone());
        }
        let descriptor = Arc::new(self.build(version)?);
        *built = Some(Built { version, descriptor: descriptor.clone() });
        Ok(descriptor)
    }

    fn build(&self, version: u64) -> Result<SegmentDescriptor, DescriptorError> {
        let mut builder = SegmentDescriptor::builder(self.name.clone())
            .identity(Identity::Te { incarnation: self.incarnation, control: Some(self.control.clone()) })
            .version(DescriptorVersion::new(version));
        let transports = self.transports.read();
        for transport in transports.iter() {
            builder = transport.advertise(builder);
        }
        let vias = self.vias.lock();
        for region in self.regions.regions().into_iter().filter(is_offered) {
            let mut via = vias.get(&region.generation()).cloned().unwrap_or_default();
            for transport in transports.iter() {
                if let (Some(known), Some(now)) = (via.get_mut(&transport.kind()), transport.via(&region)) {
                    *known = now;
                }
            }
            builder = builder.buffer(BufferDescriptor::new(
                region.range(),
                region.location().clone(),
                region.access(),
                Some(region.generation()),
                via,
            )?);
        }
        builder.build()
    }

    /// The descriptor as JSON for a peer that speaks `compat`, without a trailing newline. Encoded once per version and
    /// kind of peer: many strangers that ask cost one encoding.
    ///
    /// # Errors
    ///
    /// As [`descriptor`](Self::descriptor).
    pub fn encode(&self, compat: CompatProtocol, extension: bool) -> Result<Arc<str>, DescriptorError> {
        let descriptor = self.descriptor()?;
        let version = descriptor.version().map_or(0, DescriptorVersion::value);
        let mut encoded = self.encoded.lock();
        encoded.retain(|entry| entry.version == version);
        if let Some(known) =
            encoded.iter().find(|entry| entry.compat == compat && entry.extension == extension)
        {
            return Ok(known.text.clone());
        }
        let timestamp = format_timestamp(SystemTime::now());
        let text: Arc<str> = descriptor.encode(&EncodeOptions { compat, extension, timestamp })?.into();
        encoded.push(Encoded { version, compat, extension, text: text.clone() });
        Ok(text)
    }
}

fn is_offered(region: &Region) -> bool {
    region.access().is_remote() && region.state() == RegionState::Active
}
