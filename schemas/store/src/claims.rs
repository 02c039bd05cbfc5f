//! Claims: which of several services makes a binary's symbol file, and what is left of attempts.

use futures::TryStreamExt;
use object_store::{ObjectStoreExt, PutMode, PutOptions, PutPayload, path};

use crate::error::StoreError;
use crate::index::listing;
use crate::store::{BinaryKey, Store};

impl Store {
    /// Claims the next attempt at a binary, where `last` was the last one's number; returns whether it is ours.
    ///
    /// Of several that claim the same attempt at once, the store lets one alone create the object. Nothing is ever
    /// deleted to take an attempt over, so nobody can take away what another one has just taken.
    ///
    /// # Errors
    /// [`StoreError::Store`] where the store does not answer.
    pub async fn claim(&self, key: &BinaryKey, last: Option<u32>, owner: &str) -> Result<bool, StoreError> {
        // Whoever can upload can also lay a claim of the highest number: then there is none left, and none is ours.
        let object = key.object(&format!(
            "claim.{}",
            last.map_or(0, |last| last.saturating_add(1))
        ));
        let options = PutOptions {
            mode: PutMode::Create,
            ..PutOptions::default()
        };
        let payload = PutPayload::from(owner.as_bytes().to_vec());
        let put = self
            .objects()
            .put_opts(&path::Path::from(object.as_str()), payload, options)
            .await;
        match put {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(source) => Err(StoreError::Store {
                what: "claiming",
                object,
                source,
            }),
        }
    }

    /// Takes back a claim that came to nothing, so that the next one need not wait until it is taken for dead.
    ///
    /// # Errors
    /// [`StoreError::Store`] where the store does not answer.
    pub async fn unclaim(&self, key: &BinaryKey, number: u32) -> Result<(), StoreError> {
        self.remove(key.object(&format!("claim.{number}"))).await
    }

    /// Removes what an attempt has made useless: older claims, and where it gave a symbol file, the last failure and that the
    /// binary was wanted. Its own claim stays, as the time at which the sources were read.
    ///
    /// # Errors
    /// [`StoreError::Store`] where the store does not answer.
    pub async fn tidy(&self, key: &BinaryKey, claim: u32, made: bool) -> Result<(), StoreError> {
        let folder = key.object("");
        let prefix = path::Path::from(folder.trim_end_matches('/'));
        let mut objects = self.objects().list(Some(&prefix));
        let mut useless = Vec::new();
        while let Some(meta) = objects.try_next().await.map_err(listing(&folder))? {
            let name = meta.location.filename().unwrap_or_default();
            let older = |number: &str| number.parse::<u32>().is_ok_and(|number| number < claim);
            let record = made && matches!(name, "failed.json" | "wanted.json");
            if record || name.strip_prefix("claim.").is_some_and(older) {
                useless.push(key.object(name));
            }
        }
        for object in useless {
            self.remove(object).await?;
        }
        Ok(())
    }

    /// Forgets that a binary is wanted.
    ///
    /// # Errors
    /// [`StoreError::Store`] where the store does not answer.
    pub async fn unwant(&self, key: &BinaryKey) -> Result<(), StoreError> {
        self.remove(key.object("wanted.json")).await
    }

    async fn remove(&self, object: String) -> Result<(), StoreError> {
        match self.objects().delete(&path::Path::from(object.as_str())).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(source) => Err(StoreError::Store {
                what: "removing",
                object,
                source,
            }),
        }
    }
}
