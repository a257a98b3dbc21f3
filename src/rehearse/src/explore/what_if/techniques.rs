//! What can be tried: the names of techniques, and which of them are alternatives.

use crate::run::libraries::PYTHON;
use std::sync::LazyLock;

/// Of the head of a file in `python/vramlab_rehearsal/techniques`: what is switched on from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Technique {
    pub name: &'static str,
    /// A script takes one of a group.
    pub group: &'static str,
    /// Its line of docs/what-if.md, which it shares with those that stand beside it.
    line: &'static str,
}

/// Groups in the order in which they are listed; those of others come last.
const GROUPS: &str = "inference, inference precision, cache, images, evaluation, precision, update, gradients, checkpointing, loss, attention, \
                      offloading, offloading of state, what is trained, precision of weights, compiling, matrix products, in place, layout, \
                      cards, accumulation";

/// All of them, by group.
pub fn techniques() -> &'static [Technique] {
    static ALL: LazyLock<Vec<Technique>> = LazyLock::new(|| {
        let of_file = |(path, text): &(&'static str, &'static str)| {
            let is_one = path.rsplit_once('/').is_some_and(|(folder, _)| folder == "vramlab_rehearsal/techniques");
            let head = text.split("\"\"\"").nth(1).filter(|_| is_one).unwrap_or_default();
            head.lines().filter_map(of_line).flatten().collect::<Vec<Technique>>()
        };
        let mut all: Vec<Technique> = PYTHON.iter().flat_map(of_file).collect();
        all.sort_by_key(|technique| GROUPS.split(", ").position(|group| group == technique.group).unwrap_or(usize::MAX));
        all
    });
    &ALL
}

/// `NAME, NAME (GROUP): LINE`.
fn of_line(line: &'static str) -> Option<impl Iterator<Item = Technique>> {
    let (names, rest) = line.split_once(" (")?;
    let (group, line) = rest.split_once("): ")?;
    let is_name = |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    names.split(", ").all(is_name).then(|| names.split(", ").map(move |name| Technique { name, group, line }))
}

/// The groups of what may compute parts of the forward pass again.
pub const AGAIN: [&str; 2] = ["checkpointing", "loss"];

/// The group of what has convolutions take other kernels, of which less is known.
pub const LAYOUT: &str = "layout";

/// The group of what takes more cards than one.
pub const CARDS: &str = "cards";

/// The groups of what goes over PCI Express: activations, and the optimizer's state.
pub const OFFLOADING: &str = "offloading";
pub const STATE_OFFLOADING: &str = "offloading of state";

/// The group of what trains something else than the script does: recommended last of all.
pub const TRAINED: &str = "what is trained";

/// The group of what keeps other numbers than the script does: never recommended before anything that does not.
pub const WEIGHTS: &str = "precision of weights";

/// The group of what compiles the model, and those that go with it: what the others change would be compiled with the model, and the hook's form of it
/// is not the one that its lines have.
pub const COMPILING: &str = "compiling";
pub const BESIDE_COMPILING: [&str; 7] =
    ["precision", "update", "gradients", OFFLOADING, STATE_OFFLOADING, "allocator", "accumulation"];

/// The groups of what is for scripts that never train, and those of what helps these, too.
const INFERENCE: [&str; 5] = ["inference", "inference precision", "cache", "images", SMALLER];
const BESIDE_TRAINING: [&str; 4] = ["attention", COMPILING, LAYOUT, "allocator"];

/// The groups of what needs optimizer steps, and only works with these.
pub const OF_STEPS: [&str; 6] = ["update", "gradients", STATE_OFFLOADING, TRAINED, CARDS, "accumulation"];

/// The group of smaller batches, which a script that trains takes with accumulation.
pub const SMALLER: &str = "batch";

/// For forward passes that keep what nothing goes back through: all of a script that never trains, and the evaluation of one that does.
pub const INFERENCE_MODE: &str = "inference-mode";
pub const NO_GRAD: &str = "no-grad";

/// Techniques that switch on a package's own ways: there is nothing for them where the script does not import it.
const OF_PACKAGES: [(&str, &[&str]); 2] = [
    ("diffusers", &["sliced-vae", "tiled-vae", "sliced-attention"]),
    ("transformers", &["offloaded-cache", "quantized-cache", "static-cache", "sdpa"]),
];

