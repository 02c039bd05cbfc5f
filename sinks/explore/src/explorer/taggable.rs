//! What schemas are tried on, and tagged anew.

use super::{Explorer, raw};
use crate::selection::Sql;
use crate::tagging::{self, ContextValues, LabelsRow, PairRow, Taggable};
use crate::{Error, Selection};

impl Explorer {
    /// Returns the stacks of a selection as schemas see them, and the contexts, of those that are known, in which each came;
    /// `per_host` tells hosts apart also where contexts do not.
    ///
    /// # Errors
    /// As [`Self::stack_totals`].
    pub async fn taggable(
        &self,
        selection: &Selection,
        contexts: &ContextValues,
        per_host: bool,
    ) -> Result<Taggable, Error> {
        let mut state = self.state.lock().await;
        let selected = self.select(&mut state, &raw(selection), None).await?;
        let pairs = self.pairs(selection, per_host).await?;
        Ok(tagging::collect(&state.store, &selected, pairs, contexts))
    }

    /// Returns when the newest tags were made, microseconds since 1970, 0 where there are none: what is made anew must be
    /// newer, whatever the clocks say.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn newest_tags(&self) -> Result<u64, Error> {
        let newest = self.newest_of("tags");
        newest.await.map_err(self.failed("read the newest tags"))
    }

    async fn pairs(&self, selection: &Selection, per_host: bool) -> Result<Vec<PairRow>, Error> {
        let sql = Sql::default()
            .push(
                "SELECT toUInt64(samples.stack) AS stack_id, samples.context AS context_id, toString(any(service)) AS \
                 of_service, toString(any(profiler)) AS of_profiler",
            )
            .push(match per_host {
                true => ", toString(host) AS of_host",
                false => ", '' AS of_host",
            })
            .push(selection.weight_column())
            .push(" FROM samples");
        let query = selection
            .conditions(sql)
            .push(" GROUP BY stack_id, context_id, of_host")
            .query(&self.client);
        query
            .fetch_all::<PairRow>()
            .await
            .map_err(self.failed("list stacks and contexts"))
    }

    /// Returns the values of contexts beside service and profiler. They never change: reading them once is enough for any
    /// number of selections.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn context_values(&self) -> Result<ContextValues, Error> {
        let sql = "SELECT context, any(mapKeys(labels)) AS names, any(mapValues(labels)) AS label_values FROM tags WHERE \
                   notEmpty(labels) GROUP BY context";
        let rows = self.client.query_raw(sql).fetch_all::<LabelsRow>().await;
        let rows = rows.map_err(self.failed("read the values of contexts"))?;
        let values = |row: LabelsRow| (row.context, row.names.into_iter().zip(row.label_values).collect());
        Ok(ContextValues(rows.into_iter().map(values).collect()))
    }
}
