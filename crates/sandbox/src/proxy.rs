//! The way out of a sandbox whose `net` is a list: an HTTP proxy on the sandbox's loopback address that
//! connects only to these hosts. Names are resolved here, outside; the program itself has no network.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use nonet_config::HostPort;
use nonet_store::doors;

/// The port in the sandbox's own network.
pub(super) const PORT: u16 = 3128;
/// The address of the proxy.
pub(super) const ADDRESS: &str = "http://127.0.0.1:3128";
/// The variables that point programs to the proxy.
pub(super) const VARIABLES: [&str; 6] =
    ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
/// The maximum number of concurrent connections.
const CONNECTIONS: usize = 128;
/// The longest head of a request.
const HEAD: usize = 16 << 10;
/// How long a request and a connect may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Serves connections until the process ends. `state` is Nonet's state folder.
pub(super) fn serve(listener: TcpListener, hosts: Vec<HostPort>, state: Option<PathBuf>) {
    let (allowed, open) = (Arc::new((hosts, state)), Arc::new(AtomicUsize::new(0)));
    thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(client) = client else {
                thread::sleep(Duration::from_millis(50));
                continue;
            };
            if open.load(Ordering::Relaxed) >= CONNECTIONS {
                continue;
            }
            open.fetch_add(1, Ordering::Relaxed);
            let (allowed, counted) = (allowed.clone(), open.clone());
            let started = thread::Builder::new().stack_size(256 << 10).spawn(move || {
                // Either side may close at any time.
                let _ = pass(client, &allowed.0, allowed.1.as_deref());
                counted.fetch_sub(1, Ordering::Relaxed);
            });
            if started.is_err() {
                open.fetch_sub(1, Ordering::Relaxed);
            }
        }
    });
}

/// A request to the proxy.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    to: HostPort,
    /// The head to send on; `None` for a tunnel.
    head: Option<Vec<u8>>,
}

fn pass(mut client: TcpStream, hosts: &[HostPort], state: Option<&Path>) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    let (head, rest) = read_head(&mut client)?;
    let Some(request) = read(&head) else { return answer(&mut client, "400 Bad Request", "") };
    if !hosts.iter().any(|allowed| is_allowed(allowed, &request.to)) {
        let what =
            format!("{}:{} is not in `net` of this server's sandbox\n", request.to.host, request.to.port);
        return answer(&mut client, "403 Forbidden", &what);
    }
    let is_door = |port| state.is_some_and(|state| doors::is_door(state, port));
    let mut server = match connect(&request.to, is_door) {
        Ok(server) => server,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return answer(&mut client, "403 Forbidden", "no sandbox reaches Nonet's own ports\n");
        }
        Err(_) => return answer(&mut client, "502 Bad Gateway", ""),
    };
    match &request.head {
        Some(head) => server.write_all(head)?,
        None => client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?,
    }
    server.write_all(&rest)?;
    client.set_read_timeout(None)?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let sending = thread::Builder::new().stack_size(256 << 10).spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    })?;
    let copied = io::copy(&mut server, &mut client);
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    let _ = sending.join();
    copied.map(drop)
}

fn answer(client: &mut TcpStream, status: &str, text: &str) -> io::Result<()> {
    let length = text.len();
    write!(client, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}")
}

/// Reads up to the empty line. Returns the head, including that line, and the bytes after it.
fn read_head(client: &mut TcpStream) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut head = Vec::new();
    let mut chunk = [0; 2048];
    loop {
        if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = head.split_off(end + 4);
            return Ok((head, rest));
        }
        let read = client.read(&mut chunk)?;
        if read == 0 || head.len() + read > HEAD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.extend_from_slice(&chunk[..read]);
    }
}

/// Reads a request: `CONNECT host:port`, or any other method with an absolute `http:` address.
fn read(head: &[u8]) -> Option<Request> {
    let text = std::str::from_utf8(head).ok()?;
    let (line, headers) = text.split_once("\r\n")?;
    let mut words = line.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    if method == "CONNECT" {
        return Some(Request { to: HostPort::parse(target)?, head: None });
    }
    let address = target.strip_prefix("http://")?;
    let (authority, path) = address.split_at(address.find('/').unwrap_or(address.len()));
    let to = HostPort::parse(authority).or_else(|| HostPort::parse(&format!("{authority}:80")))?;
    let path = if path.is_empty() { "/" } else { path };
    // One request per connection: a second one may be for another host.
    let headers = headers.split("\r\n").filter(|header| {
        let name = header.split(':').next().unwrap_or_default().to_ascii_lowercase();
        !matches!(name.as_str(), "proxy-connection" | "proxy-authorization" | "connection")
            && !name.is_empty()
    });
    let headers: String = headers.map(|header| format!("{header}\r\n")).collect();
    let head = format!("{method} {path} {version}\r\n{headers}Connection: close\r\n\r\n");
    Some(Request { to, head: Some(head.into()) })
}

