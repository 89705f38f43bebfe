//! The address of a client behind trusted proxies, from `Forwarded` (RFC 7239) or `X-Forwarded-For`.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, header::FORWARDED};
use nonet_config::AddressRange;

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The longest header, in bytes, and the most proxies. Beyond them, the header says nothing.
const LONGEST: usize = 4_096;
const MOST: usize = 32;

/// Returns the address that the nearest proxy names, past further trusted proxies. `None` if no header names
/// one, or if there are both headers: a proxy writes one of them, and may pass on what a client wrote into
/// the other.
pub(super) fn client(headers: &HeaderMap, trusted: &[AddressRange]) -> Option<IpAddr> {
    let named = match (joined(headers, &FORWARDED), joined(headers, &X_FORWARDED_FOR)) {
        (Some(text), None) => split(&text, ',')?.into_iter().map(of_element).collect(),
        (None, Some(text)) => split(&text, ',')?.into_iter().map(address).collect::<Vec<_>>(),
        _ => return None,
    };
    // Whatever is before the first address that is no proxy's was written by the client.
    for named in named.into_iter().rev() {
        let named = named?;
        if !trusted.iter().any(|range| range.contains(named)) {
            return Some(named);
        }
    }
    None
}

fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let lines: Vec<&[u8]> = headers.get_all(name).iter().map(|value| value.as_bytes()).collect();
    (!lines.is_empty()).then(|| String::from_utf8_lossy(&lines.join(&b","[..])).into_owned())
}

/// Returns the parts of a text between separators outside of quotes; `None` if there is too much of it.
fn split(text: &str, separator: char) -> Option<Vec<&str>> {
    let (mut quoted, mut escaped) = (false, false);
    let parts = text.split(|c: char| {
        let ends = c == separator && !quoted;
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
        ends
    });
    let parts: Vec<&str> = (text.len() <= LONGEST).then(|| parts.take(MOST + 1).collect())?;
    (parts.len() <= MOST).then_some(parts)
}

/// Returns the address of `for=192.0.2.43;proto=http`.
fn of_element(element: &str) -> Option<IpAddr> {
    let pairs = split(element, ';')?;
    let mut named = pairs.into_iter().filter_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        key.trim().eq_ignore_ascii_case("for").then_some(value)
    });
    let value = named.next().filter(|_| named.next().is_none())?.trim();
    let bare = value.strip_prefix('"').map_or(Some(value), |rest| rest.strip_suffix('"'))?;
    address(bare)
}

/// Returns the address of `192.0.2.43`, `192.0.2.43:4711`, `2001:db8::1`, `[2001:db8::1]` or
/// `[2001:db8::1]:4711`.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let found = bare.parse::<IpAddr>().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    found.ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_client_is_whom_the_nearest_proxy_names() {
        let check = |headers: &[(&'static str, &str)], expected: Option<&str>| {
            let trusted = ["10.0.0.0/8".parse().expect("a range")];
            let mut all = HeaderMap::new();
            for (name, value) in headers {
                all.append(*name, HeaderValue::from_str(value).expect("a value"));
            }
            let expected = expected.map(|address| address.parse().expect("an address"));
            assert_eq!(client(&all, &trusted), expected, "{headers:?}");
        };
        let forwarded = |value: &str, expected| check(&[("forwarded", value)], expected);
        forwarded("for=192.0.2.43", Some("192.0.2.43"));
        forwarded("proto=https;FOR=\"192.0.2.43:4711\";by=10.0.0.1", Some("192.0.2.43"));
        forwarded("for=\"[2001:db8:cafe::17]:4711\"", Some("2001:db8:cafe::17"));
        forwarded("for=\"[::ffff:192.0.2.1]\"", Some("192.0.2.1"));
        // The client wrote the first one; the proxies added the others.
        forwarded("for=203.0.113.9, for=192.0.2.43, for=10.1.2.3", Some("192.0.2.43"));
        forwarded("for=\"a,b;for=1.1.1.1\", for=192.0.2.43", Some("192.0.2.43"));
        for nobody in [
            "",
            "for=unknown",
            "for=_hidden, for=10.0.0.1",
            "for=10.0.0.1",
            "by=192.0.2.1",
            "for=192.0.2.1;for=192.0.2.2",
            "for=\"192.0.2.1",
            "for=192.0.2.1, ,",
            "for=192.0.2.43, \"",
        ] {
            forwarded(nobody, None);
        }
        forwarded(&format!("for=192.0.2.1{}", ", for=10.0.0.1".repeat(40)), None);
        forwarded(&format!("for=192.0.2.1;x=\"{}\"", "x".repeat(5_000)), None);
        check(&[("x-forwarded-for", "203.0.113.9, 192.0.2.43 , 10.0.0.1")], Some("192.0.2.43"));
        check(&[("x-forwarded-for", "203.0.113.9"), ("x-forwarded-for", "2001:db8::1")], Some("2001:db8::1"));
        check(&[("x-forwarded-for", "192.0.2.1"), ("forwarded", "for=203.0.113.9")], None);
        check(&[], None);
    }
}
