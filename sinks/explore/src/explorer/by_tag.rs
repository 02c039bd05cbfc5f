//! What is asked by tag: sums, and the colours of flame graphs.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{Explorer, State, raw};
use crate::selection::Sql;
use crate::top::Weights;
use crate::totals::TaggedTotal;
use crate::{By, Error, Selection, Sort, Top};

/// Of the places of a tag in a stack the one nearest to the leaf: the stack counts once, and the tag is its leaf's if one is.
const TAGGED_SAMPLES: &str = "SELECT name, stack_id, of_service, place, sum(part_of_tag) AS weight FROM (SELECT stack_id, \
     of_service, tupleElement(one, 1) AS name, max((tupleElement(one, 2), tupleElement(one, 3))) AS place, any(part) AS \
     part_of_tag FROM (SELECT toUInt64(samples.stack) AS stack_id, samples.context AS context_id, toString(samples.service) AS \
     of_service";
/// Tags of a key, all where it is empty; rows of other stacks need not be brought to their newest.
const TAGS_OF_KEY: &str = " GROUP BY stack_id, context_id, of_service) AS s LEFT JOIN (SELECT t.stack, t.context, \
     arrayFilter(tag -> {key:String} = '' OR tag = {key:String} OR startsWith(tag, concat({key:String}, '=')) OR \
     startsWith(tag, concat({key:String}, '/')), CAST(t.tags, 'Array(String)')) AS of_stack, \
     arrayFilter(one -> {key:String} = '' OR tupleElement(one, 1) = {key:String} OR \
     startsWith(tupleElement(one, 1), concat({key:String}, '=')) OR startsWith(tupleElement(one, 1), concat({key:String}, '/')), \
     arrayZip(CAST(t.frame_tags.tag, 'Array(String)'), t.frame_tags.frame, t.frame_tags.inline)) AS of_frames \
     FROM tags AS t FINAL WHERE t.stack IN (SELECT toUInt64(samples.stack) FROM samples";
/// Every place of a tag in a stack: each of its frames has its own.
const BY_FRAME: &str = ")) AS g ON s.stack_id = g.stack AND s.context_id = g.context ARRAY JOIN of_frames AS one \
     GROUP BY name, stack_id, of_service, place";
const TAGGED_FRAMES: &str = "SELECT tupleElement(one, 1) AS name, stack_id, of_service, (tupleElement(one, 2), \
     tupleElement(one, 3)) AS place, sum(part) AS weight FROM (SELECT toUInt64(samples.stack) AS stack_id, samples.context AS \
     context_id, toString(samples.service) AS of_service";
const BY_PLACE: &str = ")) AS g ON s.stack_id = g.stack AND s.context_id = g.context \
     ARRAY JOIN arrayConcat(arrayMap(tag -> (tag, toUInt16(65535), toUInt16(65535)), if(empty(of_stack), [''], of_stack)), \
     of_frames) AS one GROUP BY stack_id, context_id, of_service, name) GROUP BY name, stack_id, of_service, place";