/// Returns whether an entry of the list allows a destination.
fn is_allowed(allowed: &HostPort, to: &HostPort) -> bool {
    let is_host = match allowed.host.strip_prefix('*') {
        Some(end) => to.host.len() > end.len() && to.host.ends_with(end),
        None => to.host == allowed.host,
    };
    is_host && to.port == allowed.port
}

/// Connects to a host. A name never leads to this machine itself, whatever its DNS says; an address in the
/// list may, but not to a gateway's own port.
fn connect(to: &HostPort, is_door: impl Fn(u16) -> bool) -> io::Result<TcpStream> {
    let is_literal = to.host.parse::<IpAddr>().is_ok() || to.host == "localhost";
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in (to.host.as_str(), to.port).to_socket_addrs()? {
        if is_own(&address) {
            if !is_literal {
                continue;
            }
            if is_door(address.port()) {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
        }
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(server) => return Ok(server),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Returns whether an address belongs to this machine or to a cloud's metadata service.
fn is_own(address: &SocketAddr) -> bool {
    let of_v4 = |v4: Ipv4Addr| {
        let is_special = v4.is_loopback() || v4.is_link_local() || v4.octets()[0] == 0;
        // The metadata service of Alibaba Cloud.
        is_special || v4.octets() == [100, 100, 100, 200]
    };
    let is_special = match address.ip().to_canonical() {
        IpAddr::V4(v4) => of_v4(v4),
        IpAddr::V6(v6) => {
            let parts = v6.segments();
            let [.., a, b, c, d] = v6.octets();
            // An IPv4 address, compatible (RFC 4291, section 2.5.5.1) or behind NAT64 (RFC 6052, section
            // 2.1).
            let is_wrapped = parts[..6] == [0; 6] || parts[..6] == [0x64, 0xff9b, 0, 0, 0, 0];
            // The metadata service of AWS.
            let is_of_cloud = parts == [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254];
            v6.is_unicast_link_local() || is_of_cloud || is_wrapped && of_v4(Ipv4Addr::new(a, b, c, d))
        }
    };
    // An address that can be bound belongs to this machine.
    is_special || std::net::UdpSocket::bind((address.ip(), 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_and_matched() {
        let check = |line: &str, allowed: &str, expected: Option<bool>| {
            let head = format!("{line}\r\nHost: x\r\nProxy-Connection: keep-alive\r\n\r\n");
            let request = read(head.as_bytes());
            let allowed = HostPort::parse(allowed).expect("a host");
            assert_eq!(
                request.map(|request| is_allowed(&allowed, &request.to)),
                expected,
                "{line} {allowed:?}"
            );
        };
        check("CONNECT api.example.com:443 HTTP/1.1", "api.example.com:443", Some(true));
        check("CONNECT API.Example.com:443 HTTP/1.1", "api.example.com:443", Some(true));
        check("CONNECT api.example.com:80 HTTP/1.1", "api.example.com:443", Some(false));
        check("CONNECT evil-example.com:443 HTTP/1.1", "*.example.com:443", Some(false));
        check("CONNECT a.example.com:443 HTTP/1.1", "*.example.com:443", Some(true));
        check("CONNECT example.com:443 HTTP/1.1", "*.example.com:443", Some(false));
        check("GET http://example.com/a HTTP/1.1", "example.com:80", Some(true));
        check("GET http://example.com:8080 HTTP/1.1", "example.com:8080", Some(true));
        check("GET /a HTTP/1.1", "example.com:80", None);
        check("CONNECT user@example.com:443 HTTP/1.1", "example.com:443", None);
        let head =
            b"GET http://example.com/a?b HTTP/1.1\r\nHost: example.com\r\nConnection: keep-alive\r\n\r\n";
        let sent =
            read(head).and_then(|request| request.head).map(|head| String::from_utf8(head).expect("text"));
        let expected = "GET /a?b HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n";
        assert_eq!(sent.as_deref(), Some(expected));
    }
}
