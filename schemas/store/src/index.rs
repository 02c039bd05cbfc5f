//! What a store knows of each binary: wanted, uploaded, being converted, ready, failed.
//!
//! There is no index beside the objects: the objects are the index, so that it cannot differ from them, and any number
//! of services share it. For each binary there may be, under `<kind>/<build id>/`:
//!
//! | object | written by | meaning |
//! |--|--|--|
//! | `executable`, `debuginfo`, `package` | agents, build pipelines | what symbols can be made of |
//! | `symbols.v<version>` | whoever converts | the symbol file |
//! | `claim.<n>` | whoever converts | the `n`th attempt is under way, or was; made by one alone |
//! | `failed.json` | whoever converts | why the last attempt gave nothing, and when to try again |
//! | `wanted.json` | processors | frames of it were seen, and nothing to name them by was there |

use futures::TryStreamExt;
use object_store::{ObjectMeta, ObjectStoreExt, PutMode, PutOptions, path};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use strobe_event::{BinaryKind, BuildId};

use crate::error::StoreError;
use crate::store::{BinaryKey, Store};

/// Longest record that is read: some short texts and numbers. Whoever can upload can also lay a longer one there.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// Why no symbol file could be made of a binary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The reason's name, as frames bear it.
    pub reason: String,
    /// The same for people.
    pub detail: String,
    /// Attempts so far.
    pub attempts: u32,
    /// When the last one ended, in unix seconds.
    pub at: u64,
    /// When the next one is due, in unix seconds.
    pub retry_at: u64,
}

/// That frames of a binary were seen which nothing could name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// When it was first missed, in unix seconds.
    pub since: u64,
    /// Where a host has it.
    pub path: String,
    /// The host.
    pub host: String,
}

/// An object of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// Its length.
    pub bytes: u64,
    /// When it was written, in unix milliseconds, as finely as the store says it.
    pub modified_ms: u64,
}

/// What the store has of one binary.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holding {
    /// The binary.
    pub executable: Option<Object>,
    /// Its separate debug information.
    pub debuginfo: Option<Object>,
    /// What was split off from its debug information.
    pub package: Option<Object>,
    /// Its symbol file, of the version that was asked for.
    pub symbols: Option<Object>,
    /// The last attempt's number, and when it began, in unix milliseconds.
    pub claim: Option<(u32, u64)>,
    /// An attempt failed.
    pub failed: Option<Object>,
    /// It was missed.
    pub wanted: Option<Object>,
}

/// How far a binary is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Frames of it were seen; it is not there.
    Wanted,
    /// It is there, and nobody has begun with it.
    Uploaded,
    /// Somebody makes its symbol file.
    Converting,
    /// Its symbol file is there.
    Ready,
    /// No symbol file could be made of it.
    Failed,
}

impl State {
    /// Returns the state's name in tables and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wanted => "wanted",
            Self::Uploaded => "uploaded",
            Self::Converting => "converting",
            Self::Ready => "ready",
            Self::Failed => "failed",
        }
    }
}

impl Holding {
    /// Returns how far the binary is. An attempt that began longer ago than `stale` is taken for dead.
    pub fn state(&self, now: u64, stale: Duration) -> State {
        let since = |at_ms: u64| Duration::from_millis((now * 1_000).saturating_sub(at_ms));
        if self.symbols.is_some() {
            return State::Ready;
        }
        // The record of a failure is written when its attempt ends, so a later claim is a new attempt.
        let ended = self.failed.map_or(0, |failed| failed.modified_ms);
        match self.claim {
            Some((_, began)) if began > ended && since(began) < stale => return State::Converting,
            _ => {}
        }
        let has_source = self.executable.is_some() || self.debuginfo.is_some();
        match (self.failed, has_source) {
            (Some(_), _) => State::Failed,
            (None, true) => State::Uploaded,
            (None, false) => State::Wanted,
        }
    }