/// The package whose own ways a technique switches on.
pub fn package_of(technique: &str) -> Option<&'static str> {
    OF_PACKAGES.iter().find(|(_, techniques)| techniques.contains(&technique)).map(|(package, _)| *package)
}

/// It lets a backward pass compute again.
pub const MEMORY_BUDGET: &str = "memory-budget";

/// Whether techniques of a group are for scripts that train, or for those that do not.
pub fn is_for(group: &str, trains: bool, makes_steps: bool) -> bool {
    if trains && !makes_steps && group == SMALLER {
        return true;
    }
    if trains { !INFERENCE.contains(&group) } else { INFERENCE.contains(&group) || BESIDE_TRAINING.contains(&group) }
}

/// What `--only` takes.
pub fn only_help() -> String {
    let settings = SETTINGS.iter().map(|(name, _)| *name);
    let names: Vec<&str> = techniques().iter().map(|technique| technique.name).chain(settings).collect();
    format!(
        "With --what-if: try only these techniques, each alone, separated by commas; with + between their names together. There are {}, and with \
        --accumulation accumulate-2x, accumulate-4x, accumulate-8x",
        names.join(", ")
    )
}

/// Settings of PyTorch's allocator.
pub const SETTINGS: [(&str, &str); 3] = [
    ("expandable-segments", "expandable_segments:True"),
    ("max-split-size", "max_split_size_mb:128"),
    ("round-up-power-of-2", "roundup_power2_divisions:8"),
];
/// Read by every version of PyTorch, 2.15 included; PYTORCH_ALLOC_CONF, the newer name, by newer ones alone.
pub const ALLOCATOR: &str = "PYTORCH_CUDA_ALLOC_CONF";

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of the table in docs/what-if.md: the names in code, what is done, and the group where it has others.
    fn table() -> Vec<String> {
        let row = |same: &[Technique]| {
            let group = same[0].group;
            let has_others = techniques().iter().filter(|other| other.group == group).count() > 1;
            let names: Vec<String> = same.iter().map(|technique| format!("`{}`", technique.name)).collect();
            format!("| {} | {} | {} |", names.join(", "), same[0].line, if has_others { group } else { "" }).replace("|  |", "| |")
        };
        techniques().chunk_by(|a, b| a.line == b.line).map(row).collect()
    }

    #[test]
    fn what_is_tried_against_what_fills_memory_are_techniques() {
        let is_one = |name: &str| {
            techniques().iter().any(|technique| technique.name == name) || SETTINGS.iter().any(|(set, _)| *set == name)
        };
        let names = base::remedies::REMEDIES.iter().flat_map(|remedy| remedy.techniques);
        let unknown: Vec<_> = names.filter(|name| !is_one(name) && !name.starts_with("accumulate-")).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn what_the_program_says_of_techniques_is_of_techniques_and_of_what_a_rehearsal_looks_for() {
        let of_packages = OF_PACKAGES.iter().flat_map(|(_, techniques)| techniques.iter());
        for name in of_packages.chain(&[INFERENCE_MODE, NO_GRAD]) {
            assert!(techniques().iter().any(|technique| technique.name == *name), "{name}");
        }
        let (_, passes) = PYTHON.iter().find(|(path, _)| *path == "vramlab_rehearsal/passes.py").unwrap();
        let looked_for = OF_PACKAGES.map(|(package, _)| format!("\"{package}\"")).join(", ");
        assert!(passes.contains(&format!("_PACKAGES = ({looked_for})")), "{looked_for}");
    }

    #[test]
    fn the_table_of_the_docs_is_made_of_the_heads_of_files() {
        let files =
            PYTHON.iter().filter(|(path, _)| path.starts_with("vramlab_rehearsal/techniques/") && path.matches('/').count() == 2);
        for (path, text) in files.filter(|(path, _)| !path.ends_with("__init__.py") && !path.ends_with("accumulate.py")) {
            let head = text.split("\"\"\"").nth(1).unwrap();
            assert!(head.trim_end().lines().all(|line| of_line(line).is_some()), "{path}: NAME (GROUP): LINE, and no other lines");
        }
        let docs = include_str!("../../../../../docs/what-if.md");
        let begins = "| technique | what is done |";
        let (_, rest) = docs.split_once(begins).unwrap();
        let found: Vec<&str> = rest.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
        let settings = found.iter().position(|line| line.starts_with("| `expandable-segments`")).unwrap();
        assert_eq!(found[..settings], table()[..], "write these lines into docs/what-if.md:\n{}", table().join("\n"));
    }
}
