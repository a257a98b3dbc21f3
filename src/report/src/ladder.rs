//! What to try when memory runs out: techniques of `--what-if` by what they are against, rehearsed on models of full size as people train them.

use super::markup::Markdown;
use anyhow::{Context, Result, ensure};
use base::units::{Bytes, Seconds, percent, range};
use record::results::{read_file, records};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Among the records; `just ladder` writes it.
const FILE: &str = "predicted/ladder.json";
const SCHEMA: u32 = 1;

/// Less is no reason to try it.
const LEAST_SAVING: f64 = 0.03;

#[derive(Debug, Deserialize)]
struct LadderFile {
    schema: u32,
    models: Vec<OnModel>,
}

#[derive(Debug, Deserialize)]
struct OnModel {
    model: String,
    card: String,
    batch: u64,
    /// Which blocks the baseline checkpoints; empty for none.
    checkpoint: String,
    command: String,
    /// In fp32, as PyTorch computes by itself, and from there.
    before: Vec<Tried>,
    /// The baseline, and each technique alone.
    rows: Vec<Tried>,
}

/// A row of `--what-if --json`.
#[derive(Debug, Deserialize)]
struct Tried {
    /// Empty for the script as it is.
    techniques: Vec<String>,
    needs_at_least: Option<f64>,
    predicted_seconds: Option<f64>,
    predicted_change: Option<TimeChange>,
    change: String,
    snippet: String,
    reason: Option<String>,
}

/// Longer by such a share, with an interval of 80 %.
#[derive(Debug, Clone, Copy, Deserialize)]
struct TimeChange {
    share: f64,
    low: f64,
    high: f64,
}

impl OnModel {
    fn named<'a>(rows: &'a [Tried], name: Option<&str>) -> Option<&'a Tried> {
        rows.iter().find(|row| row.techniques.first().map(String::as_str) == name && row.techniques.len() < 2)
    }

    /// What a technique makes of what the model needs, over what it needs as it is, and the technique's row.
    fn tried(&self, name: &str) -> Option<(f64, &Tried)> {
        [&self.rows, &self.before].into_iter().find_map(|rows| {
            let (plain, row) = (Self::named(rows, None)?.needs_at_least?, Self::named(rows, Some(name))?);
            Some((row.needs_at_least? / plain, row))
        })
    }

    fn label(&self) -> String {
        let known = [
            ("gpt2", "GPT-2 (124M)"),
            ("llama-1b", "Llama 1B"),
            ("vit-l16", "ViT-L/16"),
            ("resnet50", "ResNet-50"),
            ("sd-unet", "Stable Diffusion's UNet"),
        ];
        let name = known.iter().find(|(name, _)| *name == self.model).map_or(&*self.model, |(_, full)| full);
        let with = if self.checkpoint.is_empty() { "" } else { " with every block checkpointed" };
        format!("{name}{with}, batch {}, on {}", self.batch, self.card)
    }

    /// Whether its figures are such that ratios of them can be shown.
    fn is_possible(&self) -> bool {
        let is_size = |size: f64| size > 0.0 && size < 2f64.powi(50);
        let is_share = |share: f64| share > -1.0 && share < 1e4;
        let is_row = |row: &Tried| {
            let change = row.predicted_change;
            [row.needs_at_least, row.predicted_seconds].into_iter().flatten().all(is_size)
                && change.is_none_or(|change| [change.share, change.low, change.high].into_iter().all(is_share))
        };
        [&self.rows, &self.before].into_iter().flatten().all(is_row) && !Self::as_it_is(&self.rows).is_empty()
    }

    /// The figures without a technique.
    fn as_it_is(rows: &[Tried]) -> String {
        Self::named(rows, None).and_then(Tried::figures).unwrap_or_default()
    }
}

impl Tried {
    /// What it needs, and how long a step takes.
    fn figures(&self) -> Option<String> {
        Some(format!("{}, {}", Bytes(self.needs_at_least? as u64), Seconds(self.predicted_seconds?)))
    }
}

/// What a technique does to a model in words: where the band of the time holds both, only the band is said.
fn said((needs, row): (f64, &Tried)) -> String {
    let time = match row.predicted_change {
        None => "time not predicted".to_string(),
        Some(TimeChange { low, high, .. }) if low == high => "as fast".to_string(),
        Some(TimeChange { share, low, high }) => {
            let band = format!("{} to {}", percent(1.0 + low), percent(1.0 + high));
            if low < 0.0 && high > 0.0 { format!("time {band}") } else { format!("time {} ({band})", percent(1.0 + share)) }
        }
    };
    format!("{}, {time}", percent(needs))
}

