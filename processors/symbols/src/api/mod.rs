//! The same answers over HTTP, for tools that are not on the bus: `POST /symbolicate/v5` in the form of Mozilla's symbolication
//! API, which profilers speak that show stacks of addresses.
//!
//! Answers come from symbol files alone: no binary is opened here. How others name binaries and places: [`ids`]. The function
//! of a frame is the one that the machine code belongs to; what was inlined there stands in `inlines`, the innermost first.
//!
//! | bound | value | beyond |
//! |--|--|--|
//! | bytes of a request | 4 MiB | 413 |
//! | jobs, modules, frames of a request | 64, 4,096, 100,000 | 413 |
//! | bytes of a response | 16 MiB | 413 |
//! | connections | 16, for 60 s each | they wait in the kernel |
//! | requests that wait for the one that is answered | 4 | 429 |
//!
//! So a caller that does not read its answer holds 16 MiB for a minute at most, and all of them together 256 MiB.

mod answer;
mod form;
pub mod ids;

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;

use crate::error::SymbolsError;
use crate::fetch::Binaries;
use answer::{Answerer, Refused};

/// Most bytes of a request: 100,000 frames take half of it.
const REQUEST_BYTES_MAX: usize = 4 << 20;
/// Connections at once; one more waits in the kernel.
const CONNECTIONS_MAX: usize = 16;
/// Longest life of a connection, so that whoever sends or reads slowly holds none for long.
const CONNECTION_TIME: Duration = Duration::from_secs(60);
/// Longest wait for a request's headers.
const HEADER_TIME: Duration = Duration::from_secs(5);
/// Requests that are answered or wait for it: one and four.
const REQUESTS_MAX: usize = 5;
/// Longest pause between two looks at whether it is time to stop.
const WAIT: Duration = Duration::from_millis(200);

/// The service.
pub struct Api {
    listener: TcpListener,
    served: Arc<Served>,
}

struct Served {
    answerer: Mutex<Answerer>,
    room: Semaphore,
}

impl Api {
    /// Returns the service of a store on an address.
    ///
    /// # Errors
    /// [`SymbolsError::Listen`] where the address is in use, or not this host's.
    pub fn new(address: SocketAddr, binaries: Binaries) -> Result<Self, SymbolsError> {
        let listen = |source| SymbolsError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let served = Served {
            answerer: Mutex::new(Answerer::new(binaries)),
            room: Semaphore::new(REQUESTS_MAX),
        };
        Ok(Self {
            listener,
            served: Arc::new(served),
        })
    }

    /// Returns where it listens, with the port that was found for port 0.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> Result<SocketAddr, SymbolsError> {
        Ok(self.listener.local_addr()?)
    }

    /// Serves until `stop` says so; it is asked some times a second.
    ///
    /// # Errors
    /// [`SymbolsError::File`] where no thread can be started.
    pub fn run(self, stop: impl Fn() -> bool) -> Result<(), SymbolsError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("symbols-http")
            .enable_all()
            .build()?;
        let Self { listener, served } = self;
        let accepting = runtime.spawn(accept(listener, served));
        while !stop() && !accepting.is_finished() {
            std::thread::sleep(WAIT);
        }
        runtime.shutdown_background();
        Ok(())
    }
}

async fn accept(listener: TcpListener, served: Arc<Served>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "symbols are not served"),
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
                tracing::warn!(%error, "a connection for symbols was refused");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let served = Arc::clone(&served);
        tokio::spawn(async move {
            let _permit = permit;
            let service = service_fn(move |request| {
                let served = Arc::clone(&served);
                async move { Ok::<_, Infallible>(respond(request, served).await) }
            });
            let serving = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIME)
                .serve_connection(TokioIo::new(connection), service);
            // A client that leaves early is its own business.
            let _ = tokio::time::timeout(CONNECTION_TIME, serving).await;
        });
    }
}

async fn respond(request: Request<Incoming>, served: Arc<Served>) -> Response<Full<Bytes>> {
    if request.uri().path() != "/symbolicate/v5" {
        return refuse(StatusCode::NOT_FOUND, "there is POST /symbolicate/v5");
    }
    if request.method() != Method::POST {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "only POST is answered here");
    }
    let Ok(body) = Limited::new(request.into_body(), REQUEST_BYTES_MAX)
        .collect()
        .await
    else {
        let text = format!("the request is over {REQUEST_BYTES_MAX} bytes, or did not end: send it in parts");
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, &text);
    };
    let body = body.to_bytes();
    let Ok(permit) = served.room.try_acquire() else {
        let text = "too many requests wait already: send it again in a moment";
        let mut response = refuse(StatusCode::TOO_MANY_REQUESTS, text);
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from_static("1"));
        return response;
    };
    let working = Arc::clone(&served);
    let answered = tokio::task::spawn_blocking(move || {
        let mut answerer = working.answerer.lock().unwrap_or_else(PoisonError::into_inner);
        answerer.answer(&body)
    });
    let answered = answered.await;
    drop(permit);
    match answered {
        Ok(Ok(answer)) => say(StatusCode::OK, answer.into()),
        Ok(Err(refused)) => {
            let status = match refused {
                Refused::Form(_) => StatusCode::BAD_REQUEST,
                Refused::TooMany { .. } | Refused::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
                Refused::Symbols(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            refuse(status, &refused.to_string())
        }
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn refuse(status: StatusCode, why: &str) -> Response<Full<Bytes>> {
    say(status, serde_json::json!({ "error": why }).to_string().into())
}

fn say(status: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
