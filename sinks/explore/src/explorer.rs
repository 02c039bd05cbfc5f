//! Asking: one aggregation in ClickHouse, then everything else from the cache of stacks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clickhouse::Client;
use clickhouse::query::Query;
use rustc_hash::{FxHashMap, FxHashSet};
use strobe_event::StackEnd;
use tokio::sync::Mutex;

use crate::marks::{Marks, MarksRow};
use crate::profile::{self, Completeness, Profile};
use crate::selection::{Per, Sql};
use crate::store::{FrameRow, Selected, StackStore};
use crate::tagging::{self, LabelsRow, PairRow, Taggable};
use crate::top::{self, By, Sort, Top};
use crate::totals::{NameStackTotal, NameTotal, ServiceTotalColumns, TotalColumns};
use crate::{ClickHouse, Error, FlameTree, Selection, StackTotal, flame};

/// Most ids sent in one parameter: a server takes form fields of 128 KiB, and an id has up to 21 characters.
const IDS_MAX: usize = 4_096;
/// How old names may be before newer ones are asked for.
const NAMES_AGE_MAX: Duration = Duration::from_secs(2);
/// How far back newer names are looked for again, seconds: longer than an insert takes.
const NAMES_OVERLAP_S: u32 = 60;

const FRAME_COLUMNS: &str = "SELECT frame, functions, files, lines, toString(module) AS module, build_id, address, \
     toString(kind) AS kind, toString(reason) AS reason, toUnixTimestamp(inserted) AS inserted FROM frames FINAL ";

#[derive(clickhouse::Row, serde::Deserialize)]
struct StackRow {
    stack: u64,
    frames: Vec<u64>,
    end: i8,
}

/// The cache, and how new its names are.
struct State {
    store: StackStore,
    /// The newest `inserted` seen among frames, by the store's clock.
    newest_names_s: u32,
    asked: Option<Instant>,
}

/// A stack with the marks that make a view of it, and the key of that.
struct MarkedStack {
    key: u64,
    stack: u64,
    marks: Marks,
}

/// Answers questions about what is stored. Cheap to ask repeatedly: stacks and names are kept between questions, and
/// names found later are picked up. One question is answered at a time; ask through several for more.
pub struct Explorer {
    settings: ClickHouse,
    client: Client,
    state: Mutex<State>,
}

