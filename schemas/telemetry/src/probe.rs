//! Asking an endpoint from outside: for health checks of containers, which have no other tool for it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::admin::Admin;

/// Longest wait for each step: what a health check may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// What is read of an answer: the status, and a sentence.
const ANSWER_BYTES_MAX: u64 = 4_096;

/// Asks `path` of an endpoint on this host.
///
/// # Errors
/// What it answers where that is not "ok", or why it does not.
pub fn probe(admin: Admin, path: &str) -> Result<(), String> {
    let mut address = admin.address();
    // Where it listens everywhere, it is also here.
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    let trouble = |error: std::io::Error| format!("nothing answers on {address}: {error}");
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(trouble)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(trouble)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(trouble)?;
    write!(stream, "GET {path} HTTP/1.0\r\nConnection: close\r\n\r\n").map_err(trouble)?;
    let mut answer = Vec::new();
    stream
        .take(ANSWER_BYTES_MAX)
        .read_to_end(&mut answer)
        .map_err(trouble)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, text) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split_whitespace().nth(1) {
        Some("200") => Ok(()),
        Some(_) if !text.trim().is_empty() => Err(text.trim().to_owned()),
        _ => Err(format!("{address} answers something else than health")),
    }
}
