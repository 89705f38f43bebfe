//! The system's tables of TCP sockets (Linux).

use std::{
    fs::File,
    io::{BufRead, BufReader},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use super::{Peer, PortListener};

const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// The state of a socket that listens.
const LISTENS: &str = "0A";

/// A row of a table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    local: SocketAddr,
    remote: SocketAddr,
    listens: bool,
    user: u32,
    /// Zero once its program has closed it.
    inode: u64,
}

pub(super) fn peer(from: SocketAddr, to: SocketAddr) -> Peer {
    let (from, to) = (plain(from), plain(to));
    let (mut own_end, mut found) = (false, None);
    for row in rows() {
        if (row.local, row.remote) == (from, to) {
            found = Some(row);
            break;
        }
        own_end |= (row.local, row.remote) == (to, from);
    }
    let is_here = from.ip().is_loopback() || from.ip() == to.ip();
    match found {
        Some(row) if row.inode == 0 => Peer::Gone,
        Some(row) if row.user == nix::unistd::geteuid().as_raw() => Peer::Own { socket: row.inode },
        Some(row) => Peer::OfUser(row.user),
        // The table has this end only.
        None if own_end && is_here => Peer::Gone,
        None => Peer::Unknown,
    }
}

pub(super) fn listens(port: u16) -> Option<PortListener> {
    let (mut told, mut listeners) = (false, Vec::new());
    for row in rows() {
        told = true;
        let reaches = row.local.ip().is_loopback() || row.local.ip().is_unspecified();
        if row.listens && row.local.port() == port && reaches {
            listeners.push(row.user);
        }
    }
    let own = nix::unistd::geteuid().as_raw();
    let is_another = listeners.iter().any(|user| *user != own);
    told.then_some(match listeners.is_empty() {
        true => PortListener::Nobody,
        false if is_another => PortListener::Another,
        false => PortListener::Own,
    })
}

fn rows() -> impl Iterator<Item = Row> {
    let tables = TABLES.into_iter().filter_map(|table| File::open(table).ok());
    let lines = tables.flat_map(|table| BufReader::new(table).lines().skip(1).map_while(Result::ok));
    lines.filter_map(|line| read(&line))
}

/// Reads a row; the fields are described in `proc(5)`.
fn read(line: &str) -> Option<Row> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote) = (address(fields.next()?)?, address(fields.next()?)?);
    let listens = fields.next()? == LISTENS;
    // The queues, the timer and the retransmissions come before the user, and a timeout after it.
    let user = fields.nth(3)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some(Row { local, remote, listens, user, inode })
}

/// Reads `0100007F:1F90`: words of an address as numbers of this machine, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let mut octets = [0; 16];
            octets.copy_from_slice(words.as_flattened());
            IpAddr::V6(Ipv6Addr::from(octets))
        }
        _ => return None,
    };
    Some(plain(SocketAddr::new(ip, port)))
}

/// Returns an address without its IPv6 form, flow and scope.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn rows_are_read() {
        let check = |line: &str, expected: Option<(&str, &str, bool, u32, u64)>| {
            let expected = expected.map(|(local, remote, listens, user, inode)| Row {
                local: local.parse().expect("an address"),
                remote: remote.parse().expect("an address"),
                listens,
                user,
                inode,
            });
            assert_eq!(read(line), expected, "{line}");
        };
        let rest = "00000000:00000000 00:00000000 00000000";
        check(
            &format!("   1: 0100007F:22E3 00000000:0000 0A {rest}  1000        0 1133 1 0000 100 0 0 10 0"),
            Some(("127.0.0.1:8931", "0.0.0.0:0", true, 1000, 1133)),
        );
        check(
            &format!(
                "1: 0000000000000000FFFF00000100007F:22E3 0000000000000000FFFF00000100007F:C350 01 {rest} 0 0 5 1"
            ),
            Some(("127.0.0.1:8931", "127.0.0.1:50000", false, 0, 5)),
        );
        check(
            &format!(
                "1: 00000000000000000000000001000000:22E3 00000000000000000000000000000000:0000 0A {rest} 7 0 9"
            ),
            Some(("[::1]:8931", "[::]:0", true, 7, 9)),
        );
        for bad in
            ["", "x", "1: 0100007F 0:0 0A", "1: 0100007F:22E3 00000000:0000", "1: é00007F:22E3 0 0 0 0"]
        {
            check(bad, None);
        }
    }

    #[test]
    fn the_other_end_is_known() {
        for bound in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(bound) else { continue };
            let to = listener.local_addr().expect("an address");
            assert_eq!(listens(to.port()), Some(PortListener::Own), "{to}");
            let client = TcpStream::connect(to).expect("it listens");
            let from = client.local_addr().expect("an address");
            let (taken, _) = listener.accept().expect("a client");
            assert!(matches!(peer(from, to), Peer::Own { socket } if socket > 0), "{to}");
            drop(client);
            assert_eq!(peer(from, to), Peer::Gone, "{to}");
            drop((listener, taken));
            assert_eq!(listens(to.port()), Some(PortListener::Nobody), "{to}");
        }
        let elsewhere = "192.0.2.1:5000".parse().expect("an address");
        assert_eq!(peer(elsewhere, "127.0.0.1:1".parse().expect("an address")), Peer::Unknown);
    }
}