/// One technique over all models.
#[derive(Debug, Serialize)]
pub struct LadderPlace {
    pub name: String,
    /// The least and the most that it saves.
    pub saves: String,
    /// Of each model, what is said; of one that it cannot be tried on, why.
    pub on_models: Vec<String>,
    pub change: String,
    /// The technique's page; empty where none shows it.
    pub page: String,
    pub snippet: Markdown,
    /// Whether the time is clearly longer on none of the models.
    pub is_free: bool,
    pub trains_otherwise: bool,
    /// The least and the most that a step takes longer; predicted.
    pub time: String,
    #[serde(skip)]
    best: f64,
    #[serde(skip)]
    slowest: f64,
}

/// What is tried against one kind of what fills memory.
#[derive(Debug, Serialize)]
pub struct LadderGroup {
    pub fills: &'static str,
    pub places: Vec<LadderPlace>,
}

#[derive(Debug, Serialize)]
pub struct Ladder {
    /// `GPT-2 (124M), batch 16, on rtx-4090`, and what it needs as it is, and in fp32.
    pub models: Vec<String>,
    pub plain: Vec<String>,
    pub before: Vec<(&'static str, Vec<String>)>,
    pub commands: Vec<Markdown>,
    pub groups: Vec<LadderGroup>,
    /// Techniques that save nothing worth trying on any of the models.
    pub useless: Vec<String>,
    #[serde(skip)]
    tried: Vec<OnModel>,
}

impl Ladder {
    /// Links each technique to its page, or to none where that is empty.
    pub fn link(&mut self, page_of: impl Fn(&str) -> String) {
        for place in self.groups.iter_mut().flat_map(|group| &mut group.places) {
            place.page = page_of(&place.name);
        }
    }

    /// What a technique makes of what is needed, or of the predicted time of a step: of one model, or with an empty name of all.
    pub fn ratios(&self, technique: &str, is_time: bool, model: &str) -> Vec<f64> {
        let of_models = self.tried.iter().filter(|on| model.is_empty() || on.model == model);
        let ratio = |(needs, row): (f64, &Tried)| if is_time { Some(1.0 + row.predicted_change?.share) } else { Some(needs) };
        of_models.filter_map(|on| on.tried(technique).and_then(ratio)).collect()
    }

