//! `strobe flamegraph`: a picture of where time goes, as SVG.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use strobe_explore::{Explorer, FlameTree, NodeKind};
use strobe_export::flamegraph::{FoldedStack, Options, svg};
use strobe_sampling::spread::Total;

use crate::commands::{not_found, wait};
use crate::config::Config;
use crate::error::CliError;
use crate::render;
use crate::selection;
use crate::times::shown;

/// The arguments.
#[derive(clap::Args)]
#[command(
    after_help = "EXAMPLES\n  strobe flamegraph --since -15m --output cpu.svg\n  strobe flamegraph --service orders \
                        --output - > orders.svg\n  strobe flamegraph --baseline now-2h..now-1h\n  strobe flamegraph --service orders --color-by copy"
)]
pub struct Args {
    #[command(flatten)]
    selection: selection::Args,
    #[command(flatten)]
    baseline: selection::Baseline,
    /// Where to write; `-` for standard output.
    #[arg(long, default_value = "strobe-flamegraph.svg")]
    output: PathBuf,
    /// Colour boxes by the tag of this key that weighs the most: of the function's own frames, else of the stacks that hold
    /// it; grey has none.
    #[arg(long, value_name = "KEY", conflicts_with = "baseline")]
    color_by: Option<String>,
    /// Boxes at most; what is cut is summed in boxes called "other".
    #[arg(long, default_value_t = strobe_explore::TREE_NODES_DEFAULT)]
    max_nodes: usize,
}

/// Writes the flame graph.
///
/// # Errors
/// [`CliError`].
pub fn run(config: &Config, args: &Args) -> Result<(), CliError> {
    let selection = args.selection.selection()?;
    let baseline = args.baseline.selection(&selection)?;
    let explorer = Explorer::new(&config.clickhouse.reader()?);
    let (tree, values, totals) = wait(async {
        let tree = explorer
            .tree(&selection, baseline.as_ref(), args.max_nodes)
            .await?;
        let values = match &args.color_by {
            Some(key) => explorer.values_of_functions(&selection, key).await?,
            None => BTreeMap::new(),
        };
        let totals = explorer.node_totals(&selection, &tree).await?;
        Ok((tree, values, totals))
    })?;
    let total = tree.nodes.first().map_or(0.0, |root| root.total);
    if total <= 0.0 && tree.nodes.first().is_none_or(|root| root.baseline_total <= 0.0) {
        return Err(not_found(&explorer, &selection));
    }
    let what = args.selection.service.as_deref().unwrap_or("all services");
    let known = match totals.as_ref().and_then(|totals| totals.first()) {
        Some(&Total::Known { plus_minus, .. }) => format!(" ± {:.2}", tree.range.cores(plus_minus * 1e9)),
        Some(Total::FewRuns { .. }) => " (fewer than 10 runs)".to_owned(),
        Some(Total::NotSampled) | None => String::new(),
    };
    let options = Options {
        title: format!("{what}: {:.2} cores{known}", tree.range.cores(total)),
        subtitle: format!("{} to {}", shown(tree.range.since_us), shown(tree.range.until_us)),
        differential: tree.baseline.is_some(),
        groups: args.color_by.is_some().then_some(values),
        notes: totals.map_or_else(BTreeMap::new, |totals| notes(&tree, &totals)),
    };
    let picture = svg(&folded(&tree), &options)?;
    if args.output.as_os_str() == "-" {
        return render::written(std::io::stdout().write_all(&picture));
    }
    std::fs::write(&args.output, picture).map_err(|source| CliError::Io {
        action: "write",
        what: args.output.display().to_string(),
        source,
    })?;
    eprintln!("written to {}", args.output.display());
    Ok(())
}

/// Returns what the tooltip of each node says of how well it is known, by its path.
fn notes(tree: &FlameTree, totals: &[Total]) -> BTreeMap<Vec<String>, String> {
    let mut path: Vec<String> = Vec::new();
    let mut notes = BTreeMap::new();
    for (node, total) in tree.nodes.iter().zip(totals) {
        path.truncate(node.depth.saturating_sub(1) as usize);
        if node.kind != NodeKind::Root {
            path.push(tree.name(node).to_owned());
        }
        let note = match *total {
            Total::Known { plus_minus, .. } => {
                format!("± {:.0}", tree.range.cores(plus_minus * 1e9) * 1e6)
            }
            Total::FewRuns { .. } => "fewer than 10 runs".to_owned(),
            Total::NotSampled => "not sampled".to_owned(),
        };
        notes.insert(path.clone(), note);
    }
    notes
}

/// Returns the tree's nodes as stacks with what each has alone, in millionths of a core, since they are whole numbers.
fn folded(tree: &FlameTree) -> Vec<FoldedStack> {
    let mut path: Vec<String> = Vec::new();
    let mut stacks = Vec::new();
    let baseline = tree.baseline;
    for node in &tree.nodes {
        path.truncate(node.depth.saturating_sub(1) as usize);
        if node.kind != NodeKind::Root {
            path.push(tree.name(node).to_owned());
        }
        let micro = |cores: f64| (cores * 1_000_000.0).round().max(0.0) as u64;
        let value = micro(tree.range.cores(node.self_weight));
        let before = baseline.map_or(0, |range| micro(range.cores(node.baseline_self)));
        if (value > 0 || before > 0) && !path.is_empty() {
            stacks.push(FoldedStack {
                frames: path.clone(),
                value,
                baseline: before,
            });
        }
    }
    stacks
}
