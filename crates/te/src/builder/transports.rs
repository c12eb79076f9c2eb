//! Which transports an engine gets, and their settings.

use te_engine::{Error, ErrorKind, Result};
use te_segment::TransportKind;
use te_transport::{Compare, Install};
use te_transport_local::{Local, LocalConfig, LocalGroup};

use super::{OPERATION, invalid, size};
use crate::features;
#[cfg(feature = "rdma")]
use crate::settings::Count;
use crate::settings::{Digest, Settings};

/// The transports to install. An explicit list is exact: a word that cannot be had is an error.
pub(super) fn chosen(settings: &Settings, group: Option<&LocalGroup>) -> Result<Vec<TransportKind>> {
    let compiled =
        || features::all().filter(|f| f.kind() == features::FeatureKind::Transport && f.is_compiled());
    let Some(list) = settings.transports.get() else {
        return compiled().map(|feature| feature.name().parse().map_err(invalid)).collect();
    };
    for word in list {
        let missing = match features::by_transport(word) {
            Some(_) if *word == TransportKind::LOCAL && group.is_none() => {
                "needs a group of engines of this process (EngineBuilder::local_group)".to_owned()
            }
            Some(feature) if feature.is_compiled() => continue,
            Some(feature) if feature.is_in_this_release() => {
                format!("needs the Cargo feature `{}`, which is not compiled in", feature.name())
            }
            Some(feature) => {
                format!("needs the Cargo feature `{}`, which this release does not have yet", feature.name())
            }
            None => "is unknown".to_owned(),
        };
        let names: Vec<_> = compiled().map(features::Feature::name).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let cause = format!("transport {word} {missing}; compiled in: {names}");
        return Err(Error::new(ErrorKind::Config, OPERATION, cause));
    }
    Ok(list.clone())
}

/// What becomes a transport of that word; nothing for copies within the process without a group.
pub(super) fn install(
    word: &TransportKind,
    settings: &Settings,
    group: Option<&LocalGroup>,
) -> Option<Box<dyn Install>> {
    if *word == TransportKind::LOCAL {
        return group
            .map(|group| -> Box<dyn Install> { Box::new(Local::new(group, local_config(settings))) });
    }
    #[cfg(feature = "tcp")]
    if *word == TransportKind::TCP {
        return Some(Box::new(te_transport_tcp::Tcp::new(tcp_config(settings))));
    }
    #[cfg(feature = "shm")]
    if *word == TransportKind::SHM {
        return Some(Box::new(te_transport_shm::Shm::new(shm_config(settings))));
    }
    #[cfg(feature = "rdma")]
    if *word == TransportKind::RDMA {
        return Some(Box::new(te_transport_rdma::Rdma::new(rdma_config(settings))));
    }
    let _ = (word, settings);
    None
}

pub(super) fn local_config(settings: &Settings) -> LocalConfig {
    let mut config = LocalConfig::default();
    config.threads = size(settings.local_threads.get().0);
    config.compare = compare(*settings.local_compare.get());
    config
}

fn compare(choice: Digest) -> Compare {
    match choice {
        Digest::Off => Compare::Off,
        Digest::Sampled => Compare::Sampled,
        Digest::Always => Compare::Always,
    }
}

#[cfg(feature = "shm")]
pub(super) fn shm_config(settings: &Settings) -> te_transport_shm::ShmConfig {
    let mut config = te_transport_shm::ShmConfig::default();
    config.threads = size(settings.shm_threads.get().0);
    config.connect_timeout = *settings.shm_connect_timeout.get();
    config.silent_timeout = *settings.shm_silent_timeout.get();
    config.max_connections = size(settings.shm_max_connections.get().0);
    config.max_buffers = u32::try_from(settings.shm_max_buffers.get().0).unwrap_or(u32::MAX);
    config.withdraw_timeout = *settings.shm_withdraw_timeout.get();
    config.compare = compare(*settings.shm_compare.get());
    config
}

#[cfg(feature = "rdma")]
pub(super) fn rdma_config(settings: &Settings) -> te_transport_rdma::RdmaConfig {
    use te_transport_rdma::RdmaConfig;
    use te_transport_rdma::negotiate::Mtu;

    // Ranges are those of the settings, below what would not fit.
    let small = |Count(count): &Count| u32::try_from(*count).unwrap_or(u32::MAX);
    let byte = |Count(count): &Count| u8::try_from(*count).unwrap_or(u8::MAX);
    let mut config = RdmaConfig::default();
    config.nics.clone_from(settings.rdma_nics.get());
    config.queue_pairs = byte(settings.rdma_queue_pairs.get());
    config.endpoints = small(settings.rdma_endpoints.get());
    config.depth = small(settings.rdma_depth.get());
    config.signal_every = small(settings.rdma_signal_every.get());
    config.max_inline = u32::try_from(*settings.rdma_max_inline.get()).unwrap_or(u32::MAX);
    config.slice_min = *settings.rdma_slice_min.get();
    config.slice_max = *settings.rdma_slice_max.get();
    config.mtu = Mtu::at_most(small(settings.rdma_mtu.get())).unwrap_or(config.mtu);
    config.max_mr_size = *settings.rdma_max_mr_size.get();
    config.rail_map = settings.rdma_rail_map.get().connectivity.clone();
    config.rail_pause = *settings.rdma_rail_pause.get();
    config.port = byte(settings.rdma_port.get());
    config.gid_index = *settings.rdma_gid_index.get();
    config.pkey_index = u16::try_from(settings.rdma_pkey_index.get().0).unwrap_or(u16::MAX);
    config.traffic_class = *settings.rdma_traffic_class.get();
    config.service_level = *settings.rdma_service_level.get();
    config
}

#[cfg(feature = "tcp")]
pub(super) fn tcp_config(settings: &Settings) -> te_transport_tcp::TcpConfig {
    use te_transport_tcp::{DigestChoice, FramingChoice, TcpConfig};

    use crate::settings::Framing;

    let mut config = TcpConfig::default();
    config.address = settings.tcp_address.get().clone();
    config.connections_per_peer = size(settings.tcp_connections_per_peer.get().0);
    config.framing = match settings.tcp_framing.get() {
        Framing::V1 => FramingChoice::V1,
        Framing::V2 => FramingChoice::V2,
        Framing::Native => FramingChoice::Native,
        Framing::Auto => FramingChoice::Auto,
    };
    config.connect_timeout = *settings.tcp_connect_timeout.get();
    config.status_timeout = *settings.tcp_status_timeout.get();
    config.progress_timeout = *settings.tcp_progress_timeout.get();
    config.pipeline = size(settings.tcp_pipeline.get().0);
    config.stripe_threshold = *settings.tcp_stripe_threshold.get();
    config.max_connections = size(settings.tcp_max_connections.get().0);
    config.silent_timeout = *settings.tcp_silent_timeout.get();
    config.reject_drain_bytes = *settings.tcp_reject_drain_bytes.get();
    config.reject_drain_time = *settings.tcp_reject_drain_time.get();
    config.digest = match settings.tcp_digest.get() {
        Digest::Off => DigestChoice::Off,
        Digest::Sampled => DigestChoice::Sampled,
        Digest::Always => DigestChoice::Always,
    };
    config.keepalive = *settings.tcp_keepalive.get();
    config
}