    /// A table of techniques: a row for each model, without and with each of them.
    pub fn of_techniques(&self, names: &[String]) -> (Vec<String>, Vec<Vec<String>>) {
        // What the baseline has already is beside what it was before.
        let is_before = |on: &OnModel| names.iter().any(|name| OnModel::named(&on.before, Some(name)).is_some());
        let plain = if self.tried.iter().any(is_before) { "in fp32" } else { "as it is" };
        let head = ["needs at least; times predicted".to_string(), plain.to_string()];
        let head = head.into_iter().chain(names.iter().map(|name| format!("`{name}`"))).collect();
        let row = |on: &OnModel| {
            let plain = OnModel::as_it_is(if is_before(on) { &on.before } else { &on.rows });
            let cells = names.iter().map(|name| on.tried(name).map_or("–".to_string(), said));
            [on.label(), plain].into_iter().chain(cells).collect()
        };
        let is_tried = |on: &&OnModel| names.iter().any(|name| on.tried(name).is_some());
        (head, self.tried.iter().filter(is_tried).map(row).collect())
    }
}

/// The ladder that came with the project; none where nothing was rehearsed.
pub fn read(results: &Path) -> Result<Option<Ladder>> {
    let path = records(results).join(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let text = read_file(&path)?;
    let LadderFile { schema, models } =
        serde_json::from_slice(&text).with_context(|| format!("{} is damaged; `just ladder` writes it anew", path.display()))?;
    ensure!(schema == SCHEMA, "{} is of schema {schema}, and this vramlab reads schema {SCHEMA}", path.display());
    let odd = models.iter().find(|on| !on.is_possible());
    ensure!(odd.is_none(), "{}: {} has figures that no machine has", path.display(), odd.map_or("", |on| &on.model));
    Ok(Some(ladder(models)))
}

fn ladder(models: Vec<OnModel>) -> Ladder {
    let mut useless = Vec::new();
    let groups = rehearse::remedies().into_iter().map(|(fills, techniques)| {
        let places = techniques.iter().filter_map(|(name, otherwise)| place(&models, name, *otherwise));
        let mut places: Vec<LadderPlace> = places.collect();
        places.retain(|place| {
            let is_useful = place.best <= 1.0 - LEAST_SAVING;
            if !is_useful {
                useless.push(place.name.clone());
            }
            is_useful
        });
        // What is free comes first, by what it saves; then by what is saved for each per cent of a longer step. What trains something else is last.
        places.sort_by(|a, b| {
            let rank = |place: &LadderPlace| (place.trains_otherwise, !place.is_free);
            let worth = |place: &LadderPlace| (1.0 - place.best) / if place.is_free { 1.0 } else { place.slowest.max(0.01) };
            rank(a).cmp(&rank(b)).then(worth(b).total_cmp(&worth(a)))
        });
        LadderGroup { fills, places }
    });
    let groups = groups.filter(|group| !group.places.is_empty()).collect();
    let steps = [("fp32, PyTorch's defaults", None), ("fp32 with TF32", Some("tf32")), ("bf16 autocast", Some("autocast-bf16"))];
    let before = steps.map(|(label, name)| {
        let cell = |on: &OnModel| match OnModel::named(&on.before, name) {
            Some(row) => row.figures().or_else(|| row.reason.clone()).unwrap_or_default(),
            None => "–".to_string(),
        };
        (label, models.iter().map(cell).collect())
    });
    Ladder {
        plain: models.iter().map(|on| OnModel::as_it_is(&on.rows)).collect(),
        before: before.into(),
        models: models.iter().map(OnModel::label).collect(),
        commands: models.iter().map(|on| Markdown::text(&format!("`{}`", on.command.replace('`', "'")))).collect(),
        groups,
        useless,
        tried: models,
    }
}

/// None where it is tried on none of the models.
fn place(models: &[OnModel], name: &str, trains_otherwise: bool) -> Option<LadderPlace> {
    let found: Vec<Option<(f64, &Tried)>> = models.iter().map(|on| on.tried(name)).collect();
    let needs = || found.iter().flatten().map(|(needs, _)| *needs);
    let (best, worst) = (needs().reduce(f64::min)?, needs().reduce(f64::max)?);
    let said = |(on, found): (&OnModel, &Option<(f64, &Tried)>)| match found {
        Some(found) => said(*found),
        None => OnModel::named(&on.rows, Some(name)).and_then(|row| row.reason.clone()).unwrap_or_else(|| "not tried".to_string()),
    };
    let rows = || models.iter().zip(&found).filter_map(|(on, found)| Some((on, found.as_ref()?.1)));
    let shares = || rows().filter_map(|(_, row)| Some(row.predicted_change?.share));
    // What it changes on some of the models alone, as where there is BatchNorm, is said with their names.
    let on_all = rows().all(|(_, row)| !row.change.is_empty());
    let changed = rows().filter(|(_, row)| !row.change.is_empty());
    let mut changes: Vec<String> =
        changed.map(|(on, row)| if on_all { row.change.clone() } else { format!("{}: {}", on.model, row.change) }).collect();
    changes.dedup();
    // The lines differ by the names of the script's variables alone. Flags of the models that come with vramlab are nobody else's.
    let snippet = rows().map(|(_, row)| row.snippet.as_str()).find(|lines| !lines.starts_with("--"));
    Some(LadderPlace {
        name: name.to_string(),
        saves: range(percent(worst), percent(best)),
        on_models: models.iter().zip(&found).map(said).collect(),
        change: changes.join("; "),
        page: String::new(),
        snippet: Markdown::code(snippet.unwrap_or("")),
        is_free: rows().all(|(_, row)| row.predicted_change.is_some_and(|change| change.low <= 0.0)),
        trains_otherwise,
        time: match (shares().reduce(f64::min), shares().reduce(f64::max)) {
            (Some(least), Some(most)) => range(percent(1.0 + least), percent(1.0 + most)),
            _ => "not predicted".to_string(),
        },
        best,
        slowest: shares().reduce(f64::max).unwrap_or(f64::MAX),
    })
}
