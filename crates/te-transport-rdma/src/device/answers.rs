//! What peers ask, and what they are answered.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use te_segment::{Generation, Incarnation};
use te_transport::{BootstrapHandler, BoxFuture};
use tokio::sync::oneshot;

use super::link::LinkKey;
use super::nic::Nic;
use super::setup::Errand;
use crate::endpoint::{Exchange, ReadyAck, RemoteSet, Verdict};
use crate::route::Rail;
use crate::wire::{Handshake, Offer, Reading};

/// Where an answer goes. Dropped without one, the peer gets none.
type Reply = oneshot::Sender<Vec<u8>>;

/// A request of a peer.
pub(crate) enum Ask {
    /// To open an endpoint.
    Open(Offer, Reply),
    /// The ready-ack.
    Confirm(Offer, Reply),
    /// To cut endpoints.
    Cut(Offer, Reply),
}

impl Ask {
    fn parts(&self) -> &Offer {
        match self {
            Self::Open(offer, _) | Self::Confirm(offer, _) | Self::Cut(offer, _) => offer,
        }
    }

    fn take(self) -> (Offer, Reply) {
        match self {
            Self::Open(offer, reply) | Self::Confirm(offer, reply) | Self::Cut(offer, reply) => {
                (offer, reply)
            }
        }
    }

    /// The link it is about.
    pub(crate) fn key(&self) -> LinkKey {
        let offer = self.parts();
        LinkKey { there: offer.from.clone(), life: offer.terms.as_ref().map(|terms| terms.incarnation) }
    }

    /// The NIC here and the sender's.
    pub(crate) fn rail(&self) -> Rail {
        let offer = self.parts();
        Rail { local: offer.to.nic().clone(), remote: offer.from.nic().clone() }
    }

    /// Which of its sender's endpoints it is about.
    pub(crate) fn generation(&self) -> Option<Generation> {
        self.parts().terms.as_ref().map(|terms| terms.generation)
    }

    /// Whether it is for this life of the engine, as far as it says.
    pub(crate) fn is_for(&self, life: Incarnation) -> bool {
        self.parts().is_for(life)
    }

    pub(crate) fn refuse(self, reason: &str) {
        send(self.take().1, &Handshake::refuse(reason));
    }

    /// Another life was meant than this one.
    pub(crate) fn refuse_life(self, life: Incarnation) {
        send(self.take().1, &Handshake::other_life(life));
    }

    pub(crate) fn confirm(self) {
        send(self.take().1, &Handshake::confirmed());
    }
}

fn send(reply: Reply, handshake: &Handshake) {
    // Whoever asked may be gone.
    let _ = reply.send(handshake.encode());
}

/// The requests that lines have not answered yet.
#[derive(Default)]
pub(crate) struct Answers {
    next: u64,
    open: BTreeMap<Exchange, (Offer, Reply)>,
}

impl Answers {
    /// Keeps a request to open an endpoint until the line has answered it.
    pub(crate) fn open(&mut self, ask: Ask) -> (Exchange, RemoteSet, ReadyAck) {
        let offer = ask.parts();
        let set = RemoteSet::from(offer);
        let ack = if offer.ready_ack { ReadyAck::Expected } else { ReadyAck::Unknown };
        (self.keep(ask), set, ack)
    }

    /// Keeps a ready-ack until the line has answered it. With it, which endpoint here it confirms, where it says so.
    pub(crate) fn confirm(&mut self, ask: Ask) -> (Exchange, RemoteSet, Option<Generation>) {
        let offer = ask.parts();
        let set = RemoteSet::from(offer);
        let meant = offer.terms.as_ref().and_then(|terms| terms.peer_generation);
        (self.keep(ask), set, meant)
    }

    fn keep(&mut self, ask: Ask) -> Exchange {
        self.next += 1;
        self.open.insert(Exchange(self.next), ask.take());
        Exchange(self.next)
    }

    /// What a peer with these queue pairs has offered.
    pub(crate) fn offer(&self, set: &RemoteSet) -> Option<Offer> {
        let offers = self.open.values().map(|(offer, _)| offer);
        offers.into_iter().find(|offer| RemoteSet::from(*offer) == *set).cloned()
    }

    /// Answers one. `ours`: the endpoint here.
    pub(crate) fn answer(&mut self, exchange: Exchange, verdict: &Verdict, ours: Option<Offer>) {
        let Some((asked, reply)) = self.open.remove(&exchange) else { return };
        let handshake = match (verdict, ours) {
            (Verdict::Accept, Some(ours)) => Handshake::accept(&asked, ours),
            (Verdict::Accept, None) => Handshake::refuse("the queue pairs are gone"),
            (Verdict::Confirmed, _) => Handshake::confirmed(),
            (Verdict::Refuse(why), _) => Handshake::refuse(&why.to_string()),
        };
        send(reply, &handshake);
    }
}

/// Answers peers at the engine's listener, for as long as there are NICs: the listener outlives the transport.
pub(crate) struct Desk(pub(crate) Weak<[Arc<Nic>]>);

impl BootstrapHandler for Desk {
    fn answer<'a>(
        &'a self,
        _from: &'a te_segment::Endpoint,
        _device_path: &'a str,
        message: &'a [u8],
    ) -> BoxFuture<'a, Option<Vec<u8>>> {
        let refuse = |reason: &str| Handshake::refuse(reason).encode();
        let reading = Handshake::decode(message).and_then(Handshake::read);
        let answered = match reading {
            Err(error) => Err(refuse(&error.to_string())),
            Ok(Reading::ControlChannel) => {
                Err(refuse("no control channel over queue pairs; use notify frames"))
            }
            Ok(reading) => self.hand_over(reading).map_err(|cause| refuse(&cause)),
        };
        Box::pin(async move {
            match answered {
                Err(refusal) => Some(refusal),
                Ok(reply) => reply.await.ok(),
            }
        })
    }
}

impl Desk {
    fn hand_over(&self, reading: Reading) -> Result<oneshot::Receiver<Vec<u8>>, String> {
        let (reply, answer) = oneshot::channel();
        let ask = match reading {
            Reading::Open(offer) => Ask::Open(offer, reply),
            Reading::Confirm(offer) => Ask::Confirm(offer, reply),
            Reading::Cut(offer) => Ask::Cut(offer, reply),
            Reading::ControlChannel => return Err("no control channel over queue pairs".to_owned()),
        };
        let name = ask.parts().to.nic();
        let nics = self.0.upgrade().ok_or("the transport has ended")?;
        let Some(nic) = nics.iter().find(|nic| nic.name() == name) else {
            let names: Vec<_> = nics.iter().map(|nic| nic.name().as_str()).collect();
            return Err(format!("no NIC {name} is in use here, there are {}", names.join(", ")));
        };
        nic.signals().errand(Errand::Ask(Box::new(ask)));
        Ok(answer)
    }
}
