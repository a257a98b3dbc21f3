//! What to try when memory runs out, in order: every technique of `--what-if`, rehearsed on models of full size on named cards.

use super::markup::Markdown;
use super::pages::Page;
use anyhow::{Context, Result, ensure};
use base::units::percent;
use base::units::{Bytes, Seconds};
use record::results::read_file;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Beside the machines' folders; `just recipes` writes it.
const FILE: &str = "techniques.json";
const SCHEMA: u32 = 1;

/// Less is no reason to try it.
const LEAST_SAVING: f64 = 0.03;

/// Up to so much more time a step takes as long as before.
const SAME_TIME: f64 = 1.03;

#[derive(Debug, Deserialize)]
struct OrderRow {
    schema: u32,
    models: Vec<OnModel>,
}

#[derive(Debug, Deserialize)]
struct OnModel {
    model: String,
    card: String,
    batch: u64,
    command: String,
    peak_reserved: f64,
    /// Predicted.
    step_seconds: f64,
    techniques: Vec<Technique>,
    refused: Vec<Refusal>,
}

impl OnModel {
    /// Whether its figures are such that ratios of them can be drawn.
    fn is_possible(&self) -> bool {
        let is_size = |size: f64| size > 0.0 && size < 2f64.powi(50);
        let is_share = |share: f64| share > -1.0 && share < 1e4;
        let of_techniques = self.techniques.iter().all(|technique| {
            let TimeShare { share, low, high } = technique.time;
            is_size(technique.peak_reserved) && [share, low, high].into_iter().all(is_share)
        });
        is_size(self.peak_reserved) && is_size(self.step_seconds) && of_techniques
    }
}

#[derive(Debug, Deserialize)]
struct Technique {
    name: String,
    peak_reserved: f64,
    time: TimeShare,
    /// Whether something else is trained, or other numbers are kept.
    changes_training: bool,
    /// What it changes, in words.
    change: String,
    snippet: String,
}

/// How much longer a step takes, as a share of it: predicted, with an interval of 80 %.
#[derive(Debug, Deserialize)]
struct TimeShare {
    share: f64,
    low: f64,
    high: f64,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    name: String,
    reason: String,
}

/// One technique over all models.
#[derive(Debug, Serialize)]
pub struct OrderPlace {
    pub name: String,
    pub memory: String,
    pub time: String,
    /// What is said of each model; of the model that it cannot be tried on, why.
    pub on_models: Vec<String>,
    pub change: String,
    /// The technique's page; empty where none shows it.
    pub page: String,
    pub snippet: Markdown,
    /// Ratios to the model without it: the middle, the least and the most over the models.
    #[serde(skip)]
    pub of_memory: [f64; 3],
    #[serde(skip)]
    pub of_time: [f64; 3],
}

/// Techniques that cost the same kind of thing.
#[derive(Debug, Serialize)]
pub struct OrderGroup {
    pub title: &'static str,
    pub places: Vec<OrderPlace>,
}

#[derive(Debug, Serialize)]
pub struct Order {
    /// `gpt2, batch 8, on rtx-4090`, with what the model takes as it is.
    pub models: Vec<String>,
    pub plain: Vec<String>,
    pub commands: Vec<Markdown>,
    pub groups: Vec<OrderGroup>,
    /// Techniques that save nothing worth trying on any of the models.
    pub useless: Vec<String>,
    #[serde(skip)]
    tried: Vec<OnModel>,
}

impl Order {
    /// Links each technique to the first page that shows it.
    pub fn link(&mut self, pages: &[Page]) {
        for place in self.groups.iter_mut().flat_map(|group| &mut group.places) {
            let shows = |page: &&Page| page.words.blocks.iter().any(|block| block.head.contains(&format!("`{}`", place.name)));
            place.page = pages.iter().find(shows).map_or(String::new(), |page| page.file.clone());
        }
    }

