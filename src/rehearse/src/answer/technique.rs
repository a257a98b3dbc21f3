//! Techniques: what stands in the heads of the files in `python/vramlab_rehearsal/techniques`, which Python and this program read alike.

use crate::run::libraries::PYTHON;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// What is switched on from outside, or set in the environment, and what is known of it before it is tried.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Technique {
    #[serde(skip)]
    pub name: String,
    /// A script takes one of a group; without one it goes with all others, and is its own.
    #[serde(default)]
    pub group: String,
    /// The scripts that it is for.
    #[serde(rename = "use", default)]
    pub scripts: Scripts,
    /// Whether it needs optimizer steps.
    #[serde(default)]
    pub steps: bool,
    /// What it does, in a few words, and its line of docs/what-if.md.
    pub short: String,
    pub line: String,
    /// Of what it frees which share.
    #[serde(default)]
    pub frees: BTreeMap<Source, f64>,
    /// Which share of a forward pass through the model's repeated blocks it computes again; none of one that computes nothing again. PyTorch stops
    /// when what was kept is there again: three quarters of the pass, by what four programs of `records/advice` were tried to take.
    pub again: Option<f64>,
    #[serde(default)]
    pub time: TimeKind,
    #[serde(default)]
    pub changes: Changes,
    #[serde(default)]
    pub needs: Vec<Need>,
    /// The package whose own ways it switches on: there is nothing for it where the script does not import that.
    pub package: Option<String>,
    /// What a script has that has it already, or has nothing for it.
    #[serde(default)]
    pub unless: Vec<Has>,
    /// Whether it goes with a compiled model, as it does not change what is compiled.
    #[serde(default)]
    pub compiles: bool,
    /// Of PyTorch's allocator.
    pub setting: Option<String>,
    /// What it is tried against, where nobody knows what it frees, or where that is not what it is for.
    pub against: Option<Source>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scripts {
    /// Those that never train.
    Inference,
    Both,
    #[default]
    Training,
}

/// What of a script's memory is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Logits, their copies and gradients; and of those all but the logits and one gradient.
    Loss,
    LossCopies,
    Activations,
    /// Of 1 MiB or more.
    LargeActivations,
    /// Where most products are not of half precision.
    Fp32Activations,
    Fp32Loss,
    /// Of activations in fp32 what autocast keeps in half precision.
    CastActivations,
    /// Of repeated blocks, but for what the next one reads.
    Blocks,
    /// The same without every second product's result and attention's.
    BlocksInPart,
    Gradients,
    OptimizerState,
    Weights,
    FrozenWeights,
    KvCache,
    /// Kept for a backward pass that never comes.
    NeedlessGraphs,
    /// What expandable segments would not reserve.
    Fragmentation,
}

/// What its time hangs on, beside what is computed again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeKind {
    #[default]
    Same,
    /// Kernels in half precision.
    Half,
    /// Copies to the host and back.
    Host,
    /// Other kernels, of which less is known.
    Layout,
    Unknown,
}

/// What becomes of the result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Changes {
    #[default]
    Nothing,
    /// Products and activations are rounded to fewer bits.
    Rounding,
    /// Weights or optimizer state are kept in fewer bits.
    Numbers,
    /// Something else is trained.
    Training,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// Of the command, for its batch.
    Flags,
    HostMemory,
    Compiler,
    Cards,
}

/// What a capture shows of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Has {
    Checkpoints,
    /// Other ranks.
    Distributed,
    /// No modules that are repeated.
    NoBlocks,
    Compiled,
    HalfPrecision,
    HalfWeights,
    NoProducts,
    FewClasses,
    /// Nothing that calls it so.
    NoCrossEntropy,
    ChannelsLast,
    /// Another than Adam or AdamW.
    OtherOptimizer,
    /// In which copies cannot wait for each other on the host.
    CapturedGraphs,
    /// An optimizer whose step wants one.
    Closure,
    /// It wants all gradients at once.
    ClipsGradients,
    NoState,
    /// A model of transformers, which checkpoints its layers by itself, all or none.
    TransformersModel,
}

impl Technique {
    pub fn wants(&self, need: Need) -> bool {
        self.needs.contains(&need)
    }

    /// Whether it is for scripts that train, or for those that do not.
    pub fn is_for(&self, trains: bool, makes_steps: bool) -> bool {
        // A smaller batch, where nothing could accumulate.
        let is_smaller = self.scripts == Scripts::Inference && self.wants(Need::Flags);
        match self.scripts {
            Scripts::Both => true,
            Scripts::Inference => !trains || (!makes_steps && is_smaller),
            Scripts::Training => trains,
        }
    }

    pub fn is_against(&self, source: Source) -> bool {
        self.frees.contains_key(&source)
    }
}

