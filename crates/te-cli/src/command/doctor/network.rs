//! What sockets need: descriptors, ports, and who reaches the listeners.

use te::metadata::MetadataUrl;

use super::check::Check;
use super::subject::{Capability, Limit, Subject};

pub(super) fn checks(subject: &Subject<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    if subject.is_here {
        checks.extend(sockets());
    }
    checks.extend(ports(subject));
    checks.push(listeners(subject));
    checks.extend(store(subject));
    checks.extend(descriptors(subject));
    checks.extend(io_uring(subject));
    checks
}

/// Asks by listening for a moment.
fn sockets() -> Option<Check> {
    let tcp = te::features::all().find(|feature| feature.name() == "tcp" && feature.is_compiled())?;
    let availability = tcp.availability();
    Some(if availability.usable {
        Check::ok("control", "sockets", availability.reason)
    } else {
        let remedy = "let this process open sockets: look at its network namespace and system call filter";
        Check::missing("control", "sockets", availability.reason, "no engine can be reached", remedy)
    })
}

fn ports(subject: &Subject<'_>) -> Option<Check> {
    let settings = subject.settings;
    let (low, high) = (u64::from(*settings.port_min.get()), u64::from(*settings.port_max.get()));
    let found = format!("{low} to {high}");
    let fixed = u64::from(*settings.control_port.get());
    let privileged = subject.number("proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or(1024);
    if [low, fixed].into_iter().any(|port| port != 0 && port < privileged)
        && !subject.may(Capability::NetBindService)
    {
        let means = format!("ports below {privileged} need CAP_NET_BIND_SERVICE");
        return Some(Check::missing("control", "ports", found, means, "raise `port.min` and `control.port`"));
    }
    let range = subject.text("proc/sys/net/ipv4/ip_local_port_range")?;
    let mut bounds = range.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
    let (first, last) = (bounds.next()?, bounds.next()?);
    if low <= last && first <= high {
        let means = format!(
            "outgoing connections take ports from {first} to {last}, so one may hold the port a listener wants"
        );
        let remedy = format!(
            "move `port.min` and `port.max`, or add {low}-{high} to net.ipv4.ip_local_reserved_ports"
        );
        let reserved = subject.text("proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default();
        if !is_reserved(&reserved, low.max(first), high.min(last)) {
            return Some(Check::warn("control", "ports", found, means, remedy));
        }
    }
    Some(Check::ok("control", "ports", format!("{found}, apart from those of outgoing connections")))
}

/// Whether a list such as `8080,9148-9150` has all ports of a range.
fn is_reserved(list: &str, low: u64, high: u64) -> bool {
    let ranges = list.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.trim().parse::<u64>().ok()?, last.trim().parse::<u64>().ok()?))
    });
    ranges.into_iter().any(|(first, last)| first <= low && high <= last)
}

fn listeners(subject: &Subject<'_>) -> Check {
    let settings = subject.settings;
    let address = settings.bind.get().as_ref().or_else(|| settings.advertise.get().as_ref());
    let everybody = "neither the control port nor the data port authenticates or encrypts: whoever reaches them can read \
                     and write what is registered with that access";
    let found = match address {
        None => "at the advertised address".to_owned(),
        Some(host) => format!("at {}", host.bare()),
    };
    match address {
        Some(host) if host.is_unspecified() => {
            let remedy = "set `bind` to the address of a network that only peers reach";
            Check::warn("control", "listeners", format!("{found}: every interface"), everybody, remedy)
        }
        Some(host) if host.is_loopback() => {
            Check::ok("control", "listeners", format!("{found}: this host only")).meaning(everybody)
        }
        _ => Check::ok("control", "listeners", format!("{found}, without authentication")).meaning(everybody),
    }
}

/// Passwords on their way to a metadata store.
fn store(subject: &Subject<'_>) -> Option<Check> {
    let MetadataUrl::Store { scheme, .. } = subject.settings.metadata.get() else { return None };
    let encrypted = matches!(*scheme, "etcds" | "rediss" | "https");
    if !encrypted && subject.settings.metadata_token.get().is_some() {
        let means = "the password of the metadata store crosses the network in the clear";
        let remedy = "use the scheme with TLS: etcds, rediss or https";
        return Some(Check::warn("control", "metadata", format!("{scheme}, with a password"), means, remedy));
    }
    let found = if encrypted { format!("{scheme}, encrypted") } else { format!("{scheme}, not encrypted") };
    Some(Check::ok("control", "metadata", found))
}

fn descriptors(subject: &Subject<'_>) -> Option<Check> {
    // Every connection of either listener is a descriptor.
    let settings = subject.settings;
    let wanted = settings.control_connections.get().0 + settings.tcp_max_connections.get().0;
    Some(match subject.limit("Max open files")? {
        Limit::Of(limit) if limit < wanted => {
            let means = format!(
                "the limits on connections, {wanted} together, cannot be reached: new peers would be refused before that"
            );
            let remedy =
                format!("ulimit -n {wanted} (LimitNOFILE= of a service), or lower the limits on connections");
            Check::warn("control", "open files", format!("{limit} at most"), means, remedy)
        }
        Limit::Of(limit) => Check::ok("control", "open files", format!("{limit} at most")),
        Limit::Unlimited => Check::ok("control", "open files", "unlimited"),
    })
}

fn io_uring(subject: &Subject<'_>) -> Option<Check> {
    let found = match subject.number("proc/sys/kernel/io_uring_disabled")? {
        0 => "allowed by the kernel",
        1 => "allowed to its group only",
        _ => "forbidden",
    };
    Some(Check::ok("tcp", "io_uring", found).meaning("no transport of this release uses it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_are_found_in_a_list() {
        assert!(is_reserved("8080,15000-17000", 15000, 17000));
        assert!(is_reserved("15000-17000", 16000, 16000));
        assert!(!is_reserved("15000-16999", 15000, 17000));
        assert!(!is_reserved("", 15000, 17000));
    }
}
