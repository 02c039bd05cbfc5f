//! The endpoint: three paths, nothing to change, nothing to wait for.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;

use crate::error::TelemetryError;
use crate::pulse::Health;
use crate::reading::{Reading, Source, exposition};

/// Connections at once: a few who scrape and a few who probe. One more waits in the kernel.
const CONNECTIONS_MAX: usize = 16;
/// Longest life of a connection, so that whoever sends nothing, or slowly, holds none for long.
const CONNECTION_TIME: Duration = Duration::from_secs(30);
/// Longest wait for a request's headers.
const HEADER_TIME: Duration = Duration::from_secs(5);
/// Bytes of a request's head: more than any client of ours sends. The least that hyper takes.
const HEADER_BYTES_MAX: usize = 8_192;
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// Where the endpoint listens, proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admin(SocketAddr);

impl Admin {
    /// Returns the endpoint of an address as configured under `key`; none where it is empty.
    ///
    /// # Errors
    /// [`TelemetryError::Address`].
    pub fn parse(key: &'static str, value: &str) -> Result<Option<Self>, TelemetryError> {
        if value.trim().is_empty() {
            return Ok(None);
        }
        match value.trim().parse() {
            Ok(address) => Ok(Some(Self(address))),
            Err(_) => Err(TelemetryError::Address {
                key,
                value: value.to_owned(),
            }),
        }
    }

    /// Returns where it listens.
    pub fn address(self) -> SocketAddr {
        self.0
    }

    /// Serves from a thread of its own, until the process ends. Returns the address, with the port that was found for port 0.
    ///
    /// # Errors
    /// [`TelemetryError::Listen`], [`TelemetryError::Thread`].
    pub fn serve(self, source: Arc<dyn Source>, health: Health) -> Result<SocketAddr, TelemetryError> {
        let listen = |source| TelemetryError::Listen {
            address: self.0,
            source,
        };
        let listener = TcpListener::bind(self.0).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let started = |source| TelemetryError::Thread { source };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(started)?;
        let served = Arc::new(Served { source, health });
        thread::Builder::new()
            .name("metrics".into())
            .spawn(move || runtime.block_on(accept(listener, served)))
            .map_err(started)?;
        tracing::info!(%address, "metrics are served");
        Ok(address)
    }
}

struct Served {
    source: Arc<dyn Source>,
    health: Health,
}

async fn accept(listener: TcpListener, served: Arc<Served>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "metrics are not served"),
    };
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Never closed, so there is always a permit some time.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let connection = match listener.accept().await {
            Ok((connection, _)) => connection,
            // Such as too many open files: of the process, which goes on.
            Err(error) => {
                tracing::warn!(%error, "a connection for metrics was refused");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let served = Arc::clone(&served);
        tokio::spawn(async move {
            let _permit = permit;
            let service = service_fn(move |request| {
                let served = Arc::clone(&served);
                async move { Ok::<_, Infallible>(answer(&request, &served).await) }
            });
            let serving = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIME)
                .max_buf_size(HEADER_BYTES_MAX)
                .serve_connection(TokioIo::new(connection), service);
            // A client that leaves early is its own business.
            let _ = tokio::time::timeout(CONNECTION_TIME, serving).await;
        });
    }
}

async fn answer(request: &Request<Incoming>, served: &Arc<Served>) -> Response<Full<Bytes>> {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return say(
            StatusCode::METHOD_NOT_ALLOWED,
            TEXT,
            "only GET is answered here\n".into(),
        );
    }
    match request.uri().path() {
        "/metrics" => {
            let mut readings = served.source.readings();
            readings.extend(own(&served.health));
            say(StatusCode::OK, OPEN_METRICS, exposition(readings))
        }
        "/-/healthy" => judge(served.health.check()),
        "/-/ready" => {
            let source = Arc::clone(&served.source);
            // It may ask the bus or the store, which takes its time.
            let ready = tokio::task::spawn_blocking(move || source.ready()).await;
            judge(ready.unwrap_or_else(|error| Err(error.to_string())))
        }
        _ => say(
            StatusCode::NOT_FOUND,
            TEXT,
            "there is /metrics, /-/healthy and /-/ready\n".into(),
        ),
    }
}

