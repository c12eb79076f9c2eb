//! A way to one peer, as the engine sees it.

use std::sync::Arc;

use te_transport::{Fencing, Path, PathHealth, PathLabel, Submission, SubmitMode};

use super::peer::Peer;

/// See the module.
pub(crate) struct RdmaPath(pub(crate) Arc<Peer>);

impl Path for RdmaPath {
    fn label(&self) -> &Arc<PathLabel> {
        self.0.label()
    }

    /// Devices execute the work, whoever submits it. A caller that would only wait takes its completions itself.
    fn submit(&self, submission: Submission, mode: SubmitMode) {
        self.0.submit(submission, mode);
    }

    /// The peer cuts rails when it is asked to, before a WRITE goes on over another one or is said to be over. What could not
    /// be cut may still be applied, and nobody can keep it from that.
    fn fencing(&self) -> Fencing {
        Fencing::LocalOnly
    }

    fn health(&self) -> PathHealth {
        self.0.path_health()
    }
}