    /// What a technique makes of the peak or the predicted time of a step, over the plain step's: of one model, or with an empty name of all.
    pub fn ratios(&self, technique: &str, is_time: bool, model: &str) -> Vec<f64> {
        let of_models = self.tried.iter().filter(|on| model.is_empty() || on.model == model);
        let found = of_models.filter_map(|on| Some((on, on.techniques.iter().find(|tried| tried.name == technique)?)));
        found.map(|(on, tried)| if is_time { 1.0 + tried.time.share } else { tried.peak_reserved / on.peak_reserved }).collect()
    }

    /// A table of techniques: a row for each model, as it is and with each of them.
    pub fn of_techniques(&self, names: &[String]) -> (Vec<String>, Vec<Vec<String>>) {
        let mut head = vec!["fp32, AdamW; times predicted".to_string(), "as it is".to_string()];
        head.extend(names.iter().map(|name| format!("`{name}`")));
        let cell = |on: &OnModel, name: &String| match on.techniques.iter().find(|tried| tried.name == *name) {
            Some(tried) => {
                let share = tried.peak_reserved / on.peak_reserved;
                format!("{} ({}), time {}", Bytes(tried.peak_reserved as u64), percent(share), percent(1.0 + tried.time.share))
            }
            None => "–".to_string(),
        };
        let is_tried = |on: &&OnModel| names.iter().any(|name| on.techniques.iter().any(|tried| tried.name == *name));
        let row = |on: &OnModel| {
            let own = [
                format!("{}, batch {}, on {}", full_name(&on.model), on.batch, on.card),
                Bytes(on.peak_reserved as u64).to_string(),
            ];
            own.into_iter().chain(names.iter().map(|name| cell(on, name))).collect()
        };
        (head, self.tried.iter().filter(is_tried).map(row).collect())
    }
}

/// A model that comes with vramlab, as people call it.
fn full_name(model: &str) -> String {
    let known = [
        ("gpt2", "GPT-2 (124M)"),
        ("llama-1b", "Llama 1B"),
        ("vit-l16", "ViT-L/16"),
        ("resnet50", "ResNet-50"),
        ("sd-unet", "Stable Diffusion's UNet"),
    ];
    known.iter().find(|(name, _)| *name == model).map_or_else(|| model.to_string(), |(_, full)| (*full).to_string())
}