    /// Returns whether a better symbol file may be made than the one that is there: of a source that came after the last
    /// attempt began, or because the last attempt to do so failed.
    pub fn is_outdated(&self) -> bool {
        let Some(symbols) = self.symbols else { return false };
        let sources = [self.executable, self.debuginfo, self.package];
        let newest = sources.iter().flatten().map(|source| source.modified_ms).max();
        let read = self.claim.map_or(symbols.modified_ms, |(_, began)| began);
        newest.is_some_and(|newest| newest >= read)
            || self
                .failed
                .is_some_and(|failed| failed.modified_ms > symbols.modified_ms)
    }

    fn add(&mut self, name: &str, meta: &ObjectMeta, version: u32) {
        let modified_ms = u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0);
        let object = Some(Object {
            bytes: meta.size,
            modified_ms,
        });
        match name {
            "executable" => self.executable = object,
            "debuginfo" => self.debuginfo = object,
            "package" => self.package = object,
            "failed.json" => self.failed = object,
            "wanted.json" => self.wanted = object,
            _ if name == symbols_name(version) => self.symbols = object,
            _ => {
                let claim = name.strip_prefix("claim.").and_then(|number| number.parse().ok());
                if let Some(number) = claim.filter(|&number| self.claim.is_none_or(|(last, _)| number > last))
                {
                    self.claim = Some((number, modified_ms));
                }
            }
        }
    }
}

fn symbols_name(version: u32) -> String {
    format!("symbols.v{version}")
}

/// Returns the time in unix seconds.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

impl BinaryKey {
    /// Returns the key whose folder in a store is named so; nothing for what is no key.
    pub fn from_folder(kind: &str, id: &str) -> Option<Self> {
        const KINDS: [BinaryKind; 6] = [
            BinaryKind::Gnu,
            BinaryKind::Go,
            BinaryKind::FileHash,
            BinaryKind::Kernel,
            BinaryKind::KernelModule,
            BinaryKind::Vdso,
        ];
        let kind = KINDS.into_iter().find(|&known| Self::name_of(known) == kind)?;
        Self::from_digits(kind, id)
    }

    /// Returns the key of a kind whose build id is written so, in hexadecimal digits; nothing for what is no build id.
    pub fn from_digits(kind: BinaryKind, id: &str) -> Option<Self> {
        let digits = id.as_bytes().chunks(2).map(|pair| {
            let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
            u8::from_str_radix(pair, 16).ok()
        });
        let id = BuildId::new(&digits.collect::<Option<Vec<_>>>()?)?;
        Some(Self { kind, id })
    }

    /// Returns the object that holds the symbol file in a version of its format.
    pub fn symbols(&self, version: u32) -> String {
        self.object(&symbols_name(version))
    }

    /// Returns the object that holds what was split off from the debug information.
    pub fn package(&self) -> String {
        self.object("package")
    }
}

impl Store {
    /// Returns what the store has of one binary; `version` is that of the symbol files.
    ///
    /// # Errors
    /// [`StoreError::Store`] where the store does not answer.
    pub async fn holding(&self, key: &BinaryKey, version: u32) -> Result<Holding, StoreError> {
        let folder = key.object("");
        let folder = folder.trim_end_matches('/');
        let prefix = path::Path::from(folder);
        let mut objects = self.objects().list(Some(&prefix));
        let mut holding = Holding::default();
        while let Some(meta) = objects.try_next().await.map_err(listing(folder))? {
            if let Some(name) = meta.location.filename() {
                holding.add(name, &meta, version);
            }
        }
        Ok(holding)
    }

    /// Returns what the store has of every binary.
    ///
    /// # Errors
    /// [`StoreError::Store`] where the store does not answer.
    pub async fn holdings(&self, version: u32) -> Result<BTreeMap<BinaryKey, Holding>, StoreError> {
        let mut objects = self.objects().list(None);
        let mut holdings: BTreeMap<BinaryKey, Holding> = BTreeMap::new();
        while let Some(meta) = objects.try_next().await.map_err(listing(""))? {
            let parts: Vec<_> = meta.location.parts().collect();
            if let [kind, id, name] = parts.as_slice()
                && let Some(key) = BinaryKey::from_folder(kind.as_ref(), id.as_ref())
            {
                holdings
                    .entry(key)
                    .or_default()
                    .add(name.as_ref(), &meta, version);
            }
        }
        Ok(holdings)
    }

