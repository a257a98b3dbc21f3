//! What to train with on a card: for each the fastest of the combinations that fit, as rehearsals predict them, with the lines of PyTorch.

use super::markup::Markdown;
use anyhow::{Context, Result, bail, ensure};
use base::units::{Bytes, Seconds};
use record::results::read_file;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Beside the machines' folders; `just recipes` writes it.
const FILE: &str = "recipes.json";
const SCHEMA: u32 = 3;

#[derive(Debug, Deserialize)]
struct Rehearsed {
    schema: u32,
    recipes: Vec<OnCard>,
}

#[derive(Debug, Deserialize)]
struct OnCard {
    model: String,
    card: String,
    /// Samples of a step.
    batch: u64,
    rehearsals: usize,
    /// Combinations of precision and checkpointing of which some micro-batch fits.
    fitting: usize,
    /// Nothing where nothing fits.
    best: Option<Combination>,
}

#[derive(Debug, Deserialize)]
struct Combination {
    precision: String,
    checkpoint: String,
    micro_batch: u64,
    peak_on_device: u64,
    seconds: StepSeconds,
    /// What was rehearsed.
    command: String,
}

/// Predicted, with an interval of 80 %.
#[derive(Debug, Deserialize)]
struct StepSeconds {
    step: f64,
    low: f64,
    high: f64,
}

/// One line of the table.
#[derive(Debug, Serialize)]
pub struct Recipe {
    pub model: String,
    pub card: String,
    pub batch: u64,
    pub what: String,
    pub needs: String,
    pub time: String,
    /// How many of the combinations fit, and after how many rehearsals that was known.
    pub tried: String,
    pub command: Option<Markdown>,
}

#[derive(Debug, Serialize)]
pub struct Recipes {
    pub recipes: Vec<Recipe>,
    /// Lines of PyTorch for each technique that some recipe has.
    pub code: Vec<(Markdown, Markdown)>,
}

/// The recipes of a results folder; none where nothing was rehearsed.
///
/// # Errors
/// The file is damaged.
pub fn read(results: &Path) -> Result<Option<Recipes>> {
    let path = results.join(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let text = read_file(&path)?;
    let rehearsed: Rehearsed =
        serde_json::from_slice(&text).with_context(|| format!("{} is damaged; `just recipes` writes it anew", path.display()))?;
    ensure!(
        rehearsed.schema == SCHEMA,
        "{} is of schema {}, and this vramlab reads schema {SCHEMA}",
        path.display(),
        rehearsed.schema
    );
    let odd = rehearsed.recipes.iter().find(|on_card| on_card.best.as_ref().is_some_and(|best| best.micro_batch == 0));
    if let Some(on_card) = odd {
        bail!("{}: a recipe for {} on {} has a micro-batch of 0 samples", path.display(), on_card.model, on_card.card);
    }
    let best = || rehearsed.recipes.iter().filter_map(|on_card| Some((on_card, on_card.best.as_ref()?)));
    let code = [
        (
            best().any(|(_, best)| best.precision != "fp32"),
            "bf16 autocast",
            "with torch.autocast(\"cuda\", dtype=torch.bfloat16):\n    loss = criterion(model(x), y)",
        ),
        (
            best().any(|(on_card, best)| best.micro_batch < on_card.batch),
            "k micro-batches",
            "for x, y in micro_batches:  # k of them\n    loss = criterion(model(x), y) / k\n    loss.backward()\noptimizer.step()\noptimizer.zero_grad()",
        ),
        (
            best().any(|(_, best)| best.checkpoint != "none"),
            "checkpointing",
            "x = checkpoint(block, x, use_reentrant=False)  # in the model's forward, for every block or segment",
        ),
    ];
    let used = code.into_iter().filter(|(used, ..)| *used);
    let code = used.map(|(_, name, lines)| (Markdown::text(name), Markdown::trusted(lines.to_string()))).collect();
    Ok(Some(Recipes { recipes: rehearsed.recipes.iter().map(recipe).collect(), code }))
}

fn recipe(on_card: &OnCard) -> Recipe {
    let (what, needs, time) = match &on_card.best {
        Some(best) => {
            let mut what = vec![best.precision.replace("bf16", "bf16 autocast")];
            if best.micro_batch < on_card.batch {
                what.push(format!("{} micro-batches of {}", on_card.batch / best.micro_batch, best.micro_batch));
            }
            match best.checkpoint.as_str() {
                "none" => {}
                "sqrt" => what.push("checkpointing in segments of sqrt(n) blocks".to_string()),
                "every-block" => what.push("checkpointing of every block".to_string()),
                other => what.push(format!("checkpointing: {other}")),
            }
            let StepSeconds { step, low, high } = best.seconds;
            let time = format!("{} ({} to {})", Seconds(step), Seconds(low), Seconds(high));
            (what.join(", "), Bytes(best.peak_on_device).to_string(), time)
        }
        None => ("nothing that was tried fits".to_string(), String::new(), String::new()),
    };
    let command = |best: &Combination| Markdown::text(&format!("`{}`", best.command.replace('`', "'")));
    Recipe {
        model: on_card.model.clone(),
        card: on_card.card.clone(),
        batch: on_card.batch,
        what,
        needs,
        time,
        tried: format!("{} fit, {} rehearsals", on_card.fitting, on_card.rehearsals),
        command: on_card.best.as_ref().map(command),
    }
}