/// The order of a results folder; none where nothing was rehearsed.
///
/// # Errors
/// The file is damaged.
pub fn read(results: &Path) -> Result<Option<Order>> {
    let path = results.join(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let text = read_file(&path)?;
    let tried: OrderRow =
        serde_json::from_slice(&text).with_context(|| format!("{} is damaged; `just recipes` writes it anew", path.display()))?;
    let odd = tried.models.iter().find(|on| !on.is_possible());
    ensure!(odd.is_none(), "{}: {} has figures that no machine has", path.display(), odd.map_or("", |on| &on.model));
    let ordered = ordered(&tried.models);
    ensure!(tried.schema == SCHEMA, "{} is of schema {}, and this vramlab reads schema {SCHEMA}", path.display(), tried.schema);
    Ok(Some(Order { tried: tried.models, ..ordered }))
}

fn ordered(models: &[OnModel]) -> Order {
    let mut names: Vec<&str> = models.iter().flat_map(|on| on.techniques.iter().map(|technique| technique.name.as_str())).collect();
    names.sort_unstable();
    names.dedup();
    let mut groups = [
        ("As fast, and the same is trained", vec![]),
        ("Slower, largest saving for the time first", vec![]),
        ("Trains something else", vec![]),
    ];
    let mut useless = Vec::new();
    for name in names {
        let (place, changes_training) = place(models, name);
        let [middle, least, _] = place.of_memory;
        let kind = match place.of_time[0] {
            _ if changes_training => 2,
            time if time > SAME_TIME => 1,
            _ => 0,
        };
        if least > 1.0 - LEAST_SAVING || middle >= 1.0 { useless.push(place.name) } else { groups[kind].1.push(place) }
    }
    let saved = |place: &OrderPlace| 1.0 - place.of_memory[0];
    for (kind, (_, places)) in groups.iter_mut().enumerate() {
        // What costs time is tried by what it saves for it.
        let worth = |place: &OrderPlace| if kind == 1 { saved(place) / (place.of_time[0] - 1.0) } else { saved(place) };
        places.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
    }
    let plain = |on: &OnModel| format!("{} reserved, {} a step", Bytes(on.peak_reserved as u64), Seconds(on.step_seconds));
    Order {
        models: models.iter().map(|on| format!("{}, batch {}, on {}", full_name(&on.model), on.batch, on.card)).collect(),
        plain: models.iter().map(plain).collect(),
        commands: models.iter().map(|on| Markdown::text(&format!("`{}`", on.command.replace('`', "'")))).collect(),
        groups: groups
            .into_iter()
            .filter(|(_, places)| !places.is_empty())
            .map(|(title, places)| OrderGroup { title, places })
            .collect(),
        useless,
        tried: Vec::new(),
    }
}

fn place(models: &[OnModel], name: &str) -> (OrderPlace, bool) {
    let found: Vec<Option<&Technique>> =
        models.iter().map(|on| on.techniques.iter().find(|technique| technique.name == name)).collect();
    let said = |(on, technique): (&OnModel, &Option<&Technique>)| match technique {
        Some(technique) => {
            let TimeShare { share, low, high } = technique.time;
            let memory = percent(technique.peak_reserved / on.peak_reserved);
            format!("{memory}, time {} ({} to {})", percent(1.0 + share), percent(1.0 + low), percent(1.0 + high))
        }
        None => on.refused.iter().find(|refused| refused.name == name).map_or("not tried".to_string(), |r| r.reason.clone()),
    };
    let on_models = models.iter().zip(&found).map(said).collect();
    let memory = models.iter().zip(&found).filter_map(|(on, technique)| Some((*technique)?.peak_reserved / on.peak_reserved));
    let (of_memory, of_time) = (spread(memory), spread(found.iter().flatten().map(|technique| 1.0 + technique.time.share)));
    // The lines differ by the names of the script's variables alone. Flags of the models that come with vramlab are nobody else's.
    let snippet = found.iter().flatten().map(|technique| technique.snippet.as_str()).find(|lines| !lines.starts_with("--"));
    // What it changes on some of the models alone, as where there is BatchNorm, is said with their names.
    let on_all = found.iter().flatten().all(|technique| !technique.change.is_empty());
    let changed = models.iter().zip(&found).filter_map(|(on, technique)| Some((on, technique.as_ref()?.change.as_str())));
    let mut changes: Vec<String> = changed
        .filter(|(_, change)| !change.is_empty())
        .map(|(on, change)| if on_all { change.to_string() } else { format!("{}: {change}", on.model) })
        .collect();
    changes.dedup();
    let range = |[middle, least, most]: [f64; 3]| {
        if percent(least) == percent(most) {
            return percent(middle);
        }
        format!("{} ({} to {})", percent(middle), percent(least), percent(most))
    };
    let place = OrderPlace {
        name: name.to_string(),
        memory: range(of_memory),
        time: range(of_time),
        on_models,
        change: changes.join("; "),
        page: String::new(),
        snippet: Markdown::code(snippet.unwrap_or("")),
        of_memory,
        of_time,
    };
    (place, found.iter().flatten().all(|technique| technique.changes_training))
}

/// The median, the least and the most.
fn spread(ratios: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut all: Vec<f64> = ratios.collect();
    all.sort_by(f64::total_cmp);
    let last = all.len().saturating_sub(1);
    let at = |place: usize| all.get(place).copied().unwrap_or(f64::NAN);
    [(at(last / 2) + at(last.div_ceil(2))) / 2.0, at(0), at(last)]
}
