//! Restricts where requests may go whose addresses come from outside: to private addresses only if the user
//! named them.
//!
//! A fetched document, an issuer's metadata, a redirect, or a public host name that resolves into the private network (DNS
//! rebinding) must not reach what only this machine or its network can reach. Behind a proxy, the proxy
//! resolves names, so only numeric addresses are checked here.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use parking_lot::RwLock;
use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
};

/// Suffixes of names that are not public.
const OWN_NAMES: [&str; 7] = ["localhost", "local", "internal", "lan", "home.arpa", "corp", "home"];
/// The variables that name proxies, whose host names are resolved like those of services.
const PROXIES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];

/// The hosts that requests may reach at private addresses.
#[derive(Clone, Debug)]
pub struct PrivateHosts(Arc<Hosts>);

#[derive(Debug)]
struct Hosts {
    /// The hosts in the private network that the user named.
    own: RwLock<HashSet<String>>,
    /// Whether the document is trusted: a file, or at a private address. Then its addresses are trusted as
    /// well.
    is_own: bool,
    /// Whether every host may be in the private network.
    all: bool,
    proxies: HashSet<String>,
}

impl Hosts {
    fn is_named(&self, host: &str) -> bool {
        self.all || self.own.read().contains(host)
    }

    fn name(&self, url: &str) {
        if let Some(host) = host(url)
            && names_private(url)
            && !self.own.read().contains(&host)
        {
            self.own.write().insert(host);
        }
    }
}

/// A request was not sent, because its destination was a private address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is a private address, and no address of yours names it")]
pub struct PrivateAddress(pub String);

impl PrivateHosts {
    /// Returns the reach that the user's own addresses allow; with `all`, every address. `document` is the
    /// address of a document that names more, unless that is a file of the user.
    pub fn of(base_url: Option<&str>, document: Option<&str>, all: bool) -> Self {
        let is_own = document.is_none_or(names_private);
        let proxies = PROXIES.iter().flat_map(|name| [(*name).to_string(), name.to_lowercase()]);
        let proxies = proxies.filter_map(|name| std::env::var(name).ok());
        let proxies = proxies.filter_map(|proxy| host(&proxy).or_else(|| host(&format!("http://{proxy}"))));
        let hosts = Hosts { own: RwLock::default(), is_own, all, proxies: proxies.collect() };
        base_url.into_iter().chain(document).for_each(|url| hosts.name(url));
        Self(Arc::new(hosts))
    }

    /// Notes an address that the document gives for an operation.
    pub fn found(&self, url: &str) {
        if self.0.is_own {
            self.0.name(url);
        }
    }

    /// Allows the host of an address that the user has named, wherever its name leads.
    pub fn allow(&self, url: &str) {
        if let Some(host) = host(url) {
            self.0.own.write().insert(host);
        }
    }

    /// Checks an address before a request is sent. A host name is checked again after it is resolved.
    pub fn check(&self, url: &Url) -> Result<(), PrivateAddress> {
        let host = url.host_str().unwrap_or_default().to_lowercase();
        match address(&host) {
            Some(address) if is_private(address) && !self.0.is_named(&host) => Err(PrivateAddress(host)),
            _ => Ok(()),
        }
    }

    /// Returns the addresses that a name may resolve to.
    fn allowed(&self, name: &str, found: Vec<IpAddr>) -> Result<Vec<IpAddr>, PrivateAddress> {
        let host = name.to_lowercase();
        if self.0.is_named(&host) || self.0.proxies.contains(&host) {
            return Ok(found);
        }
        let (private, public): (Vec<IpAddr>, Vec<IpAddr>) =
            found.into_iter().partition(|one| is_private(*one));
        match private.first() {
            Some(first) if public.is_empty() => Err(PrivateAddress(format!("{name} ({first})"))),
            _ => Ok(public),
        }
    }
}

impl Resolve for PrivateHosts {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed = reach.allowed(name.as_str(), found.map(|address| address.ip()).collect())?;
            Ok(Box::new(allowed.into_iter().map(|ip| SocketAddr::new(ip, 0))) as Addrs)
        })
    }
}

/// Returns whether an address is written as a private one: by a private number, or by a name that is not
/// public.
pub fn names_private(url: &str) -> bool {
    let Some(host) = host(url) else { return false };
    match address(&host) {
        Some(address) => is_private(address),
        None => {
            let name = host.trim_end_matches('.');
            let ends =
                |end: &str| name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
            !name.contains('.') || OWN_NAMES.iter().any(|end| ends(end))
        }
    }
}

