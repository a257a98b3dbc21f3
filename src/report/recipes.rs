//! What to train with on a card of some size: the cheapest configurations that fit, as `vramlab plan` found them, with the lines of PyTorch.

use super::markup::Markdown;
use crate::units::Bytes;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Beside the machines' folders; `just recipes` writes it.
const FILE: &str = "recipes.json";
const SCHEMA: u32 = 2;

#[derive(Debug, Deserialize)]
struct Planned {
    schema: u32,
    recipes: Vec<Plan>,
}

#[derive(Debug, Deserialize)]
struct Plan {
    model: String,
    device_memory: u64,
    /// Nothing where nothing fits.
    configuration: Option<Configuration>,
    device_used: Option<u64>,
    /// The training script with this configuration, and what its rehearsal needed of the card.
    script: Option<String>,
    rehearsed: Option<u64>,
    fitting: usize,
    tried: usize,
}

#[derive(Debug, Deserialize)]
struct Configuration {
    batch: u64,
    optimizer: String,
    precision: String,
    checkpoint: String,
    accumulate: u64,
}

/// One line of the table.
#[derive(Debug, Serialize)]
pub struct Recipe {
    pub model: String,
    pub memory: String,
    pub batch: String,
    pub what: String,
    pub needs: String,
    pub rehearsed: String,
    pub fitting: String,
    /// The command that was rehearsed.
    pub script: Markdown,
}

#[derive(Debug, Serialize)]
pub struct Recipes {
    pub recipes: Vec<Recipe>,
    /// Whether each was rehearsed, too.
    pub are_rehearsed: bool,
    /// Lines of PyTorch for each technique that some recipe has.
    pub code: Vec<(Markdown, Markdown)>,
}

/// The recipes of a results folder; none where nothing was planned.
///
/// # Errors
/// The file is damaged.
pub fn read(results: &Path) -> Result<Option<Recipes>> {
    let path = results.join(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let planned: Planned =
        serde_json::from_str(&text).with_context(|| format!("{} is damaged; `just recipes` writes it anew", path.display()))?;
    ensure!(planned.schema == SCHEMA, "{} is of schema {}, and this vramlab reads schema {SCHEMA}", path.display(), planned.schema);
    let uses =
        |has: &dyn Fn(&Configuration) -> bool| planned.recipes.iter().filter_map(|plan| plan.configuration.as_ref()).any(has);
    let code = [
        (
            uses(&|c| c.precision != "fp32"),
            "bf16 autocast",
            "with torch.autocast(\"cuda\", dtype=torch.bfloat16):\n    loss = criterion(model(x), y)",
        ),
        (
            uses(&|c| c.accumulate > 1),
            "k micro-batches",
            "for x, y in micro_batches:  # k of them\n    loss = criterion(model(x), y) / k\n    loss.backward()\noptimizer.step()\noptimizer.zero_grad()",
        ),
        (
            uses(&|c| c.checkpoint != "none"),
            "checkpointing",
            "x = checkpoint(block, x, use_reentrant=False)  # in the model's forward, for every block or segment",
        ),
    ];
    let used = code.into_iter().filter(|(used, ..)| *used);
    let code = used.map(|(_, name, lines)| (Markdown::text(name), Markdown::trusted(lines.to_string()))).collect();
    let are_rehearsed = planned.recipes.iter().all(|plan| plan.configuration.is_none() || plan.rehearsed.is_some());
    Ok(Some(Recipes { recipes: planned.recipes.iter().map(recipe).collect(), are_rehearsed, code }))
}

fn recipe(plan: &Plan) -> Recipe {
    let (batch, what, needs) = match (&plan.configuration, plan.device_used) {
        (Some(c), Some(used)) => {
            let mut what =
                vec![c.precision.replace("amp-bf16", "bf16 autocast").replace("amp-fp16", "fp16 autocast with GradScaler")];
            if c.accumulate > 1 {
                what.push(format!("{} micro-batches of {}", c.accumulate, c.batch / c.accumulate));
            }
            match c.checkpoint.as_str() {
                "none" => {}
                "sqrt" => what.push("checkpointing in segments of sqrt(n) blocks".to_string()),
                "every-block" => what.push("checkpointing of every block".to_string()),
                other => what.push(format!("checkpointing: {other}")),
            }
            (
                c.batch.to_string(),
                format!("{}, {}", c.optimizer.replace("adamw", "AdamW"), what.join(", ")),
                Bytes(used).to_string(),
            )
        }
        _ => (String::new(), "nothing that was tried fits".to_string(), String::new()),
    };
    let rehearsed = match (&plan.configuration, plan.rehearsed) {
        (_, Some(bytes)) => format!("fits with {}", Bytes(bytes)),
        (Some(_), None) => "not rehearsed".to_string(),
        (None, None) => String::new(),
    };
    Recipe {
        model: plan.model.clone(),
        memory: Bytes(plan.device_memory).to_string(),
        batch,
        what,
        needs,
        rehearsed,
        script: Markdown::text(&plan.script.as_ref().map_or(String::new(), |script| format!("`{}`", script.replace('`', "'")))),
        fitting: format!("{} of {}", plan.fitting, plan.tried),
    }
}
