//! The endpoint: one path, to which Alertmanager posts.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use strobe_bus::{
    BusSettings, Headers, Outcome, Outgoing, ResendingProducer, Shutdown, Topic, WindowFull, WindowLimits,
};
use strobe_event::{Alert, codec};
use strobe_telemetry::Pulse;
use tokio::sync::{Mutex, Semaphore};

use crate::config::Settings;
use crate::error::AlertsError;
use crate::webhook;

/// Bytes of a message: 10,000 alerts of a good kilobyte.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// Connections at once: the Alertmanagers of a cluster, each with a few.
const CONNECTIONS_MAX: usize = 16;
/// Longest life of a connection.
const CONNECTION_TIME: Duration = Duration::from_secs(60);
/// Longest wait for a request's headers, and for its body.
const READ_TIME: Duration = Duration::from_secs(10);
/// How long the bus may take: below the ten seconds after which Alertmanager gives up and sends again.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(8);
/// How late a wish to stop is seen.
const LOOK: Duration = Duration::from_millis(200);

/// The webhook, listening.
pub struct Served {
    listener: TcpListener,
    bus: BusSettings,
    address: SocketAddr,
}

impl Served {
    /// Listens; nothing is answered before [`Served::run`].
    ///
    /// # Errors
    /// [`AlertsError::Listen`].
    pub fn listen(settings: &Settings) -> Result<Self, AlertsError> {
        let failed = |source| AlertsError::Listen {
            address: settings.listen,
            source,
        };
        let listener = TcpListener::bind(settings.listen).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let bus = settings.bus.clone().with_client_id("strobe-alerts").prompt();
        Ok(Self {
            listener,
            bus,
            address,
        })
    }

    /// Returns where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until the wish to stop.
    ///
    /// # Errors
    /// [`AlertsError::Start`] and [`AlertsError::Bus`], where it cannot.
    pub fn run(self, shutdown: &Shutdown, pulse: &Pulse) -> Result<(), AlertsError> {
        let to_bus = ToBus {
            producer: Mutex::new(ResendingProducer::new(&self.bus, WindowLimits::default())?),
            topic: self.bus.topic(Topic::Alerts).as_str().into(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(AlertsError::Start)?;
        tracing::info!(address = %self.address, "alerts are taken at POST /webhook");
        let _entered = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(self.listener).map_err(AlertsError::Start)?;
        runtime.spawn(accept(listener, Arc::new(to_bus)));
        runtime.block_on(async {
            while !shutdown.is_requested() {
                pulse.beat();
                tokio::time::sleep(LOOK).await;
            }
        });
        Ok(())
    }
}

/// Takes alerts until the wish to stop.
///
/// # Errors
/// [`AlertsError`].
pub fn run(settings: &Settings, shutdown: &Shutdown, pulse: &Pulse) -> Result<(), AlertsError> {
    Served::listen(settings)?.run(shutdown, pulse)
}

struct ToBus {
    producer: Mutex<ResendingProducer>,
    topic: Arc<str>,
}

async fn accept(listener: tokio::net::TcpListener, to_bus: Arc<ToBus>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Never closed, so there is always a permit some time.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let connection = match listener.accept().await {
            Ok((connection, _)) => connection,
            Err(error) => {
                tracing::warn!(%error, "a connection was refused");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let to_bus = Arc::clone(&to_bus);
        tokio::spawn(async move {
            let _permit = permit;
            let service = service_fn(move |request| {
                let to_bus = Arc::clone(&to_bus);
                async move { Ok::<_, Infallible>(answer(request, &to_bus).await) }
            });
            let serving = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(READ_TIME)
                .serve_connection(TokioIo::new(connection), service);
            // A client that leaves early is its own business.
            let _ = tokio::time::timeout(CONNECTION_TIME, serving).await;
        });
    }
}

async fn answer(request: Request<Incoming>, to_bus: &ToBus) -> Response<Full<Bytes>> {
    if request.uri().path() != "/webhook" {
        return say(StatusCode::NOT_FOUND, "there is POST /webhook\n");
    }
    if request.method() != Method::POST {
        return say(StatusCode::METHOD_NOT_ALLOWED, "only POST is answered here\n");
    }
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
    let body = match tokio::time::timeout(READ_TIME, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) => return say(StatusCode::PAYLOAD_TOO_LARGE, &format!("{error}\n")),
        Err(_) => return say(StatusCode::REQUEST_TIMEOUT, "the message did not come\n"),
    };
    let alerts = match webhook::read(&body) {
        Ok(alerts) => alerts,
        Err(error) => {
            tracing::warn!(%error, "a message is refused");
            return say(StatusCode::BAD_REQUEST, &format!("{error}\n"));
        }
    };
    match to_bus.send(&alerts).await {
        Ok(()) => say(StatusCode::OK, &format!("{} alerts\n", alerts.len())),
        Err(why) => {
            tracing::warn!(
                why,
                alerts = alerts.len(),
                "alerts are not on the bus; they are sent again"
            );
            say(StatusCode::SERVICE_UNAVAILABLE, &format!("{why}\n"))
        }
    }
}

impl ToBus {
    /// Puts alerts on the bus; returns when the broker has all of them.
    async fn send(&self, alerts: &[Alert]) -> Result<(), String> {
        // One message at a time: what is acknowledged then is its own.
        let mut producer = self.producer.lock().await;
        let deadline = tokio::time::Instant::now() + ACKNOWLEDGED_WITHIN;
        for alert in alerts {
            let mut message = Outgoing {
                topic: Arc::clone(&self.topic),
                key: Some(alert.fingerprint.clone().into()),
                headers: Headers::new(),
                payload: Some(
                    codec::encode_framed(alert)
                        .map_err(|error| error.to_string())?
                        .into(),
                ),
            };
            while let Err(WindowFull(back)) = producer.push(0, message) {
                message = back;
                taken(&mut producer)?;
                wait(deadline).await?;
            }
        }
        while producer.under_way() > 0 {
            taken(&mut producer)?;
            if producer.under_way() > 0 {
                wait(deadline).await?;
            }
        }
        Ok(())
    }
}

/// Takes acknowledgements.
fn taken(producer: &mut ResendingProducer) -> Result<(), String> {
    let refused = producer
        .poll(Duration::ZERO)
        .into_iter()
        .find_map(|outcome| match outcome {
            Outcome::Refused { reason, .. } => Some(reason),
            _ => None,
        });
    refused.map_or(Ok(()), |reason| {
        Err(format!("the broker refuses an alert: {reason}"))
    })
}

async fn wait(deadline: tokio::time::Instant) -> Result<(), String> {
    if tokio::time::Instant::now() >= deadline {
        return Err(format!(
            "the bus has not taken it within {} s",
            ACKNOWLEDGED_WITHIN.as_secs()
        ));
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    Ok(())
}

fn say(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text.to_owned()));
    *response.status_mut() = status;
    response
}
