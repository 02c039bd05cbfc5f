//! A way to the engine that has faults: it refuses inserts as a server refuses what violates a constraint, or carries
//! them out and loses the answer.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use super::ENGINE_PORT;

/// What becomes of a request, by its head and body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is answered by the engine.
    Answered,
    /// It is refused and never reaches the engine.
    Refused,
    /// The engine carries it out, and nobody hears of it.
    Unheard,
}

/// Starts one, and returns its port. It ends with the test's process.
pub fn start(judge: impl Fn(&str, &[u8]) -> Fate + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let judge = Arc::new(judge);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let judge = Arc::clone(&judge);
            std::thread::spawn(move || {
                let _ = serve(client, &*judge);
            });
        }
    });
    port
}

/// Serves one request and closes.
fn serve(mut client: TcpStream, judge: &dyn Fn(&str, &[u8]) -> Fate) -> std::io::Result<()> {
    let Some((head, body)) = read_request(&mut client)? else {
        return Ok(());
    };
    let fate = judge(&head, &body);
    if fate == Fate::Refused {
        let text = "Code: 469. DB::Exception: Constraint `c` is violated. (VIOLATED_CONSTRAINT)";
        let length = text.len();
        return write!(
            client,
            "HTTP/1.1 400 Bad Request\r\nX-ClickHouse-Exception-Code: 469\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
        );
    }
    let mut engine = TcpStream::connect(("127.0.0.1", ENGINE_PORT))?;
    let (first, rest) = head.split_once("\r\n").unwrap();
    write!(engine, "{first}\r\nConnection: close\r\n{rest}")?;
    engine.write_all(&body)?;
    let mut answer = Vec::new();
    engine.read_to_end(&mut answer)?;
    if fate == Fate::Unheard {
        Ok(())
    } else {
        client.write_all(&answer)
    }
}

/// Reads a request: its head with the empty line, and its body as it came on the wire.
fn read_request(client: &mut TcpStream) -> std::io::Result<Option<(String, Vec<u8>)>> {
    let mut bytes = Vec::new();
    let mut more = |bytes: &mut Vec<u8>| -> std::io::Result<bool> {
        let mut piece = [0; 1 << 16];
        let read = client.read(&mut piece)?;
        bytes.extend_from_slice(&piece[..read]);
        Ok(read > 0)
    };
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if !more(&mut bytes)? {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut body = bytes.split_off(end);
    let lower = head.to_lowercase();
    let length = lower
        .split_once("content-length: ")
        .map(|(_, rest)| rest.split("\r\n").next().unwrap().parse::<usize>().unwrap());
    let is_chunked = lower.contains("transfer-encoding: chunked");
    let is_whole = |body: &[u8]| match length {
        Some(length) => body.len() >= length,
        None => !is_chunked || body.ends_with(b"0\r\n\r\n"),
    };
    while !is_whole(&body) {
        if !more(&mut body)? {
            return Ok(None);
        }
    }
    Ok(Some((head, body)))
}