    /// Returns why the last attempt at a binary failed, if it did.
    ///
    /// # Errors
    /// [`StoreError::Store`] where the store does not answer.
    pub async fn failure(&self, key: &BinaryKey) -> Result<Option<Failure>, StoreError> {
        self.record(key.object("failed.json")).await
    }

    /// Records why an attempt at a binary failed.
    ///
    /// # Errors
    /// [`StoreError::Store`] where the store does not take it.
    pub async fn set_failure(&self, key: &BinaryKey, failure: &Failure) -> Result<(), StoreError> {
        self.set_record(key.object("failed.json"), failure, PutMode::Overwrite)
            .await
    }

    /// Returns since when a binary is wanted, if it is.
    ///
    /// # Errors
    /// [`StoreError::Store`] where the store does not answer.
    pub async fn wanted(&self, key: &BinaryKey) -> Result<Option<Wanted>, StoreError> {
        self.record(key.object("wanted.json")).await
    }

    /// Records that a binary is wanted, unless that is recorded.
    ///
    /// # Errors
    /// [`StoreError::Store`] where the store does not take it.
    pub async fn set_wanted(&self, key: &BinaryKey, wanted: &Wanted) -> Result<(), StoreError> {
        match self
            .set_record(key.object("wanted.json"), wanted, PutMode::Create)
            .await
        {
            Err(StoreError::Store {
                source: object_store::Error::AlreadyExists { .. },
                ..
            }) => Ok(()),
            other => other,
        }
    }

    async fn record<T: for<'a> Deserialize<'a>>(&self, object: String) -> Result<Option<T>, StoreError> {
        let failed = |source| StoreError::Store {
            what: "reading",
            object: object.clone(),
            source,
        };
        let got = match self.objects().get(&path::Path::from(object.as_str())).await {
            Ok(got) => got,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(source) => return Err(failed(source)),
        };
        // A record that somebody else's version wrote, or a hand, is as good as none: the next attempt writes it anew.
        if got.meta.size > RECORD_BYTES_MAX {
            return Ok(None);
        }
        Ok(serde_json::from_slice(&got.bytes().await.map_err(failed)?).ok())
    }

    async fn set_record(
        &self,
        object: String,
        record: &impl Serialize,
        mode: PutMode,
    ) -> Result<(), StoreError> {
        let bytes = serde_json::to_vec(record).map_err(|error| StoreError::Read {
            object: object.clone(),
            source: error.into(),
        })?;
        let options = PutOptions {
            mode,
            ..PutOptions::default()
        };
        let put = self
            .objects()
            .put_opts(&path::Path::from(object.as_str()), bytes.into(), options)
            .await;
        put.map(drop).map_err(|source| StoreError::Store {
            what: "writing",
            object,
            source,
        })
    }
}