/// Returns what every process has.
fn own(health: &Health) -> Vec<Reading> {
    let mut readings: Vec<Reading> = health
        .ages()
        .map(|(part, age)| Reading {
            name: "strobe_heartbeat_age_seconds",
            label: part,
            value: age.as_secs_f64(),
        })
        .collect();
    readings.push(Reading::labelled(
        "strobe_build_info",
        env!("CARGO_PKG_VERSION"),
        1,
    ));
    readings
}

fn judge(verdict: Result<(), String>) -> Response<Full<Bytes>> {
    match verdict {
        Ok(()) => say(StatusCode::OK, TEXT, "ok\n".into()),
        Err(why) => say(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
    }
}

fn say(status: StatusCode, kind: HeaderValue, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;
    use crate::{Pulse, probe};

    struct Fake(Result<(), String>);

    impl Source for Fake {
        fn readings(&self) -> Vec<Reading> {
            vec![Reading::of("strobe_sink_samples_total", 42)]
        }

        fn ready(&self) -> Result<(), String> {
            self.0.clone()
        }
    }

    fn serve(ready: Result<(), &str>, health: Health) -> Admin {
        let admin = Admin::parse("admin", "127.0.0.1:0").unwrap().unwrap();
        let source = Arc::new(Fake(ready.map_err(str::to_owned)));
        Admin(admin.serve(source, health).unwrap())
    }

    fn ask(admin: Admin, request: &str) -> String {
        let mut stream = TcpStream::connect(admin.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Checks that metrics are served with their type, that only reading is answered, and that other paths are named.
    #[test]
    fn three_paths_are_served_and_no_other() {
        let admin = serve(Ok(()), Health::default());
        let text = ask(admin, "GET /metrics HTTP/1.0\r\n\r\n");
        assert!(text.starts_with("HTTP/1.0 200"), "{text}");
        assert!(text.contains("application/openmetrics-text"), "{text}");
        assert!(text.contains("\nstrobe_sink_samples_total 42.0\n"), "{text}");
        assert!(text.contains("\nstrobe_build_info{version="), "{text}");
        assert!(ask(admin, "POST /-/ready HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 405"));
        assert!(ask(admin, "GET /secrets HTTP/1.0\r\n\r\n").contains("/-/healthy"));
        assert!(ask(admin, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
    }

    /// Checks that not ready and not healthy are told apart, each with its reason.
    #[test]
    fn ready_and_healthy_are_two_questions() {
        let pulse = Arc::new(Pulse::default());
        pulse.beat();
        let stands = Health::default().with("reading", Duration::ZERO, pulse);
        std::thread::sleep(Duration::from_millis(5));
        let admin = serve(Ok(()), stands);
        assert_eq!(probe(admin, "/-/ready"), Ok(()));
        assert_eq!(
            probe(admin, "/-/healthy").unwrap_err(),
            "reading has not moved for 0 s"
        );
        let admin = serve(Err("the bus is away"), Health::default());
        assert_eq!(probe(admin, "/-/healthy"), Ok(()));
        assert_eq!(probe(admin, "/-/ready").unwrap_err(), "the bus is away");
    }

    /// Checks that an endpoint is off where no address is given, and that a mistake is named with its key.
    #[test]
    fn addresses_are_proved() {
        assert_eq!(Admin::parse("admin", " ").unwrap(), None);
        let error = Admin::parse("admin.sink", "localhost").unwrap_err().to_string();
        assert!(
            error.starts_with("`admin.sink` is `localhost`: write it as"),
            "{error}"
        );
    }

    /// Checks that a client that sends nothing keeps nobody else from an answer, however many such there are.
    #[test]
    fn silent_clients_do_not_keep_others_waiting() {
        let admin = serve(Ok(()), Health::default());
        let silent: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| TcpStream::connect(admin.address()).unwrap())
            .collect();
        let began = std::time::Instant::now();
        let text = ask(admin, "GET /-/healthy HTTP/1.0\r\n\r\n");
        assert!(text.starts_with("HTTP/1.0 200"), "{text}");
        assert!(began.elapsed() < HEADER_TIME + Duration::from_secs(5));
        drop(silent);
    }
}
