//! The thread that speaks with ClickHouse: one request at a time, each tried until it is answered or withdrawn.
//!
//! Every insert says what it relies on, since defaults differ from server to server: it is synchronous, it is
//! recognized by its token, and its block is one block.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use clickhouse::Client;
use clickhouse::error::Error as StoreError;
use serde::Deserialize;
use strobe_bus::Shutdown;
use strobe_event::Epoch;
use tokio::sync::Notify;

use crate::error::SinkError;
use crate::protocol::{Insert, Inserted};
use crate::stored::Spool;
use crate::tables::Table;
use crate::telemetry::SinkTelemetry;

/// Pause before a request is made again: doubled each time, up to the longest.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(5);

/// Rows of a block at most: ClickHouse cuts larger ones, which are then not stored all or nothing. Its own default.
pub const BLOCK_ROWS_MAX: usize = 1_048_449;

/// Spools asked for at once: a few KiB of SQL.
const SPOOLS_PER_QUERY: usize = 100;

/// Codes of answers that say something of the rows; every other trouble may pass, or is an operator's to heal.
const REJECTIONS: [u32; 16] = [
    6,   // CANNOT_PARSE_TEXT
    26,  // CANNOT_PARSE_QUOTED_STRING
    27,  // CANNOT_PARSE_INPUT_ASSERTION_FAILED
    32,  // ATTEMPT_TO_READ_AFTER_EOF
    33,  // CANNOT_READ_ALL_DATA
    38,  // CANNOT_PARSE_DATE
    41,  // CANNOT_PARSE_DATETIME
    69,  // ARGUMENT_OUT_OF_BOUND
    70,  // CANNOT_CONVERT_TYPE
    117, // INCORRECT_DATA
    131, // TOO_LARGE_STRING_SIZE
    128, // TOO_LARGE_ARRAY_SIZE
    321, // VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE
    395, // FUNCTION_THROW_IF_VALUE_IS_NON_ZERO
    469, // VIOLATED_CONSTRAINT
    691, // UNKNOWN_ELEMENT_OF_ENUM
];

/// What is asked of a spool: the sequences from one on.
#[derive(Debug, Clone)]
pub struct Question {
    /// The spool.
    pub spool: Spool,
    /// From this sequence on.
    pub from: u64,
    /// Up to this one.
    pub to: u64,
}

/// One stored part.
#[derive(Debug, Clone)]
pub struct StoredPart {
    /// The host.
    pub host: String,
    /// The epoch, 32 hexadecimal digits.
    pub epoch: String,
    /// The sequence.
    pub sequence: u64,
    /// The part's number.
    pub part: u32,
    /// Its samples.
    pub samples: u64,
}

enum Job {
    Insert(Insert),
    Ask(Vec<Question>),
}

enum Answer {
    Inserted(Inserted),
    Parts(Vec<StoredPart>),
    Withdrawn,
}

/// What became of a request.
#[derive(Debug)]
pub enum Reply<T> {
    /// It was answered.
    Answered(T),
    /// It was withdrawn; it may or may not have been carried out.
    Withdrawn,
}

/// Which request is withdrawn; they are numbered from 1.
#[derive(Default)]
struct Withdrawn {
    request: AtomicU64,
    changed: Notify,
}

impl Withdrawn {
    async fn wait(&self, request: u64) {
        while self.request.load(Ordering::Acquire) != request {
            self.changed.notified().await;
        }
    }
}

/// The way to the thread.
pub struct Store {
    jobs: SyncSender<(u64, Job)>,
    answers: Receiver<Answer>,
    withdrawn: Arc<Withdrawn>,
    requests: AtomicU64,
}

/// How often one looks after the rest of the world while a request is under way.
const LOOK: Duration = Duration::from_millis(2);