pub(crate) fn listing(folder: &str) -> impl Fn(object_store::Error) -> StoreError {
    let object = if folder.is_empty() {
        "all of it".to_owned()
    } else {
        folder.to_owned()
    };
    move |source| StoreError::Store {
        what: "listing",
        object: object.clone(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;
    use std::sync::Arc;

    const STALE: Duration = Duration::from_secs(60);

    fn key() -> BinaryKey {
        BinaryKey {
            kind: BinaryKind::Gnu,
            id: BuildId::new(&[0xab, 0x01]).unwrap(),
        }
    }

    async fn put(store: &Store, name: &str) {
        let object = path::Path::from(key().object(name));
        store.objects().put(&object, b"x".to_vec().into()).await.unwrap();
    }

    async fn state(store: &Store) -> State {
        let holding = store.holding(&key(), 1).await.unwrap();
        assert_eq!(
            store
                .holdings(1)
                .await
                .unwrap()
                .get(&key())
                .cloned()
                .unwrap_or_default(),
            holding
        );
        holding.state(now(), STALE)
    }

    /// Checks that a claim of the highest number, which anybody who can upload may lay, stops nothing but that binary.
    #[tokio::test]
    async fn a_claim_of_the_highest_number_ends_nobody() {
        let store = Store::on(Arc::new(InMemory::new()));
        put(&store, "executable").await;
        put(&store, &format!("claim.{}", u32::MAX)).await;
        assert_eq!(state(&store).await, State::Converting);
        assert!(!store.claim(&key(), Some(u32::MAX), "me").await.unwrap());
    }

    /// Checks a binary's way from wanted to ready, in a folder and in a store that is none.
    #[tokio::test]
    async fn a_binary_goes_from_wanted_to_ready() {
        let folder = tempfile::tempdir().unwrap();
        for store in [
            Store::on(Arc::new(InMemory::new())),
            Store::in_folder(folder.path()).unwrap(),
        ] {
            let wanted = Wanted {
                since: 1,
                path: "/bin/x".to_owned(),
                host: "host".to_owned(),
            };
            store.set_wanted(&key(), &wanted).await.unwrap();
            store
                .set_wanted(
                    &key(),
                    &Wanted {
                        since: 2,
                        ..wanted.clone()
                    },
                )
                .await
                .unwrap();
            assert_eq!(
                store.wanted(&key()).await.unwrap(),
                Some(wanted),
                "the first one stays"
            );
            assert_eq!(state(&store).await, State::Wanted);
            put(&store, "executable").await;
            assert_eq!(state(&store).await, State::Uploaded);
            assert!(store.claim(&key(), None, "me").await.unwrap());
            assert_eq!(state(&store).await, State::Converting);
            put(&store, "symbols.v2").await;
            assert_eq!(state(&store).await, State::Converting, "of another version");
            put(&store, "symbols.v1").await;
            assert_eq!(state(&store).await, State::Ready);
        }
    }

    /// Checks that of many that claim an attempt at once one alone gets it, and that a stale one is taken over by one
    /// alone too.
    #[tokio::test]
    async fn an_attempt_is_claimed_by_one_alone() {
        let folder = tempfile::tempdir().unwrap();
        for store in [
            Store::on(Arc::new(InMemory::new())),
            Store::in_folder(folder.path()).unwrap(),
        ] {
            for last in [None, Some(0), Some(1)] {
                let claims = (0..20).map(|owner| {
                    let store = store.clone();
                    tokio::spawn(async move { store.claim(&key(), last, &owner.to_string()).await.unwrap() })
                });
                let mut won = 0;
                for claim in claims.collect::<Vec<_>>() {
                    won += usize::from(claim.await.unwrap());
                }
                assert_eq!(won, 1, "{last:?}");
            }
            let holding = store.holding(&key(), 1).await.unwrap();
            assert_eq!(holding.claim.unwrap().0, 2);
            assert_eq!(
                holding.state(now() + 100, STALE),
                State::Wanted,
                "a stale claim counts for nothing"
            );
        }
    }

    /// Checks that a failure is kept with its reason, and that keys come back from the names of their folders.
    #[tokio::test]
    async fn a_failure_is_kept() {
        let store = Store::on(Arc::new(InMemory::new()));
        assert_eq!(store.failure(&key()).await.unwrap(), None);
        let failure = Failure {
            reason: "damaged".to_owned(),
            detail: "no ELF file".to_owned(),
            attempts: 1,
            at: 5,
            retry_at: 10,
        };
        put(&store, "executable").await;
        store.set_failure(&key(), &failure).await.unwrap();
        assert_eq!(store.failure(&key()).await.unwrap(), Some(failure));
        assert_eq!(state(&store).await, State::Failed);
        assert_eq!(BinaryKey::from_folder("gnu", "ab01"), Some(key()));
        for (kind, id) in [("elf", "ab01"), ("gnu", "ab0"), ("gnu", "xy"), ("gnu", "")] {
            assert_eq!(BinaryKey::from_folder(kind, id), None);
        }
    }
}