impl Explorer {
    /// Returns an explorer of the database in `settings`. Nothing is asked yet.
    pub fn new(settings: &ClickHouse) -> Self {
        let state = State {
            store: StackStore::default(),
            newest_names_s: 0,
            asked: None,
        };
        Self {
            settings: settings.clone(),
            client: settings.client(),
            state: Mutex::new(state),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn failed(&self, action: &'static str) -> impl Fn(clickhouse::error::Error) -> Error + '_ {
        move |source| Error::Store {
            action,
            url: self.settings.url().to_owned(),
            source,
        }
    }

    /// Returns the weight of each stack: hourly totals where the range has whole hours and nothing but the service
    /// narrows it, samples for the rest. `focus` and `ignore` are not looked at.
    ///
    /// # Errors
    /// [`Error::Selection`] for an empty range, [`Error::Store`].
    pub async fn stack_totals(&self, selection: &Selection) -> Result<Vec<StackTotal>, Error> {
        selection.validate()?;
        // One row of three arrays: a hundred thousand rows come in hundreds of small blocks, which cost more than the sum.
        let columns = "SELECT groupArray(stack) AS stacks, groupArray(weight) AS weights, groupArray(samples) AS samples FROM (";
        let query = selection
            .totals(Sql::default().push(columns), Per::Stack)
            .push(")")
            .query(&self.client);
        let TotalColumns {
            stacks,
            weights,
            samples,
        } = query
            .fetch_one::<TotalColumns>()
            .await
            .map_err(self.failed("sum up stacks"))?;
        let rows = stacks.into_iter().zip(weights).zip(samples);
        let totals = rows.map(|((stack, weight), samples)| StackTotal {
            stack,
            weight,
            samples,
        });
        Ok(summed(totals.collect()))
    }

    /// Returns the same per stack as schemas show it: marked stacks under the key of their view, and those views.
    async fn view_totals(&self, selection: &Selection) -> Result<(Vec<StackTotal>, Vec<MarkedStack>), Error> {
        if selection.raw || !self.is_anything_marked(selection).await? {
            return Ok((self.stack_totals(selection).await?, Vec::new()));
        }
        selection.validate()?;
        let columns = "SELECT groupArray(stack) AS stacks, groupArray(of_service) AS services, groupArray(weight) AS weights, \
                       groupArray(samples) AS samples FROM (";
        let query = selection
            .totals(Sql::default().push(columns), Per::Service)
            .push(")")
            .query(&self.client);
        let totals = query
            .fetch_one::<ServiceTotalColumns>()
            .await
            .map_err(self.failed("sum up stacks"))?;
        let marks = self.marks(selection).await?;
        let mut views: FxHashMap<u64, MarkedStack> = FxHashMap::default();
        let rows = totals.stacks.into_iter().zip(totals.services);
        let rows = rows.zip(totals.weights.into_iter().zip(totals.samples));
        let shown = rows.map(|((stack, service), (weight, samples))| {
            let of_service = marks.get(&service).and_then(|marks| marks.get(&stack));
            let key = of_service.map_or(stack, |(key, marks)| {
                views.entry(*key).or_insert_with(|| MarkedStack {
                    key: *key,
                    stack,
                    marks: marks.clone(),
                });
                *key
            });
            StackTotal {
                stack: key,
                weight,
                samples,
            }
        });
        let totals = summed(shown.collect());
        Ok((totals, views.into_values().collect()))
    }

    /// Returns whether any stack of the profiler has marks: where no schema hides or renames, nothing else is asked.
    async fn is_anything_marked(&self, selection: &Selection) -> Result<bool, Error> {
        let sql = Sql::default()
            .push("SELECT toUInt64(count()) FROM (SELECT 1 FROM tags")
            .text(
                " WHERE profiler = {profiler:String}",
                "profiler",
                Some(&selection.profiler),
            )
            .push(" AND notEmpty(marks.frame) LIMIT 1)");
        let found = sql.query(&self.client).fetch_one::<u64>().await;
        Ok(found.map_err(self.failed("look for marks"))? > 0)
    }

    /// Returns the marks of the selection's stacks, by service and stack, with the key of the view that they make. Of the
    /// contexts of a service the newest speaks.
    async fn marks(
        &self,
        selection: &Selection,
    ) -> Result<FxHashMap<String, FxHashMap<u64, (u64, Marks)>>, Error> {
        let sql = Sql::default()
            .push(
                "SELECT stack, toString(service) AS of_service, argMax(marks.frame, generation) AS frames, \
                 argMax(marks.inline, generation) AS inlines, CAST(argMax(marks.kind, generation), 'Array(Int8)') AS kinds, \
                 CAST(argMax(marks.text, generation), 'Array(String)') AS texts FROM tags",
            )
            .text(" WHERE profiler = {profiler:String}", "profiler", Some(&selection.profiler))
            .push(" AND stack IN (SELECT stack FROM (");
        let query = selection
            .totals(sql, Per::Stack)
            .push(")) GROUP BY stack, of_service HAVING notEmpty(frames)")
            .query(&self.client);
        let failed = self.failed("fetch marks of stacks");
        let mut rows = query.fetch::<MarksRow>().map_err(&failed)?;
        let mut found: FxHashMap<String, FxHashMap<u64, (u64, Marks)>> = FxHashMap::default();
        while let Some(row) = rows.next().await.map_err(&failed)? {
            if let Some(marks) = row.marks() {
                let key = marks.key(row.stack);
                found
                    .entry(row.of_service)
                    .or_default()
                    .insert(row.stack, (key, marks));
            }
        }
        Ok(found)
    }

    /// Returns the flame graph of a selection, cut to at most `max_nodes` nodes (2 to
    /// [`TREE_NODES_MAX`](crate::TREE_NODES_MAX)); with a baseline, each node has its weight too.
    ///
    /// # Errors
    /// As [`Self::stack_totals`].
    pub async fn tree(
        &self,
        selection: &Selection,
        baseline: Option<&Selection>,
        max_nodes: usize,
    ) -> Result<FlameTree, Error> {
        let mut state = self.state.lock().await;
        let selected = self.select(&mut state, selection, baseline).await?;
        let ranges = (selection.range, baseline.map(|baseline| baseline.range));
        Ok(flame::tree(
            &state.store,
            &selected,
            ranges.0,
            ranges.1,
            max_nodes,
        ))
    }

    /// Returns the heaviest functions, lines, modules, services, hosts, threads or tags of a selection.
    ///
    /// # Errors
    /// As [`Self::stack_totals`].
    pub async fn top(
        &self,
        selection: &Selection,
        baseline: Option<&Selection>,
        by: By,
        sort: Sort,
        limit: usize,
    ) -> Result<Top, Error> {
        self.top_of(selection, baseline, by, "", (sort, limit)).await
    }

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

    async fn top_of(
        &self,
        selection: &Selection,
        baseline: Option<&Selection>,
        by: By,
        key: &str,
        (sort, limit): (Sort, usize),
    ) -> Result<Top, Error> {
        let ranges = (selection.range, baseline.map(|baseline| baseline.range));
        let mut state = self.state.lock().await;
        let (rows, total) = match by {
            By::Function | By::Line | By::Module => {
                let selected = self.select(&mut state, selection, baseline).await?;
                (top::of_stacks(&state.store, &selected, by), selected.total())
            }
            By::Service | By::Host | By::Thread => {
                let mut sums = FxHashMap::default();
                for (side, selection) in [Some(selection), baseline].into_iter().enumerate() {
                    if let Some(selection) = selection {
                        self.add_names(&mut state, selection, by, side, &mut sums).await?;
                    }
                }
                let total = sums
                    .values()
                    .fold([0.0; 2], |sum, own: &[f64; 2]| [sum[0] + own[0], sum[1] + own[1]]);
                (top::of_names(sums), total)
            }
            By::Tag => {
                let mut sums = FxHashMap::default();
                let mut total = [0.0; 2];
                for (side, selection) in [Some(selection), baseline].into_iter().enumerate() {
                    if let Some(selection) = selection {
                        total[side] = self.add_tags(&mut state, selection, key, side, &mut sums).await?;
                    }
                }
                (top::of_names(sums), total)
            }
        };
        Ok(top::finish(rows, total, ranges, (sort, limit)))
    }

    /// Returns every stack of a selection with its frames and weight: what exports are made of.
    ///
    /// # Errors
    /// As [`Self::stack_totals`].
    pub async fn profile(&self, selection: &Selection) -> Result<Profile, Error> {
        let mut state = self.state.lock().await;
        let selected = self.select(&mut state, selection, None).await?;
        Ok(profile::profile(&state.store, &selected, selection.range))
    }

    /// Returns how much of a selection has its whole stack, and how the other stacks ended.
    ///
    /// # Errors
    /// As [`Self::stack_totals`].
    pub async fn completeness(&self, selection: &Selection) -> Result<Completeness, Error> {
        let mut state = self.state.lock().await;
        let selected = self.select(&mut state, selection, None).await?;
        Ok(profile::completeness(&state.store, &selected))
    }

    /// Returns the stacks of a selection as schemas see them, and the contexts in which each came.
    ///
    /// # Errors
    /// As [`Self::stack_totals`].
    pub async fn taggable(&self, selection: &Selection) -> Result<Taggable, Error> {
        let mut state = self.state.lock().await;
        let selected = self.select(&mut state, &raw(selection), None).await?;
        let pairs = self.pairs(selection).await?;
        let labels = self.labels().await?;
        Ok(tagging::collect(&state.store, &selected, pairs, &labels))
    }

    async fn pairs(&self, selection: &Selection) -> Result<Vec<PairRow>, Error> {
        let sql = Sql::default()
            .push(
                "SELECT toUInt64(samples.stack) AS stack_id, samples.context AS context_id, toString(any(service)) AS \
                 of_service, toString(any(profiler)) AS of_profiler",
            )
            .push(selection.weight_column())
            .push(" FROM samples");
        let query = selection
            .conditions(sql)
            .push(" GROUP BY stack_id, context_id")
            .query(&self.client);
        query
            .fetch_all::<PairRow>()
            .await
            .map_err(self.failed("list stacks and contexts"))
    }

    /// Returns the values of contexts beside service and profiler.
    async fn labels(&self) -> Result<FxHashMap<u64, Vec<(String, String)>>, Error> {
        let sql = "SELECT context, any(mapKeys(labels)) AS names, any(mapValues(labels)) AS label_values FROM tags WHERE \
                   notEmpty(labels) GROUP BY context";
        let rows = self.client.query_raw(sql).fetch_all::<LabelsRow>().await;
        let rows = rows.map_err(self.failed("read the values of contexts"))?;
        let values = |row: LabelsRow| (row.context, row.names.into_iter().zip(row.label_values).collect());
        Ok(rows.into_iter().map(values).collect())
    }

    /// Lets `look` see the stacks of a selection in the cache.
    pub(crate) async fn with_stacks(
        &self,
        selection: &Selection,
        look: impl FnOnce(&StackStore, &Selected),
    ) -> Result<(), Error> {
        let mut state = self.state.lock().await;
        let selected = self.select(&mut state, selection, None).await?;
        look(&state.store, &selected);
        Ok(())
    }

    /// Fetches the names that are newer than those in the cache. Every view does it when they are older than two
    /// seconds.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn refresh(&self) -> Result<(), Error> {
        self.refresh_names(&mut *self.state.lock().await).await
    }

    async fn refresh_names(&self, state: &mut State) -> Result<(), Error> {
        let since = state.newest_names_s.saturating_sub(NAMES_OVERLAP_S);
        let sql = Sql::default()
            .push(FRAME_COLUMNS)
            .push("WHERE inserted >= toDateTime({names_since:UInt32})");
        let query = sql.query(&self.client).param("names_since", since);
        self.fetch_frames(state, query).await?;
        state.asked = Some(Instant::now());
        Ok(())
    }

    /// Sums up both selections and lays them over the cache, which then knows their stacks.
    async fn select(
        &self,
        state: &mut State,
        selection: &Selection,
        baseline: Option<&Selection>,
    ) -> Result<Selected, Error> {
        let (totals, mut views) = self.view_totals(selection).await?;
        let mut base = Vec::new();
        if let Some(baseline) = baseline {
            let (totals, more) = self.view_totals(baseline).await?;
            base = totals;
            views.extend(more);
        }
        let of_view: FxHashMap<u64, u64> = views.iter().map(|view| (view.key, view.stack)).collect();
        // Names first: stacks that come now bring the newest along.
        if !state.store.is_empty() && state.asked.is_none_or(|asked| asked.elapsed() > NAMES_AGE_MAX) {
            self.refresh_names(state).await?;
        }
        let missing = [&totals, &base].map(|totals| missing(&state.store, totals, &of_view));
        if state.store.is_full(missing.iter().map(Vec::len).sum()) {
            state.store.clear();
        }
        let mut over_limit = !self.know(state, selection, &totals, &of_view).await?;
        if let Some(baseline) = baseline {
            over_limit |= !self.know(state, baseline, &base, &of_view).await?;
        }
        for view in &views {
            state.store.insert_view(view.key, view.stack, &view.marks);
        }
        state.store.sort();
        let mut selected = state.store.select([&totals, &base], over_limit);
        for (side, selection) in [Some(selection), baseline].into_iter().enumerate() {
            if let Some(selection) = selection.filter(|selection| selection.looks_into_stacks()) {
                let kept = state
                    .store
                    .kept(selection.focus.as_ref(), selection.ignore.as_ref());
                selected.retain(&state.store, &kept, side);
            }
        }
        Ok(selected)
    }

    /// Fetches the stacks of `totals` that the cache does not know, and their frames. Returns whether all had room.
    async fn know(
        &self,
        state: &mut State,
        selection: &Selection,
        totals: &[StackTotal],
        of_view: &FxHashMap<u64, u64>,
    ) -> Result<bool, Error> {
        let missing = missing(&state.store, totals, of_view);
        if missing.is_empty() {
            return Ok(true);
        }
        let frames_before = state.store.frame_count();
        const COLUMNS: &str = "SELECT stack, frames, end FROM stacks WHERE stack IN ";
        // Few are named; many are said once more by the selection, which is shorter than they are.
        let query = match missing.len() <= IDS_MAX {
            true => {
                let sql = Sql::default().push(COLUMNS).push("{ids:Array(UInt64)}");
                sql.query(&self.client).param("ids", &missing)
            }
            false => {
                let sql = Sql::default().push(COLUMNS).push("(SELECT stack FROM (");
                selection.totals(sql, Per::Stack).push("))").query(&self.client)
            }
        };
        let wanted: FxHashSet<u64> = missing.iter().copied().collect();
        let failed = self.failed("fetch stacks");
        let mut room = true;
        let mut rows = query.fetch::<StackRow>().map_err(&failed)?;
        while let Some(row) = rows.next().await.map_err(&failed)? {
            if wanted.contains(&row.stack) {
                let end = u8::try_from(row.end).ok().and_then(StackEnd::from_code);
                room &= state.store.insert_stack(row.stack, &row.frames, end);
            }
        }
        let unnamed = state.store.unnamed_frames(frames_before);
        if unnamed.len() > IDS_MAX {
            let sql = Sql::default().push(FRAME_COLUMNS).push(
                "WHERE frame IN (SELECT arrayJoin(frames) FROM stacks WHERE stack IN (SELECT stack FROM (",
            );
            let query = selection.totals(sql, Per::Stack).push(")))").query(&self.client);
            self.fetch_frames(state, query).await?;
        } else if !unnamed.is_empty() {
            let sql = Sql::default()
                .push(FRAME_COLUMNS)
                .push("WHERE frame IN {ids:Array(UInt64)}");
            self.fetch_frames(state, sql.query(&self.client).param("ids", &unnamed))
                .await?;
        }
        state.asked.get_or_insert_with(Instant::now);
        Ok(room)
    }

    async fn fetch_frames(&self, state: &mut State, query: Query) -> Result<(), Error> {
        let failed = self.failed("fetch names of frames");
        let mut rows = query.fetch::<FrameRow>().map_err(&failed)?;
        while let Some(row) = rows.next().await.map_err(&failed)? {
            state.newest_names_s = state.newest_names_s.max(row.inserted);
            state.store.insert_frame(&row);
        }
        Ok(())
    }

    /// Adds up a selection per tag, or per value of a tag's key; returns the weight of all, which the tags of a stack share.
    async fn add_tags(
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
    pub(crate) async fn tagged_stacks(
        &self,
        selection: &Selection,
        key: &str,
    ) -> Result<Vec<NameStackTotal>, Error> {
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

    /// Adds up a selection per service, host or thread.
    async fn add_names(
        &self,
        state: &mut State,
        selection: &Selection,
        by: By,
        side: usize,
        sums: &mut FxHashMap<String, [f64; 2]>,
    ) -> Result<(), Error> {
        selection.validate()?;
        let failed = self.failed("sum up samples");
        let column = match by {
            By::Host => "SELECT toString(host) AS name",
            By::Thread => "SELECT toString(thread) AS name",
            By::Service | By::Function | By::Line | By::Module | By::Tag => {
                "SELECT toString(service) AS name"
            }
        };
        let sql = Sql::default().push(column);
        let weight = selection.weight_column();
        if !selection.looks_into_stacks() {
            let sql = selection
                .conditions(sql.push(weight).push(" FROM samples"))
                .push(" GROUP BY name");
            let mut rows = sql.query(&self.client).fetch::<NameTotal>().map_err(&failed)?;
            while let Some(row) = rows.next().await.map_err(&failed)? {
                sums.entry(row.name).or_default()[side] += row.weight;
            }
            return Ok(());
        }
        // Which stacks stay is known here; what each name has of them is known there.
        let selected = self.select(state, &raw(selection), None).await?;
        let sql = sql
            .push(", toUInt64(stack) AS stack_id")
            .push(weight)
            .push(" FROM samples");
        let sql = selection.conditions(sql).push(" GROUP BY name, stack_id");
        let mut rows = sql
            .query(&self.client)
            .fetch::<NameStackTotal>()
            .map_err(&failed)?;
        while let Some(row) = rows.next().await.map_err(&failed)? {
            let weight = state
                .store
                .stack_id(row.stack_id)
                .map(|id| selected.weights[id as usize][0]);
            if weight.unwrap_or(selected.unknown[0]) != 0.0 {
                sums.entry(row.name).or_default()[side] += row.weight;
            }
        }
        Ok(())
    }
}

/// Returns the selection of stacks as they were named.
pub(crate) fn raw(selection: &Selection) -> Selection {
    Selection {
        raw: true,
        ..selection.clone()
    }
}

/// Returns the stacks of `totals` that the cache does not know; of views it is the stack that counts.
fn missing(store: &StackStore, totals: &[StackTotal], of_view: &FxHashMap<u64, u64>) -> Vec<u64> {
    let stacks = totals
        .iter()
        .map(|total| of_view.get(&total.stack).copied().unwrap_or(total.stack));
    let mut missing: Vec<u64> = stacks.filter(|&stack| !store.knows_stack(stack)).collect();
    if !of_view.is_empty() {
        missing.sort_unstable();
        missing.dedup();
    }
    missing
}

/// Returns the totals with one entry for each stack.
fn summed(mut totals: Vec<StackTotal>) -> Vec<StackTotal> {
    totals.sort_unstable_by_key(|total| total.stack);
    totals.dedup_by(|next, kept| {
        let same = next.stack == kept.stack;
        if same {
            kept.weight += next.weight;
            kept.samples += next.samples;
        }
        same
    });
    totals
}