impl Store {
    /// Starts the thread, after the tables were seen to be as they are written.
    ///
    /// # Errors
    /// [`SinkError::Column`] where a table is not; ClickHouse that is away is waited for until the wish to stop.
    pub fn start(
        client: &Client,
        request_time: Duration,
        telemetry: Arc<SinkTelemetry>,
        shutdown: &Shutdown,
    ) -> Result<Self, SinkError> {
        let (jobs, job_queue) = sync_channel(1);
        let (answer_queue, answers) = sync_channel(1);
        let withdrawn = Arc::new(Withdrawn::default());
        let worker = Worker {
            client: client
                .clone()
                .with_setting("async_insert", "0")
                .with_setting("deduplicate_insert", "enable")
                .with_setting("insert_deduplicate", "1")
                .with_setting("max_insert_block_size", BLOCK_ROWS_MAX.to_string())
                .with_setting("min_insert_block_size_rows", BLOCK_ROWS_MAX.to_string()),
            request_time,
            telemetry,
            withdrawn: Arc::clone(&withdrawn),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        worker.wait_until_fit(&runtime, shutdown)?;
        std::thread::Builder::new()
            .name("sink-store".into())
            .spawn(move || {
                while let Ok((request, job)) = job_queue.recv() {
                    let answer = runtime.block_on(worker.carry_out(request, job));
                    if answer_queue.send(answer).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self {
            jobs,
            answers,
            withdrawn,
            requests: AtomicU64::new(0),
        })
    }

    /// Inserts rows. `meanwhile` is called every few milliseconds; when it returns false the request is withdrawn.
    ///
    /// # Errors
    /// [`SinkError::StoreGone`], or what `meanwhile` fails with.
    pub fn insert(
        &self,
        insert: &Insert,
        meanwhile: impl FnMut() -> Result<bool, SinkError>,
    ) -> Result<Reply<Inserted>, SinkError> {
        Ok(match self.request(Job::Insert(insert.clone()), meanwhile)? {
            Answer::Inserted(inserted) => Reply::Answered(inserted),
            _ => Reply::Withdrawn,
        })
    }

    /// Returns what is stored of spools.
    ///
    /// # Errors
    /// As [`Self::insert`].
    pub fn ask(
        &self,
        questions: Vec<Question>,
        meanwhile: impl FnMut() -> Result<bool, SinkError>,
    ) -> Result<Reply<Vec<StoredPart>>, SinkError> {
        Ok(match self.request(Job::Ask(questions), meanwhile)? {
            Answer::Parts(parts) => Reply::Answered(parts),
            _ => Reply::Withdrawn,
        })
    }

    fn request(
        &self,
        job: Job,
        mut meanwhile: impl FnMut() -> Result<bool, SinkError>,
    ) -> Result<Answer, SinkError> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        self.jobs.send((request, job)).map_err(|_| SinkError::StoreGone)?;
        loop {
            match self.answers.recv_timeout(LOOK) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(SinkError::StoreGone),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let goes_on = meanwhile();
            if matches!(goes_on, Ok(true)) {
                continue;
            }
            self.withdrawn.request.store(request, Ordering::Release);
            self.withdrawn.changed.notify_one();
            // The thread gives up at once; its answer must not be taken for that of the next request.
            let answer = self.answers.recv().map_err(|_| SinkError::StoreGone)?;
            return goes_on.map(|_| answer);
        }
    }
}

struct Worker {
    client: Client,
    request_time: Duration,
    telemetry: Arc<SinkTelemetry>,
    withdrawn: Arc<Withdrawn>,
}

#[derive(clickhouse::Row, Deserialize)]
struct Described {
    name: String,
    kind: String,
}

impl Worker {
    fn wait_until_fit(
        &self,
        runtime: &tokio::runtime::Runtime,
        shutdown: &Shutdown,
    ) -> Result<(), SinkError> {
        let mut pause = RETRY_FIRST;
        loop {
            match runtime.block_on(self.check()) {
                Err(SinkError::Store {
                    source: source @ (StoreError::Network(_) | StoreError::TimedOut),
                    ..
                }) if !shutdown.is_requested() => {
                    tracing::warn!(error = %source, ?pause, "ClickHouse does not answer and is waited for");
                    shutdown.wait_timeout(pause);
                    pause = (2 * pause).min(RETRY_LONGEST);
                }
                checked => return checked,
            }
        }
    }

    /// Proves that every table has the columns that are written.
    async fn check(&self) -> Result<(), SinkError> {
        for table in Table::ALL {
            let sql = "SELECT name, type AS kind FROM system.columns WHERE database = currentDatabase() AND table = ?";
            let described = self
                .client
                .query(sql)
                .bind(table.name())
                .fetch_all::<Described>()
                .await;
            let described = described.map_err(|source| SinkError::Store {
                doing: "describe the tables",
                source,
            })?;
            let described: Vec<_> = described
                .into_iter()
                .map(|column| (column.name, column.kind))
                .collect();
            table.check(&described)?;
        }
        Ok(())
    }

    async fn carry_out(&self, request: u64, job: Job) -> Answer {
        let answer = async {
            match job {
                Job::Insert(insert) => Answer::Inserted(self.insert(&insert).await),
                Job::Ask(questions) => Answer::Parts(self.ask(&questions).await),
            }
        };
        tokio::select! {
            answer = answer => answer,
            () = self.withdrawn.wait(request) => Answer::Withdrawn,
        }
    }

    async fn insert(&self, insert: &Insert) -> Inserted {
        let mut pause = RETRY_FIRST;
        loop {
            match self.insert_once(insert).await {
                Ok(()) => {
                    self.telemetry.inserts.add(1);
                    return Inserted::Stored;
                }
                Err(error) if is_rejection(&error) => return Inserted::Rejected(error.to_string()),
                Err(error) => {
                    self.telemetry.insert_retries.add(1);
                    tracing::warn!(%error, table = insert.table.name(), ?pause, "insert is tried again");
                    tokio::time::sleep(pause).await;
                    pause = (2 * pause).min(RETRY_LONGEST);
                }
            }
        }
    }

    async fn insert_once(&self, insert: &Insert) -> Result<(), StoreError> {
        let mut request = self
            .client
            .insert_formatted_with(insert.table.insert_sql())
            .with_setting("insert_deduplication_token", &insert.token)
            .with_timeouts(Some(self.request_time), Some(self.request_time));
        request.send(insert.body.clone()).await?;
        request.end().await
    }

    async fn ask(&self, questions: &[Question]) -> Vec<StoredPart> {
        let mut parts = Vec::new();
        for some in questions.chunks(SPOOLS_PER_QUERY) {
            let mut pause = RETRY_FIRST;
            loop {
                match tokio::time::timeout(self.request_time, self.ask_once(some)).await {
                    Ok(Ok(found)) => {
                        parts.extend(found);
                        break;
                    }
                    Ok(Err(error)) => tracing::warn!(%error, ?pause, "stored sequences are asked for again"),
                    Err(_) => {
                        tracing::warn!(?pause, "stored sequences took too long, and are asked for again")
                    }
                }
                self.telemetry.insert_retries.add(1);
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(RETRY_LONGEST);
            }
        }
        parts
    }

    async fn ask_once(&self, questions: &[Question]) -> Result<Vec<StoredPart>, StoreError> {
        let one = "(host = ? AND epoch = toUUID(?) AND sequence BETWEEN ? AND ?)";
        let sql = format!(
            "SELECT host, replaceAll(toString(epoch), '-', '') AS epoch_text, sequence, part, count() AS samples \
             FROM samples WHERE {} GROUP BY host, epoch, sequence, part",
            vec![one; questions.len()].join(" OR ")
        );
        let mut query = self.client.query(&sql);
        for Question {
            spool: (host, epoch),
            from,
            to,
        } in questions
        {
            query = query.bind(&**host).bind(dashed(*epoch)).bind(from).bind(to);
        }
        #[derive(clickhouse::Row, Deserialize)]
        struct Found {
            host: String,
            epoch_text: String,
            sequence: u64,
            part: u32,
            samples: u64,
        }
        let found = query.fetch_all::<Found>().await?;
        Ok(found
            .into_iter()
            .map(|found| StoredPart {
                host: found.host,
                epoch: found.epoch_text,
                sequence: found.sequence,
                part: found.part,
                samples: found.samples,
            })
            .collect())
    }
}

/// Returns an epoch as ClickHouse reads a UUID.
fn dashed(epoch: Epoch) -> String {
    let text = epoch.to_string();
    format!(
        "{}-{}-{}-{}-{}",
        &text[..8],
        &text[8..12],
        &text[12..16],
        &text[16..20],
        &text[20..]
    )
}

/// Returns whether ClickHouse says that it will never take these rows.
fn is_rejection(error: &StoreError) -> bool {
    let StoreError::BadResponse(text) = error else {
        return false;
    };
    let code = text
        .split_once("Code: ")
        .map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    code.and_then(|code| code.parse().ok())
        .is_some_and(|code: u32| REJECTIONS.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that only answers about rows are rejections: an outage must never send samples to the dead letters.
    #[test]
    fn only_answers_about_rows_are_rejections() {
        let bad = |text: &str| StoreError::BadResponse(text.into());
        assert!(is_rejection(&bad(
            "Code: 469. DB::Exception: Constraint `c` for table t is violated"
        )));
        for text in [
            "Code: 241. DB::Exception: Memory limit",
            "Code: 60. DB::Exception: no table",
            "502 Bad Gateway",
            "",
        ] {
            assert!(!is_rejection(&bad(text)), "{text}");
        }
        assert!(!is_rejection(&StoreError::TimedOut));
    }

    /// Checks the form of a UUID.
    #[test]
    fn epochs_are_written_as_uuids() {
        let epoch = Epoch(*b"\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef");
        assert_eq!(dashed(epoch), "01234567-89ab-cdef-0123-456789abcdef");
    }
}
