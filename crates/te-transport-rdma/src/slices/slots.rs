//! Numbered places for what is under way, so that a completion names its owner without a pointer.

/// A place and how often it was used: what travels through the device and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkId(u64);

impl WorkId {
    fn new(slot: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(slot))
    }

    /// The number for the device: generation in the high half, place in the low half.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The identifier that a device has given back. Any number is one; those that were never given out name nothing.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    fn slot(self) -> usize {
        usize::try_from(self.0 & u64::from(u32::MAX)).unwrap_or(usize::MAX)
    }

    fn generation(self) -> u32 {
        // The high half fits.
        u32::try_from(self.0 >> 32).unwrap_or(u32::MAX)
    }
}

#[derive(Clone, Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Values by [`WorkId`]. An identifier whose value was taken names nothing, also after its place is used again.
#[derive(Clone, Debug)]
pub struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    first: u32,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self::starting_at(1)
    }
}

impl<T> Slots<T> {
    /// No values; places are first used for the `first` time. Where identifiers of what is gone may still come back, as from
    /// a queue pair whose number is given out again, a number that was not used lately keeps them apart.
    #[must_use]
    pub fn starting_at(first: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), first }
    }

    /// Keeps a value.
    ///
    /// # Errors
    ///
    /// Gives it back if there are 2^32 values already.
    pub fn insert(&mut self, value: T) -> Result<WorkId, T> {
        if let Some(number) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(number as usize)
        {
            slot.generation = slot.generation.wrapping_add(1);
            slot.value = Some(value);
            return Ok(WorkId::new(number, slot.generation));
        }
        let Ok(number) = u32::try_from(self.slots.len()) else { return Err(value) };
        self.slots.push(Slot { generation: self.first, value: Some(value) });
        Ok(WorkId::new(number, self.first))
    }

    /// Whether the identifier names a value.
    #[must_use]
    pub fn contains(&self, id: WorkId) -> bool {
        self.peek(id).is_some()
    }

    /// The value, if the identifier names one.
    #[must_use]
    pub fn peek(&self, id: WorkId) -> Option<&T> {
        self.slots.get(id.slot()).filter(|slot| slot.generation == id.generation())?.value.as_ref()
    }

    /// Every value.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// Takes a value out.
    pub fn take(&mut self, id: WorkId) -> Option<T> {
        let slot = self.slots.get_mut(id.slot()).filter(|slot| slot.generation == id.generation())?;
        let value = slot.value.take()?;
        self.free.push(u32::try_from(id.slot()).ok()?);
        Some(value)
    }

    /// How many values there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
