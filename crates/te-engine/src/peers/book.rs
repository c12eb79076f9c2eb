//! All peers that this engine knows, and their connections.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use te_rpc::native::NativePeer;
use te_segment::{Endpoint, Incarnation};
use tokio::sync::Notify;

use super::acquaintance::{Acquaintance, Verdict};

/// Lives that are known at a time; beyond, those that nothing is open of and that are not connected are forgotten.
const LIVES: usize = 16_384;

/// The peers of one engine.
pub(crate) struct Book {
    pages: Mutex<Pages>,
    /// Wakes whoever asks peers whether they live.
    pub(super) ask: Arc<Notify>,
}

#[derive(Default)]
struct Pages {
    lives: HashMap<Incarnation, Page>,
    references: HashMap<String, Weak<Acquaintance>>,
}

struct Page {
    peer: Arc<Acquaintance>,
    connections: Vec<NativePeer>,
}

impl Page {
    fn is_used(&self) -> bool {
        !self.connections.is_empty() || Arc::strong_count(&self.peer) > 1
    }
}

impl Book {
    pub(super) fn new() -> Self {
        Self { pages: Mutex::default(), ask: Arc::new(Notify::new()) }
    }

    /// The life, known from now on.
    pub(super) fn meet(
        &self,
        name: &str,
        incarnation: Incarnation,
        control: Option<&Endpoint>,
    ) -> Arc<Acquaintance> {
        let mut pages = self.pages.lock();
        if !pages.lives.contains_key(&incarnation) && pages.lives.len() >= LIVES {
            pages.lives.retain(|_, page| page.is_used());
        }
        let peer = pages.page(name, incarnation, control, &self.ask).peer.clone();
        drop(pages);
        if let Some(control) = control {
            peer.found_at(control);
            self.ask.notify_one();
        }
        peer
    }

    /// A reference peer, known by its name for as long as it is open.
    pub(super) fn meet_reference(&self, name: &str) -> Arc<Acquaintance> {
        let mut pages = self.pages.lock();
        if let Some(peer) = pages.references.get(name).and_then(Weak::upgrade) {
            return peer;
        }
        pages.references.retain(|_, peer| peer.strong_count() > 0);
        let peer = Arc::new(Acquaintance::new(name.to_owned(), None, None, self.ask.clone()));
        pages.references.insert(name.to_owned(), Arc::downgrade(&peer));
        peer
    }

    pub(crate) fn life(&self, incarnation: Incarnation) -> Option<Arc<Acquaintance>> {
        self.pages.lock().lives.get(&incarnation).map(|page| page.peer.clone())
    }

    /// The lives and reference peers of a name.
    pub(crate) fn named(&self, name: &str) -> Vec<Arc<Acquaintance>> {
        let pages = self.pages.lock();
        let lives = pages.lives.values().map(|page| &page.peer).filter(|peer| peer.name() == name);
        let reference = pages.references.get(name).and_then(Weak::upgrade);
        lives.cloned().chain(reference).collect()
    }

    /// Forgets lives that are over and of which nothing is open.
    pub(super) fn forget_ended(&self) {
        self.pages.lock().lives.retain(|_, page| page.is_used() || page.peer.verdict() == Verdict::Go);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Acquaintance>> {
        let pages = self.pages.lock();
        let references = pages.references.values().filter_map(Weak::upgrade);
        pages.lives.values().map(|page| page.peer.clone()).chain(references).collect()
    }

    /// A connection to this life is open.
    pub(super) fn connected(&self, connection: &NativePeer) -> Arc<Acquaintance> {
        let id = connection.id();
        let mut pages = self.pages.lock();
        let page = pages.page(&id.name, id.incarnation, None, &self.ask);
        page.connections.push(connection.clone());
        page.peer.clone()
    }

    /// A connection has ended. Gives the life, and whether it has another connection.
    pub(super) fn disconnected(&self, connection: &NativePeer) -> Option<(Arc<Acquaintance>, bool)> {
        let mut pages = self.pages.lock();
        let incarnation = connection.id().incarnation;
        let page = pages.lives.get_mut(&incarnation)?;
        page.connections.retain(|known| !known.is_same_connection(connection));
        let (peer, more) = (page.peer.clone(), !page.connections.is_empty());
        // One reference is ours. Who only ever came to us cannot be asked what became of it.
        if !more && peer.target().is_none() && Arc::strong_count(&peer) <= 2 {
            pages.lives.remove(&incarnation);
        }
        Some((peer, more))
    }

    /// The open connections of a life.
    pub(super) fn connections(&self, incarnation: Incarnation) -> Vec<NativePeer> {
        self.pages.lock().lives.get(&incarnation).map(|page| page.connections.clone()).unwrap_or_default()
    }

    /// All open connections.
    pub(super) fn all_connections(&self) -> Vec<NativePeer> {
        self.pages.lock().lives.values().flat_map(|page| page.connections.clone()).collect()
    }
}

impl Pages {
    fn page(
        &mut self,
        name: &str,
        incarnation: Incarnation,
        control: Option<&Endpoint>,
        ask: &Arc<Notify>,
    ) -> &mut Page {
        self.lives.entry(incarnation).or_insert_with(|| {
            let new = Acquaintance::new(name.to_owned(), Some(incarnation), control.cloned(), ask.clone());
            Page { peer: Arc::new(new), connections: Vec::new() }
        })
    }
}
