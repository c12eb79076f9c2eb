//! Ways in which a transport can break the contract.

macro_rules! flaws {
    ($($(#[$doc:meta])* $flaw:ident,)*) => {
        /// One way to break the transport contract.
        ///
        /// [`CopyTransport::with_flaw`](crate::CopyTransport::with_flaw) builds a transport that has it. Each one is
        /// noticed by at least one case of the conformance suite: that is how we know that the case can fail.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Flaw {
            $($(#[$doc])* $flaw,)*
        }

        impl Flaw {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$flaw,)*];
        }
    };
}

flaws! {
    /// Reports `done` and copies a moment later.
    DoneBeforeApplied,
    /// Drops the token of the last slice of a submission.
    DropsToken,
    /// Forgets the last slice of a submission with its token.
    LosesSlice,
    /// Reports one byte less than it copied.
    MiscountsBytes,
    /// Leaves the last byte of slices above 64 KiB out.
    Truncates,
    /// Copies slices above 64 KiB shifted by one chunk.
    ShuffleChunks,
    /// Copies one byte too many where the region has one.
    Overruns,
    /// Copies in the wrong direction.
    SwapsDirection,
    /// Serves ranges whatever their access.
    IgnoresAccess,
    /// Merges adjacent regions.
    MergesRegions,
    /// Clips a range that reaches out of its region instead of refusing it.
    ClipsRange,
    /// Serves anything: what is not registered is answered as if it had been copied.
    ServesAnything,
    /// Accepts slices of any size and operations that it does not offer.
    IgnoresLimits,
    /// Serves regions that are reserved only.
    ServesReserved,
    /// Never gives up the hold on a region that it served.
    LeaksRemoteHold,
    /// Never gives up the hold on the local memory.
    LeaksLocalHold,
    /// Answers refusals as lost connections.
    MisnamesRefusal,
    /// Breaks for good after a refusal.
    DiesOfRefusal,
    /// Does not look at the scope while it waits.
    IgnoresCancel,
    /// Does not look at the scope of what is queued.
    IgnoresQueuedCancel,
    /// Does not look at the deadline.
    IgnoresDeadline,
    /// Resolves what is cancelled or late at once, and goes on copying.
    CopiesAfterFailure,
    /// Says that nothing was applied whatever happened.
    DeniesEffect,
    /// Names no path in failures.
    OmitsPath,
    /// Executes background submissions on the calling thread.
    BlocksInSubmit,
    /// Executes all paths on one thread.
    SharesWorker,
    /// Does not notice that the peer is gone.
    IgnoresPeerDeath,
    /// Does not come back after a cut.
    NeverRecovers,
    /// Returns from shutdown while slices are in flight.
    AbandonsAtShutdown,
    /// Executes what is submitted after shutdown.
    AcceptsAfterShutdown,
    /// Fails the second shutdown.
    ShutsDownOnce,
    /// Fails the second withdrawal of a region.
    UnregistersOnce,
    /// Serves requests for an earlier generation of a buffer.
    IgnoresGeneration,
    /// Serves requests for an earlier life of the engine.
    IgnoresIncarnation,
    /// Finds every peer usable.
    AssessesEverything,
    /// Counts slices as in flight for ever.
    MiscountsInFlight,
}