impl Explorer {
    /// Returns the heaviest values of a tag's key: `copy` has `copy=vector`, a path's key is its first part. What has no tag
    /// of that key as a whole is `[no KEY]`. Of a key of which a stack takes one, rows add up to the whole.
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
        sums: &mut FxHashMap<String, Weights>,
    ) -> Result<f64, Error> {
        let selected = self.select(state, &raw(selection), None).await?;
        let none = match key {
            "" => "[untagged]".to_owned(),
            key => format!("[no {key}]"),
        };
        for row in self.tagged_stacks(selection, key).await? {
            let id = state.store.stack_id(row.stack_id);
            let weight = id.map(|id| selected.weights[id as usize][0]);
            if weight.unwrap_or(selected.unknown[0]) == 0.0 {
                continue;
            }
            let name = match row.name.is_empty() {
                true => none.clone(),
                false => row.name,
            };
            let weights = sums.entry(name).or_default();
            weights.total[side] += row.weight;
            if row.place == TaggedTotal::WHOLE || id.and_then(|id| state.store.leaf(id)) == Some(row.place) {
                weights.own[side] += row.weight;
            }
        }
        Ok(selected.total()[0])
    }

    /// Returns the weight of each stack of each service under each tag that it has as a whole or at one of its frames, those of
    /// a key alone where one is given; what has none as a whole is under the empty one, too.
    async fn tagged_stacks(&self, selection: &Selection, key: &str) -> Result<Vec<TaggedTotal>, Error> {
        self.tagged(selection, key, [TAGGED_SAMPLES, BY_PLACE]).await
    }

    /// Returns the weight of each stack of each service under each tag of a key that its frames have, once for each of these.
    async fn tagged_frames(&self, selection: &Selection, key: &str) -> Result<Vec<TaggedTotal>, Error> {
        self.tagged(selection, key, [TAGGED_FRAMES, BY_FRAME]).await
    }

    async fn tagged(
        &self,
        selection: &Selection,
        key: &str,
        [head, tail]: [&'static str; 2],
    ) -> Result<Vec<TaggedTotal>, Error> {
        let part = match selection.view {
            crate::View::Fleet => ", sum(fleet_weight) AS part FROM samples",
            crate::View::Runs => ", sum(run_weight) AS part FROM samples",
        };
        let sql = selection.conditions(Sql::default().push(head).push(part));
        let sql = sql.text(TAGS_OF_KEY, "key", Some(key));
        let query = selection.conditions(sql).push(tail).query(&self.client);
        let failed = self.failed("sum up tags");
        query.fetch_all::<TaggedTotal>().await.map_err(failed)
    }

    /// Returns of each function that is shown the value of a tag's key that weighs the most: among the tags of its own frames,
    /// or where those have none of the key, among those of the stacks that hold it. Flame graphs are coloured by it.
    ///
    /// # Errors
    /// As [`Self::stack_totals`].
    pub async fn values_of_functions(
        &self,
        selection: &Selection,
        key: &str,
    ) -> Result<BTreeMap<String, String>, Error> {
        let mut state = self.state.lock().await;
        let (selected, views) = self.select_with_views(&mut state, selection, None).await?;
        // Services may show a stack differently: what one shows has that one's weight alone.
        let mut shown: FxHashMap<&str, FxHashMap<u64, u64>> = FxHashMap::default();
        for view in &views {
            for service in &view.services {
                shown.entry(service).or_default().insert(view.stack, view.key);
            }
        }
        // The number of a stack as its service shows it.
        let selected_view = |state: &State, row: &TaggedTotal| {
            let of_service = shown.get(row.of_service.as_str());
            let key = of_service.and_then(|keys| keys.get(&row.stack_id)).copied();
            let id = state.store.stack_id(key.unwrap_or(row.stack_id))?;
            (selected.weights[id as usize][0] != 0.0).then_some(id)
        };
        let mut sums = Sums::default();
        let mut own = Sums::default();
        for row in self.tagged_stacks(selection, key).await? {
            if row.place != TaggedTotal::WHOLE {
                continue;
            }
            let Some(id) = selected_view(&state, &row) else {
                continue;
            };
            let mut functions = state.store.sequence(id).to_vec();
            functions.sort_unstable();
            functions.dedup();
            for function in functions {
                let of_values = sums.entry(function).or_default();
                *of_values.entry(row.name.clone()).or_default() += row.weight;
            }
        }
        for row in self.tagged_frames(selection, key).await? {
            let id = selected_view(&state, &row);
            // What is not shown has no box.
            let Some(function) = id.and_then(|id| state.store.shown_at(id, row.place)) else {
                continue;
            };
            let of_values = own.entry(function).or_default();
            *of_values.entry(row.name).or_default() += row.weight;
        }
        let mut of_names = named(&state, sums);
        of_names.extend(named(&state, own));
        let heaviest = |of_values: BTreeMap<String, f64>| {
            let best = of_values.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
            best.map_or_else(String::new, |(value, _)| value)
        };
        let values = of_names.into_iter();
        Ok(values
            .map(|(name, of_values)| (name, heaviest(of_values)))
            .collect())
    }
}

/// Weight of each value of each function, by the function's number.
type Sums = FxHashMap<u32, BTreeMap<String, f64>>;

/// Returns the same by name: functions of one name are one box.
fn named(state: &State, sums: Sums) -> BTreeMap<String, BTreeMap<String, f64>> {
    let mut of_names: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
    for (function, of_values) in sums {
        let name = state.store.function_name(function).function;
        let all = of_names.entry(name).or_default();
        for (value, weight) in of_values {
            *all.entry(value).or_default() += weight;
        }
    }
    of_names
}
