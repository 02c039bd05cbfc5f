//! What an operator could fix about the bus, one enum for the crate.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::headers::HeaderError;

/// Why the bus could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key of the configuration holds what cannot work; the text names it and the remedy.
    #[error("{0}")]
    Config(String),
    /// The producer's queue has no room: poll for acknowledgements, then send again.
    #[error("the producer's queue is full")]
    QueueFull,
    /// The message is over what this client sends; no wait will help.
    #[error("message of {bytes} bytes is too large: the client's limit is {limit}")]
    TooLarge {
        /// Bytes of the value.
        bytes: usize,
        /// The limit it is over.
        limit: usize,
    },
    /// The client is of no further use: make a new one and send again from the first unacknowledged message.
    #[error("the producer broke off: {reason}")]
    ProducerBroken {
        /// What librdkafka says of it.
        reason: String,
    },
    /// No broker answered in time.
    #[error(
        "no broker of `{bootstrap}` answered: {source} (is Kafka running, and is `bus.bootstrap` right?)"
    )]
    Unreachable {
        /// The addresses asked.
        bootstrap: String,
        /// What librdkafka says of it.
        source: KafkaError,
    },
    /// A topic is not there.
    #[error("topic `{topic}` does not exist: create it with `strobe topics apply`")]
    TopicMissing {
        /// The topic.
        topic: String,
    },
    /// A header of the bus is missing or not what it should be.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A message that was to be put back was refused by the broker.
    #[error("`{topic}` refused message {opaque}: {reason}")]
    Refused {
        /// The topic.
        topic: String,
        /// Which message of the call.
        opaque: u64,
        /// Why.
        reason: String,
    },
    /// Something did not finish in its time.
    #[error("{doing} did not finish within {seconds} s")]
    TimedOut {
        /// What was being done.
        doing: &'static str,
        /// The bound.
        seconds: u64,
    },
    /// A thread or a signal handler could not be set up.
    #[error("{doing}: {source}")]
    Os {
        /// What was being done.
        doing: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Anything else that Kafka says.
    #[error("{doing}: {source}")]
    Kafka {
        /// What was being done.
        doing: &'static str,
        /// What librdkafka says of it.
        source: KafkaError,
    },
}

impl Error {
    /// Returns whether the same call can succeed later without anybody changing anything here.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::QueueFull | Self::Unreachable { .. } | Self::TimedOut { .. } => true,
            Self::Kafka { source, .. } => source.rdkafka_error_code().is_some_and(is_transient_code),
            _ => false,
        }
    }

    /// Wraps what librdkafka says, with what was being done.
    pub(crate) fn kafka(doing: &'static str) -> impl FnOnce(KafkaError) -> Self {
        move |source| Self::Kafka { doing, source }
    }
}

/// Returns whether `code` passes by itself: the network, an election, a broker that starts.
pub(crate) fn is_transient_code(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::Resolve
            | Code::AllBrokersDown
            | Code::OperationTimedOut
            | Code::TimedOutQueue
            | Code::MessageTimedOut
            | Code::WaitingForCoordinator
            | Code::InProgress
            | Code::RequestTimedOut
            | Code::NetworkException
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::BrokerNotAvailable
            | Code::ReplicaNotAvailable
            | Code::CoordinatorLoadInProgress
            | Code::CoordinatorNotAvailable
            | Code::NotCoordinator
            | Code::NotController
            | Code::NotEnoughReplicas
            | Code::NotEnoughReplicasAfterAppend
            | Code::KafkaStorageError
            | Code::UnknownLeaderEpoch
            | Code::FencedLeaderEpoch
            | Code::OffsetNotAvailable
            | Code::UnstableOffsetCommit
            | Code::ThrottlingQuotaExceeded
    )
}