/// Where a file's head stands.
fn head(path: &str, text: &'static str) -> Option<&'static str> {
    let is_one =
        path.rsplit_once('/').is_some_and(|(folder, name)| folder == "vramlab_rehearsal/techniques" && !name.starts_with('_'));
    text.split("\"\"\"").nth(1).filter(|_| is_one)
}

/// All of them, by the scripts that they are for and by group.
pub fn techniques() -> &'static [Technique] {
    static ALL: LazyLock<Vec<Technique>> = LazyLock::new(|| {
        let heads = PYTHON.iter().filter_map(|(path, text)| Some((path, head(path, text)?)));
        let of_head = |(path, head)| -> BTreeMap<String, Technique> {
            serde_json::from_str(head).unwrap_or_else(|wrong| panic!("the head of {path}: {wrong}"))
        };
        let group = |of: &Technique, name: &str| if of.group.is_empty() { name } else { &of.group }.to_string();
        let all = heads.flat_map(of_head).map(|(name, of)| Technique { group: group(&of, &name), name, ..of });
        let mut all: Vec<Technique> = all.collect();
        all.sort_by_key(|technique| {
            (technique.scripts, technique.setting.is_some(), technique.group.clone(), technique.line.clone())
        });
        all
    });
    &ALL
}

/// What fills memory in a training, and the names of what is tried against it; and whether something else is trained with them, or other numbers
/// are kept.
pub fn remedies() -> Vec<(&'static str, Vec<(String, bool)>)> {
    let fills = |technique: &Technique| {
        // Activations first: what is freed of a loss besides is no reason for a row there.
        let is_of_activations = technique.is_against(Source::Activations);
        let first = technique.frees.keys().next().copied().filter(|_| !is_of_activations);
        let source = if is_of_activations { Some(Source::Activations) } else { technique.against.or(first) }?;
        Some(match source {
            Source::Loss | Source::LossCopies => "logits and loss",
            Source::Gradients | Source::OptimizerState | Source::Weights | Source::FrozenWeights => "optimizer state and gradients",
            Source::Fragmentation => "fragmentation",
            Source::KvCache | Source::NeedlessGraphs => return None,
            _ => "activations",
        })
    };
    let of = |what: &'static str| {
        let all = techniques().iter().filter(move |of| of.scripts != Scripts::Inference && fills(of) == Some(what));
        let names = all.flat_map(|of| {
            let names =
                if of.wants(Need::Flags) { [2, 4].map(|n| format!("{}-{n}x", of.name)).into() } else { vec![of.name.clone()] };
            names.into_iter().map(|name| (name, of.changes >= Changes::Numbers))
        });
        (what, names.collect())
    };
    ["activations", "logits and loss", "optimizer state and gradients", "fragmentation"].map(of).into()
}

pub fn named(name: &str) -> Option<&'static Technique> {
    techniques().iter().find(|technique| technique.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn python_looks_for_the_packages_of_heads() {
        let mut packages: Vec<&str> = techniques().iter().filter_map(|technique| technique.package.as_deref()).collect();
        packages.sort_unstable();
        packages.dedup();
        let (_, passes) = PYTHON.iter().find(|(path, _)| *path == "vramlab_rehearsal/passes.py").unwrap();
        assert!(passes.contains(&format!(
            "_PACKAGES = ({})",
            packages.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
        )));
    }

    /// The lines of the table in docs/what-if.md: the names in code, what is done, and the group where it has others.
    fn table() -> Vec<String> {
        let row = |same: &[Technique]| {
            let group = if same[0].group == same[0].name { "" } else { &same[0].group };
            let names: Vec<String> = same.iter().map(|technique| format!("`{}`", technique.name)).collect();
            format!("| {} | {} | {group} |", names.join(", "), same[0].line).replace("|  |", "| |")
        };
        techniques().chunk_by(|a, b| a.line == b.line).map(row).collect()
    }

    #[test]
    fn the_table_of_the_docs_is_made_of_the_heads_of_files() {
        let docs = include_str!("../../../../docs/what-if.md");
        let (_, rest) = docs.split_once("| technique | what is done |").unwrap();
        let found: Vec<&str> = rest.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
        let table = table();
        let marked = |row: &String| format!("{} {row}", if found.contains(&row.as_str()) { ' ' } else { '+' });
        let told: Vec<String> = table.iter().map(marked).collect();
        assert!(found == table, "the table of docs/what-if.md is to be this one, + what it lacks:\n{}", told.join("\n"));
    }

    /// Two that exclude each other are combined where one's group has a mistake.
    #[test]
    fn a_group_has_several_techniques() {
        let of_group = |group: &str| techniques().iter().filter(|other| other.group == group).count();
        let groups: BTreeSet<&str> = techniques().iter().map(|of| &*of.group).filter(|group| of_group(group) > 1).collect();
        for of in techniques().iter().filter(|of| of.group != of.name) {
            let (name, group) = (&of.name, &of.group);
            assert!(groups.contains(&**group), "{name} is alone in the group '{group}': leave that out, or name one of {groups:?}");
        }
    }
}
