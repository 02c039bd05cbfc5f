//! Requests to the bus, and what is said of them from it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use strobe_bus::{
    BusSettings, Headers, Message, Outcome, Outgoing, ResendingProducer, Tail, Topic, WindowFull,
    WindowLimits,
};
use strobe_event::{Request, RequestId, RequestState, SignedRequest, codec};
use strobe_signing::{Namespace, sign_with_ssh_keygen};

use crate::config::Config;
use crate::error::CliError;

/// How long the bus may take to acknowledge a request.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(30);

/// What is heard on the bus.
#[derive(Debug)]
pub enum Heard {
    /// Somebody asks, or cancels; the broker took it then, microseconds since 1970.
    Asked(Box<SignedRequest>, u64),
    /// The trigger says what became of a request.
    State(Box<RequestState>),
}

/// Somebody who asks.
pub struct Asker {
    bus: BusSettings,
    tail: Tail,
    key: Option<PathBuf>,
}

impl Asker {
    /// Returns one that hears what was said since, microseconds since 1970.
    ///
    /// # Errors
    /// [`CliError::Bus`].
    pub fn open(config: &Config, key: Option<&Path>, since_us: u64) -> Result<Self, CliError> {
        let bus = config.bus()?.with_client_id("strobe-asker").prompt();
        let topic = bus.topic(Topic::Requests);
        let tail = Tail::open(&bus, &topic, (since_us / 1_000) as i64)?;
        let key = key_of(config, key);
        Ok(Self { bus, tail, key })
    }

    /// Signs a request and puts it on the bus; returns when the broker has it.
    ///
    /// # Errors
    /// [`CliError::Bus`], and [`CliError::Usage`] where it cannot be signed.
    pub fn ask(&self, request: &Request) -> Result<(), CliError> {
        let unusable = |error: &dyn std::fmt::Display| CliError::Usage(error.to_string());
        request.validate().map_err(|error| unusable(&error))?;
        let payload = codec::encode_framed(request).map_err(|error| unusable(&error))?;
        let signed = SignedRequest {
            id: request.id,
            signature: self.sign(&payload)?,
            payload,
        };
        let topic = self.bus.topic(Topic::Requests);
        let message = Outgoing {
            topic: topic.as_str().into(),
            key: Some(request.id.0.to_vec().into()),
            headers: Headers::new(),
            payload: Some(
                codec::encode_framed(&signed)
                    .map_err(|error| unusable(&error))?
                    .into(),
            ),
        };
        let mut producer = ResendingProducer::new(&self.bus, WindowLimits::default())?;
        if let Err(WindowFull(_)) = producer.push(1, message) {
            return Err(CliError::Usage("the request is too large for the bus".into()));
        }
        for outcome in producer.flush(ACKNOWLEDGED_WITHIN) {
            if let Outcome::Refused { reason, opaque, .. } = outcome {
                return Err(strobe_bus::Error::Refused {
                    topic,
                    opaque,
                    reason,
                }
                .into());
            }
        }
        if producer.under_way() > 0 {
            return Err(strobe_bus::Error::TimedOut {
                doing: "asking",
                seconds: ACKNOWLEDGED_WITHIN.as_secs(),
            }
            .into());
        }
        Ok(())
    }

    fn sign(&self, payload: &[u8]) -> Result<Vec<u8>, CliError> {
        let key = self.key.as_deref().ok_or_else(no_key)?;
        Ok(sign_with_ssh_keygen(key, Namespace::Request, payload)?.into_bytes())
    }

    /// Hands over what is said within `wait`; returns after the first pause.
    ///
    /// # Errors
    /// [`CliError::Bus`].
    pub fn listen(&mut self, wait: Duration, mut take: impl FnMut(RequestId, Heard)) -> Result<(), CliError> {
        Ok(self.tail.poll(wait, |message| {
            if let Some((id, heard)) = heard(&message) {
                take(id, heard);
            }
        })?)
    }

    /// Hands over all that has been said.
    ///
    /// # Errors
    /// [`CliError::Bus`].
    pub fn catch_up(&mut self, mut take: impl FnMut(RequestId, Heard)) -> Result<(), CliError> {
        Ok(self.tail.catch_up(|message| {
            if let Some((id, heard)) = heard(&message) {
                take(id, heard);
            }
        })?)
    }
}

/// Returns the key to sign with: the one that was named, else the configured one, else the one that people usually have.
pub fn key_of(config: &Config, named: Option<&Path>) -> Option<PathBuf> {
    let configured = (!config.ask.key.as_os_str().is_empty()).then_some(config.ask.key.as_path());
    named.or(configured).map(home).or_else(usual_key)
}

/// Returns what to say where there is none.
pub fn no_key() -> CliError {
    CliError::Usage(
        "it must be signed, and there is no key: name one by --key, STROBE_KEY or `ask.key` (`ssh-keygen -t ed25519` makes one; the \
         files of signers must have its public half)"
            .into(),
    )
}

fn heard(message: &Message) -> Option<(RequestId, Heard)> {
    let taken_us = message.taken_us();
    let (schema, _) = codec::unframe(message.bytes()).ok()?;
    match schema {
        codec::SCHEMA_ID_SIGNED_REQUEST => {
            let signed: SignedRequest = codec::decode_framed(message.bytes()).ok()?;
            Some((signed.id, Heard::Asked(Box::new(signed), taken_us)))
        }
        codec::SCHEMA_ID_REQUEST_STATE => {
            let state: RequestState = codec::decode_framed(message.bytes()).ok()?;
            Some((state.id, Heard::State(Box::new(state))))
        }
        _ => None,
    }
}

/// Returns a path whose `~/` is the home folder.
fn home(path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), std::env::var_os("HOME")) {
        (Ok(rest), Some(home)) => Path::new(&home).join(rest),
        _ => path.to_owned(),
    }
}

/// Returns the key that people usually have, if it is there.
fn usual_key() -> Option<PathBuf> {
    let key = home(Path::new("~/.ssh/id_ed25519"));
    key.exists().then_some(key)
}
