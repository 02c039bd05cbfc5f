//! What is asked by tag: sums, and the colours of flame graphs.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{Explorer, State, raw};
use crate::selection::Sql;
use crate::totals::NameStackTotal;
use crate::{By, Error, Selection, Sort, Top};

impl Explorer {
    /// Returns the heaviest values of a tag's key: `copy` has `copy=vector`, a path's key is its first part. What has no tag
    /// of that key is `[no KEY]`. Of a key of which a stack takes one, rows add up to the whole.
    ///
    /// # Errors
    /// As [`Self::stack_totals`].
    pub async fn top_tags(
        &self,
        selection: &Selection,
        baseline: Option<&Selection>,
        key: &str,
        sort: Sort,
        limit: usize,
    ) -> Result<Top, Error> {
        self.top_of(selection, baseline, By::Tag, key, (sort, limit))
            .await
    }

    /// Adds up a selection per tag, or per value of a tag's key; returns the weight of all, which the tags of a stack share.
    pub(super) async fn add_tags(
        &self,
        state: &mut State,
        selection: &Selection,
        key: &str,
        side: usize,
        sums: &mut FxHashMap<String, [f64; 2]>,
    ) -> Result<f64, Error> {
        let selected = self.select(state, &raw(selection), None).await?;
        let none = match key {
            "" => "[untagged]".to_owned(),
            key => format!("[no {key}]"),
        };
        for row in self.tagged_stacks(selection, key).await? {
            let weight = state
                .store
                .stack_id(row.stack_id)
                .map(|id| selected.weights[id as usize][0]);
            if weight.unwrap_or(selected.unknown[0]) != 0.0 {
                let name = if row.name.is_empty() {
                    none.clone()
                } else {
                    row.name
                };
                sums.entry(name).or_default()[side] += row.weight;
            }
        }
        Ok(selected.total()[0])
    }

    /// Returns the weight of each stack under each of its tags, those of a key alone where one is given; without any under
    /// the empty one.
    async fn tagged_stacks(&self, selection: &Selection, key: &str) -> Result<Vec<NameStackTotal>, Error> {
        let of_key = "SELECT arrayJoin(if(empty(given), [''], given)) AS name, stack_id, sum(part) AS weight FROM (SELECT \
                      toUInt64(samples.stack) AS stack_id, samples.context AS context_id";
        let part = match selection.view {
            crate::View::Fleet => ", sum(fleet_weight) AS part FROM samples",
            crate::View::Runs => ", sum(run_weight) AS part FROM samples",
        };
        let sql = selection.conditions(Sql::default().push(of_key).push(part));
        let sql = sql.push(" GROUP BY stack_id, context_id) AS s LEFT JOIN (SELECT t.stack, t.context, ");
        let sql = match key {
            "" => sql.push("CAST(t.tags, 'Array(String)')"),
            key => sql.text(
                "arrayFilter(tag -> startsWith(tag, concat({key:String}, '=')) OR startsWith(tag, concat({key:String}, '/')) OR \
                 tag = {key:String}, CAST(t.tags, 'Array(String)'))",
                "key",
                Some(key),
            ),
        };
        let query = sql
            .push(
                " AS given FROM tags AS t FINAL) AS g ON s.stack_id = g.stack AND s.context_id = g.context GROUP BY name, \
                 stack_id",
            )
            .query(&self.client);
        let failed = self.failed("sum up tags");
        query.fetch_all::<NameStackTotal>().await.map_err(failed)
    }

    /// Returns of each function that is shown the value of a tag's key that weighs the most among the stacks that hold it:
    /// what flame graphs are coloured by.
    ///
    /// # Errors
    /// As [`Self::stack_totals`].
    pub async fn values_of_functions(
        &self,
        selection: &Selection,
        key: &str,
    ) -> Result<BTreeMap<String, String>, Error> {
        let mut state = self.state.lock().await;
        let selected = self.select(&mut state, selection, None).await?;
        let mut of_stack: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        for id in state.store.in_order(&selected) {
            of_stack.entry(state.store.base(id)).or_default().push(id);
        }
        let mut sums: FxHashMap<u32, BTreeMap<String, f64>> = FxHashMap::default();
        for row in self.tagged_stacks(selection, key).await? {
            let base = state.store.stack_id(row.stack_id);
            for &id in base.and_then(|base| of_stack.get(&base)).into_iter().flatten() {
                let mut functions = state.store.sequence(id).to_vec();
                functions.sort_unstable();
                functions.dedup();
                for function in functions {
                    *sums
                        .entry(function)
                        .or_default()
                        .entry(row.name.clone())
                        .or_default() += row.weight;
                }
            }
        }
        let mut values: BTreeMap<String, (String, f64)> = BTreeMap::new();
        for (function, of_values) in sums {
            let name = state.store.function_name(function).function;
            for (value, weight) in of_values {
                let best = values.entry(name.clone()).or_default();
                if weight > best.1 {
                    *best = (value, weight);
                }
            }
        }
        Ok(values
            .into_iter()
            .map(|(name, (value, _))| (name, value))
            .collect())
    }
}
