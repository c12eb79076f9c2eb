//! Creating the queue pairs of an endpoint, and joining them to the peer's.

use std::collections::BTreeMap;
use std::sync::Arc;

use te_segment::Generation;
use te_sys_verbs::{Access, PairSize, QueuePair, ToInit};

use super::link::{End, Link};
use super::nic::{Nic, Owner};
use crate::negotiate::devices::{OwnPort, to_receive, to_send};
use crate::negotiate::{Agreement, Patience, agree, first_psn};
use crate::offer;
use crate::slices::{QueueSettings, SendQueue};
use crate::wire::{Offer, Terms};

/// Creates the queue pairs of an endpoint and gives them their port.
///
/// # Errors
///
/// Why not, in words. Nothing of them is left.
pub(crate) fn create(nic: &Nic, link: &Arc<Link>, generation: Generation) -> Result<End, String> {
    let common = nic.common();
    let config = &common.config;
    let own = nic.own();
    let size = PairSize { requests: config.depth, receives: 0, ranges: 1, inline: config.max_inline };
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let init = ToInit { port: own.number, pkey_index: config.pkey_index, access };
    let mut pairs = Vec::new();
    let device = nic.device().ok_or_else(|| format!("{} is not open", nic.name()))?;
    for _ in 0..config.queue_pairs {
        let (queue, cookie) = (&device.queue, nic.cookie(link, generation));
        let make = |size| device.domain.queue_pair(size, queue, queue, cookie);
        // Not every device carries so much inline, and there is no way to ask how much.
        let pair = make(size)
            .or_else(|_| make(PairSize { inline: 0, ..size }))
            .map_err(|error| error.to_string())?;
        pair.to_init(&init).map_err(|error| error.to_string())?;
        pairs.push(pair);
    }
    let numbers: Vec<_> = pairs.iter().map(QueuePair::number).collect();
    let terms = Terms {
        incarnation: common.incarnation,
        peer: link.key().life,
        peer_generation: None,
        cut: false,
        generation,
        psn: numbers.iter().map(|_| first_psn(rand::random())).collect(),
        mtu: own.port.mtu.bytes(),
        max_rd_atomic: own.port.reads_in,
        extra: BTreeMap::new(),
    };
    let ours = Offer {
        from: link.here().clone(),
        to: link.key().there.clone(),
        lid: own.lid,
        gid: Some(own.gid),
        queue_pairs: numbers,
        ready_ack: true,
        terms: Some(terms),
    };
    let queues = pairs.iter().map(|pair| {
        let settings = config.queue();
        let settings = QueueSettings { max_inline: settings.max_inline.min(pair.inline()), ..settings };
        SendQueue::starting_at(settings, nic.first_identifier())
    });
    let end = End {
        generation,
        queues: queues.collect(),
        pairs,
        ours,
        theirs: None,
        cause: None,
        is_silent: false,
    };
    for (lane, pair) in end.pairs.iter().enumerate() {
        nic.own_pair(pair.number(), Owner { link: link.clone(), of: generation, lane });
    }
    Ok(end)
}

/// What both sides come to.
///
/// # Errors
///
/// What does not fit, in words.
pub(crate) fn agreement(nic: &Nic, link: &Link, ours: &Offer, theirs: &Offer) -> Result<Agreement, String> {
    let stated = link.target().and_then(|peer| offer::peer_address(&peer, theirs.from.nic()));
    agree(ours, &nic.own().port, theirs, stated).map_err(|error| error.to_string())
}

/// Joins the queue pairs to the peer's, up to ready-to-send.
///
/// # Errors
///
/// Why not, in words.
pub(crate) fn join(nic: &Nic, pairs: &[QueuePair], agreed: &Agreement) -> Result<(), String> {
    let (own, config, patience) = (nic.own(), &nic.common().config, Patience::default());
    let port = OwnPort {
        number: own.number,
        gid_index: own.gid_index,
        service_level: config.service_level.unwrap_or(0),
        traffic_class: config.traffic_class.unwrap_or(0),
    };
    for (at, pair) in pairs.iter().enumerate() {
        let missing = || format!("the peer has no queue pair for number {at}");
        let receive = to_receive(agreed, at, &port, &patience).ok_or_else(missing)?;
        pair.to_receive(&receive).map_err(|error| error.to_string())?;
        let send = to_send(agreed, at, &patience).ok_or_else(missing)?;
        pair.to_send(&send).map_err(|error| error.to_string())?;
    }
    Ok(())
}
