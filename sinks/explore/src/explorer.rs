//! Asking: one aggregation in ClickHouse, then everything else from the cache of stacks.

mod by_tag;
pub(crate) mod frames;
mod taggable;
mod views;

use std::time::{Duration, Instant};

use clickhouse::Client;
use clickhouse::query::Query;
use rustc_hash::{FxHashMap, FxHashSet};
use strobe_event::StackEnd;
use tokio::sync::Mutex;

use self::views::MarkedStack;
use crate::marks::MarkTexts;
use crate::profile::{self, Completeness, Profile};
use crate::selection::{Per, Sql};
use crate::store::{FrameRow, Selected, StackStore};
use crate::top::{self, By, Sort, Top};
use crate::totals::{NameStackTotal, NameTotal, TotalColumns};
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
    /// Texts of the marks in it.
    mark_texts: MarkTexts,
    /// The newest `inserted` seen among frames, by the store's clock.
    newest_names_s: u32,
    asked: Option<Instant>,
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
            mark_texts: MarkTexts::default(),
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
                (top::of_tags(sums), total)
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
        Ok(self.select_with_views(state, selection, baseline).await?.0)
    }

    /// The same, with the stacks that schemas show otherwise than they are.
    async fn select_with_views(
        &self,
        state: &mut State,
        selection: &Selection,
        baseline: Option<&Selection>,
    ) -> Result<(Selected, Vec<MarkedStack>), Error> {
        let (totals, mut views) = self.view_totals(selection, &mut state.mark_texts).await?;
        let mut base = Vec::new();
        if let Some(baseline) = baseline {
            let (totals, more) = self.view_totals(baseline, &mut state.mark_texts).await?;
            base = totals;
            views.extend(more);
        }
        let of_view: FxHashMap<u64, u64> = views.iter().map(|view| (view.key, view.stack)).collect();
        // Names first: stacks that come now bring the newest along.
        if !state.store.is_empty() && state.asked.is_none_or(|asked| asked.elapsed() > NAMES_AGE_MAX) {
            self.refresh_names(state).await?;
        }
        let missing = [&totals, &base].map(|totals| missing(&state.store, totals, &of_view));
        let marks = views.iter().filter(|view| !state.store.knows_stack(view.key));
        let marks: Vec<usize> = marks.map(|view| view.marks.len()).collect();
        if state.store.is_full(
            missing.iter().map(Vec::len).sum(),
            marks.len(),
            marks.iter().sum(),
        ) {
            state.store.clear();
            // What the views at hand name stays alive with them.
            state.mark_texts.clear();
        }
        let mut over_limit = !self.know(state, selection, &totals, &of_view).await?;
        if let Some(baseline) = baseline {
            over_limit |= !self.know(state, baseline, &base, &of_view).await?;
        }
        for view in &views {
            over_limit |= !state.store.insert_view(view.key, view.stack, &view.marks);
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
        Ok((selected, views))
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
