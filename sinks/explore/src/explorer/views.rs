//! Stacks as schemas show them: totals by what is shown, and the marks that make the difference.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{Explorer, summed};
use crate::marks::{MarkTexts, Marks, MarksRow};
use crate::selection::{Per, Sql};
use crate::totals::ServiceTotalColumns;
use crate::{Error, Selection, StackTotal};

/// A stack with the marks that make a view of it, and the key of that.
pub(super) struct MarkedStack {
    pub(super) key: u64,
    pub(super) stack: u64,
    pub(super) marks: Marks,
    /// Services whose samples are shown so.
    pub(super) services: Vec<Arc<str>>,
}

/// Marks by service and stack, with the key of the view that they make.
type MarksOf = FxHashMap<Arc<str>, FxHashMap<u64, (u64, Marks)>>;

impl Explorer {
    /// Returns the same per stack as schemas show it: marked stacks under the key of their view, and those views.
    pub(super) async fn view_totals(
        &self,
        selection: &Selection,
        texts: &mut MarkTexts,
    ) -> Result<(Vec<StackTotal>, Vec<MarkedStack>), Error> {
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
        let marks = self.marks(selection, texts).await?;
        let mut views: FxHashMap<u64, MarkedStack> = FxHashMap::default();
        let rows = totals.stacks.into_iter().zip(totals.services);
        let rows = rows.zip(totals.weights.into_iter().zip(totals.samples));
        let shown = rows.map(|((stack, service), (weight, samples))| {
            let of_service = marks.get_key_value(service.as_str());
            let found = of_service.and_then(|(service, marks)| Some((service, marks.get(&stack)?)));
            let key = found.map_or(stack, |(service, (key, marks))| {
                let view = views.entry(*key).or_insert_with(|| MarkedStack {
                    key: *key,
                    stack,
                    marks: marks.clone(),
                    services: Vec::new(),
                });
                view.services.push(Arc::clone(service));
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
    async fn marks(&self, selection: &Selection, texts: &mut MarkTexts) -> Result<MarksOf, Error> {
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
        let mut found = MarksOf::default();
        while let Some(row) = rows.next().await.map_err(&failed)? {
            if let Some(marks) = row.marks(texts) {
                let key = marks.key(row.stack);
                let of_service = found.entry(row.of_service.into()).or_default();
                of_service.insert(row.stack, (key, marks));
            }
        }
        Ok(found)
    }
}