/// Returns the host of an address, in lower case.
fn host(url: &str) -> Option<String> {
    Url::parse(url).ok()?.host_str().map(str::to_lowercase)
}

/// Returns the host as a number, if it is written as one.
fn address(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Returns whether an address is not public.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => is_private_v6(address),
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || a == 0
        // Shared address space (RFC 6598), protocol assignments, benchmarking, multicast, and reserved.
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (b == 18 || b == 19))
        || a >= 224
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match (a, b, c, d, e, f) {
        // IPv4 in IPv6: mapped, compatible (including loopback and unspecified), and translated.
        (0, 0, 0, 0, 0, 0xffff | 0) | (0x64, 0xff9b, 0, 0, 0, 0) => is_private_v4(v4(g, h)),
        (0x2002, ..) => is_private_v4(v4(b, c)),
        // Locally translated, unique local, link-local, deprecated site-local, and multicast.
        (0x64, 0xff9b, 1, ..) => true,
        _ => a & 0xfe00 == 0xfc00 || a & 0xffc0 == 0xfe80 || a & 0xffc0 == 0xfec0 || a & 0xff00 == 0xff00,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a request is sent to an address whose name resolves to these numbers.
    fn is_sent(reach: &PrivateHosts, url: &str, leads_to: &[&str]) -> bool {
        let url = Url::parse(url).expect("an address");
        let found = leads_to.iter().map(|ip| ip.parse().expect("a number")).collect();
        let name = url.host_str().expect("a host");
        reach.check(&url).is_ok()
            && (leads_to.is_empty() || reach.allowed(name, found).is_ok_and(|all| !all.is_empty()))
    }

    const PUBLIC: &str = "https://api.example.com/v1";

    #[test]
    fn private_addresses_are_reached_only_where_the_user_named_them() {
        let check = |base_url: &str, url: &str, leads_to: &[&str], expected: bool| {
            let reach = PrivateHosts::of(Some(base_url), None, false);
            assert_eq!(is_sent(&reach, url, leads_to), expected, "{base_url} {url} {leads_to:?}");
        };
        check(PUBLIC, PUBLIC, &["93.184.215.14"], true);
        check(PUBLIC, PUBLIC, &["2606:2800:21f::1"], true);
        // A public name that resolves into the private network.
        check(PUBLIC, PUBLIC, &["10.0.0.7"], false);
        check(PUBLIC, PUBLIC, &["127.0.0.1", "::1"], false);
        check(PUBLIC, PUBLIC, &["10.0.0.7", "93.184.215.14"], true);
        for private in [
            "http://127.0.0.1:8080/",
            "http://10.1.2.3/",
            "http://172.16.0.1/",
            "http://192.168.1.1/",
            "http://169.254.169.254/latest/meta-data",
            "http://100.64.0.1/",
            "http://0.0.0.0/",
            "http://[::1]/",
            "http://[fd00::1]/",
            "http://[fe80::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[64:ff9b::a00:1]/",
            "http://[2002:a00:1::]/",
            // The same address in other spellings.
            "http://2130706433/",
            "http://0x7f.1/",
        ] {
            check(PUBLIC, private, &[], false);
            check(private, private, &[], true);
        }
        check("http://10.0.0.7/", "http://10.0.0.8/", &[], false);
        check(PUBLIC, "http://1.1.1.1/", &[], true);
        // Names of the private network.
        for own in ["http://localhost:3000/", "http://wiki/api", "https://git.internal/", "http://nas.local/"]
        {
            check(own, own, &["192.168.1.9"], true);
            check(PUBLIC, own, &["192.168.1.9"], false);
        }
        check("http://localhost:3000/", PUBLIC, &["127.0.0.1"], false);
        let all = PrivateHosts::of(Some(PUBLIC), None, true);
        assert!(is_sent(&all, PUBLIC, &["10.0.0.7"]) && is_sent(&all, "http://10.0.0.7/", &[]));
    }

    #[test]
    fn a_document_of_the_public_does_not_lead_into_the_own_network() {
        let check = |document: Option<&str>, named: &str, expected: bool| {
            let reach = PrivateHosts::of(None, document, false);
            reach.found(named);
            assert_eq!(is_sent(&reach, named, &["10.0.0.7"]), expected, "{document:?} {named}");
        };
        for (named, by_own) in [("http://10.0.0.7/", true), ("http://localhost/", true), (PUBLIC, false)] {
            check(None, named, by_own);
            check(Some("http://wiki/api.yaml"), named, by_own);
            check(Some("https://example.com/api.yaml"), named, false);
        }
    }
}
