//! How well the nodes of a flame graph are known: as rows of a top are, a node being a part of what each run sampled.

use rustc_hash::FxHashMap;
use strobe_sampling::spread::Total;

use super::{CELLS_MAX, PartRow, SUMS_MAX, Sums};
use crate::flame::{FlameTree, NodeKind};
use crate::selection::{Sql, View};
use crate::store::StackStore;
use crate::{Error, Explorer, Selection};

impl Explorer {
    /// Returns what each node of a flame graph of `selection` is known to, in CPU seconds; nothing where weights are those within
    /// runs, or there are too many sums.
    ///
    /// # Errors
    /// As [`Self::stack_totals`].
    pub async fn node_totals(
        &self,
        selection: &Selection,
        tree: &FlameTree,
    ) -> Result<Option<Vec<Total>>, Error> {
        selection.validate()?;
        if selection.view != View::Fleet {
            return Ok(None);
        }
        let coverage = self.coverage_of(selection).await?;
        let runs = self.runs_of(selection, coverage.slot_s).await?;
        if tree.nodes.len().saturating_mul(runs.u.len().max(1)) > CELLS_MAX {
            return Ok(None);
        }
        let sql = Sql::default().push(
            "SELECT toString(samples.run) AS run_id, '' AS name, toUInt64(stack) AS stack_id, sum(fleet_weight) AS weight, \
             sum(fleet_weight * fleet_weight) AS squares FROM samples",
        );
        let sql = selection
            .conditions(sql)
            .push(" GROUP BY run_id, name, stack_id LIMIT 2000001");
        let failed = self.failed("sum up runs");
        let parts: Vec<PartRow> = sql.query(self.client()).fetch_all().await.map_err(&failed)?;
        if parts.len() > SUMS_MAX {
            return Ok(None);
        }
        let mut sums = Sums::new(tree.nodes.len(), runs.u.len());
        self.with_stacks(selection, |store, selected| {
            let mut paths = Paths::new(tree);
            for part in &parts {
                let (Some(&run), Some(id)) = (runs.numbers.get(&part.run_id), store.stack_id(part.stack_id))
                else {
                    continue;
                };
                if selected.weights[id as usize][0] == 0.0 {
                    continue;
                }
                for &node in paths.of(store, id) {
                    sums.add(node, run, part);
                }
            }
        })
        .await?;
        Ok(Some(sums.totals(&runs, &coverage)))
    }
}

/// Which nodes a stack goes through.
struct Paths<'t> {
    functions: FxHashMap<(&'t str, &'t str, &'t str), u32>,
    /// By parent and function; what was cut off of a parent has no function.
    children: FxHashMap<(usize, Option<u32>), usize>,
    known: FxHashMap<u32, Vec<usize>>,
}

impl<'t> Paths<'t> {
    fn new(tree: &'t FlameTree) -> Self {
        let numbered = (0..).zip(&tree.functions);
        let functions = numbered.map(|(at, name)| ((&*name.function, &*name.module, &*name.file), at));
        let mut children = FxHashMap::default();
        // The node of each depth above the one that is looked at.
        let mut above: Vec<usize> = Vec::new();
        for (at, node) in tree.nodes.iter().enumerate() {
            above.truncate(node.depth as usize);
            if let Some(&parent) = above.last() {
                let function = match node.kind {
                    NodeKind::Function(function) => Some(function),
                    NodeKind::Root | NodeKind::Other => None,
                };
                children.insert((parent, function), at);
            }
            above.push(at);
        }
        Self {
            functions: functions.collect(),
            children,
            known: FxHashMap::default(),
        }
    }

    fn of(&mut self, store: &StackStore, id: u32) -> &[usize] {
        let Self {
            functions,
            children,
            known,
        } = self;
        known.entry(id).or_insert_with(|| {
            let mut path = vec![0];
            let mut node = 0;
            for &function in store.sequence(id) {
                let name = store.function_name(function);
                let function = functions.get(&(&*name.function, &*name.module, &*name.file));
                let child = function.and_then(|&function| children.get(&(node, Some(function))));
                match child {
                    Some(&child) => {
                        path.push(child);
                        node = child;
                    }
                    None => {
                        path.extend(children.get(&(node, None)));
                        break;
                    }
                }
            }
            path
        })
    }
}
