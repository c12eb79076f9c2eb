//! The transport contract over the rails. Where it is asked for, the second one is the link that cases stall and cut: their
//! times are close to those at which emulated queue pairs give up.

use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use te_segment::{SegmentDescriptor, TransportKind};
use te_testkit::{Link, LinkControl, Profile, Rig, Side, Verdict, Violation, over_rail, transport_cases};
use te_transport::{Context, Install, InstallError, Transport};

use crate::within::Rails;

/// One side before it runs.
struct Backend(Rails, Side);

impl Install for Backend {
    fn kind(&self) -> TransportKind {
        TransportKind::RDMA
    }

    fn install(self: Box<Self>, context: &Context) -> Result<Arc<dyn Transport>, InstallError> {
        Ok(self.0.start(self.1, context)?)
    }
}

/// The second rail. What it loses is lost: nothing is held back, unlike on a link that only stalls.
struct SecondRail;

impl SecondRail {
    fn run(program: &str, words: &[&str]) {
        // Without a queueing discipline there is none to be removed.
        let _ = Command::new(program).args(words).stderr(Stdio::null()).status().unwrap();
    }
}

impl LinkControl for SecondRail {
    fn stall(&self) {
        Self::run("tc", &["qdisc", "add", "dev", "eth1", "root", "netem", "loss", "100%"]);
    }

    fn resume(&self) {
        Self::run("tc", &["qdisc", "del", "dev", "eth1", "root"]);
    }

    fn cut(&self) {
        Self::run("ip", &["link", "set", "eth1", "down"]);
        Self::run("ip", &["link", "set", "eth1", "up"]);
    }
}

/// The rails, and the far side as it described itself last.
struct Linked {
    rails: Rails,
    stalls: bool,
    far: Mutex<Option<SegmentDescriptor>>,
}

impl Linked {
    fn far_nic(&self, rail: usize) -> Option<&str> {
        self.rails.rails.get(rail).map(|(_, far)| far.as_str())
    }
}

impl Rig for Linked {
    fn backend(&self, side: Side) -> Box<dyn Install> {
        Box::new(Backend(self.rails.clone(), side))
    }

    fn profile(&self) -> Profile {
        let mut profile = Profile::default();
        // Each piece of a request is refused by itself.
        profile.whole_refusals = false;
        // Everything is emulated.
        profile.grace = Duration::from_secs(10);
        profile
    }

    fn present(&self, descriptor: SegmentDescriptor) -> Result<SegmentDescriptor, Violation> {
        let presented = match (self.far_nic(0), self.far_nic(1).filter(|_| self.stalls)) {
            (Some(first), Some(_)) => over_rail(&descriptor, first)?,
            _ => descriptor.clone(),
        };
        *self.far.lock().unwrap() = Some(descriptor);
        Ok(presented)
    }

    fn link(&self, _far: &SegmentDescriptor) -> Result<Option<Link>, Violation> {
        let Some(second) = self.far_nic(1).filter(|_| self.stalls) else { return Ok(None) };
        let far = self.far.lock().unwrap().clone().unwrap();
        Ok(Some(Link { descriptor: Arc::new(over_rail(&far, second)?), control: Arc::new(SecondRail) }))
    }
}

/// Runs the cases of these names, or all. Whether all is well.
pub(crate) fn run(rails: Rails, stalls: bool, names: &[String]) -> bool {
    let rig: Arc<dyn Rig> = Arc::new(Linked { rails, stalls, far: Mutex::new(None) });
    let mut well = true;
    let wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    for case in transport_cases().iter().filter(|case| wanted(case.name())) {
        let began = Instant::now();
        let verdict = case.run(&rig);
        let took = began.elapsed().as_millis();
        match verdict {
            Verdict::Failed(violation) => {
                well = false;
                println!("not ok contract {}: {violation}", case.name());
            }
            // Memory of devices cannot be stalled or cut by the suite.
            Verdict::NotApplicable(why) => println!("skipped contract {}: {why}", case.name()),
            _ => println!("ok contract {}: {took} ms", case.name()),
        }
    }
    well
}
