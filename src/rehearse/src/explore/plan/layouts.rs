//! The layouts of so many cards that a command can be told, and how it is told them.

use crate::explore::template::FlagTemplate;
use anyhow::{Result, ensure};
use serde::Serialize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

/// What a layout can say, as `{tp}` in its template.
const NAMES: [&str; 9] = ["tp", "pp", "cp", "ep", "dp", "mb", "gpus", "nodes", "local"];

/// How frameworks are told a layout, by their documentation.
pub const PRESETS: [(&str, &str); 5] = [
    (
        "torchtitan",
        "--parallelism.tensor_parallel_degree {tp} --parallelism.pipeline_parallel_degree {pp} --training.local_batch_size {mb}",
    ),
    ("megatron", "--tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} --micro-batch-size {mb}"),
    // What `accelerate launch` makes of its flags.
    (
        "accelerate",
        "ACCELERATE_USE_PARALLELISM_CONFIG=true PARALLELISM_CONFIG_TP_SIZE={tp} PARALLELISM_CONFIG_DP_SHARD_SIZE={dp} \
         ACCELERATE_USE_FSDP=true FSDP_VERSION=2 --per_device_train_batch_size {mb}",
    ),
    // As its own examples of tensor parallel training have it; what DeepSpeed reads itself is a file.
    ("deepspeed", "--tp_size {tp} --dp_size {dp} --batch_size {mb}"),
    (
        "lightning",
        "--trainer.strategy ModelParallelStrategy --trainer.strategy.tensor_parallel_size {tp} --trainer.strategy.data_parallel_size {dp} \
         --trainer.num_nodes {nodes} --trainer.devices {local} --data.batch_size {mb}",
    ),
];

/// How a command is told its layout: words with names in braces, `--tp {tp}`, or variables of its environment, `TP={tp}`.
#[derive(Debug, Clone)]
pub struct LayoutTemplate(Vec<String>);

impl FromStr for LayoutTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<LayoutTemplate, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_string).collect();
        let template = LayoutTemplate(words);
        let names = template.names()?;
        match names.is_empty() {
            true => Err(format!("'{text}' has no name in braces, as in '--tp {{tp}} --pp {{pp}} --micro-batch {{mb}}'")),
            false => Ok(template),
        }
    }
}

impl LayoutTemplate {
    fn names(&self) -> Result<BTreeSet<&'static str>, String> {
        let mut names = BTreeSet::new();
        for word in &self.0 {
            for part in word.split('{').skip(1) {
                let name = part.split('}').next().unwrap_or_default();
                let known = NAMES.iter().find(|known| **known == name);
                names.insert(*known.ok_or_else(|| format!("there is no {{{name}}}: a layout has {{{}}}", NAMES.join("}, {")))?);
            }
        }
        Ok(names)
    }

    /// The command and its environment with a layout: in the place of flags that it has, or at its end.
    pub(super) fn with(&self, command: &[OsString], layout: &Layout) -> (Vec<OsString>, Vec<(&'static str, String)>) {
        let filled = |word: &str| {
            NAMES.iter().fold(word.to_string(), |word, name| word.replace(&format!("{{{name}}}"), &layout.of(name).to_string()))
        };
        let (mut command, mut variables, mut before) = (command.to_vec(), Vec::new(), Vec::new());
        for word in &self.0 {
            let variable = word
                .split_once('=')
                .filter(|(name, _)| name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_' || byte.is_ascii_digit()));
            if let Some((name, value)) = variable.filter(|_| before.is_empty()) {
                // As long as the program: there are a few.
                variables.push((&*name.to_string().leak(), filled(value)));
                continue;
            }
            before.push(word.clone());
            let holes: Vec<&str> = NAMES.iter().filter(|name| word.contains(&format!("{{{name}}}"))).copied().collect();
            match holes.as_slice() {
                [] => {}
                [one] => {
                    let text = std::mem::take(&mut before).join(" ").replace(&format!("{{{one}}}"), "{}");
                    match text.parse::<FlagTemplate>() {
                        Ok(flag) => command = flag.with(&command, layout.of(one).into()),
                        Err(_) => command.extend(text.split(' ').map(|word| OsString::from(filled(word)))),
                    }
                }
                _ => command.extend(std::mem::take(&mut before).iter().map(|word| OsString::from(filled(word)))),
            }
        }
        command.extend(before.into_iter().map(OsString::from));
        (command, variables)
    }
}

/// How cards are shared out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Layout {
    pub gpus: u32,
    /// Ranks that share each product, stages of a pipeline, ranks that share a sequence, those that share experts, and those with batches of their own.
    pub tp: u32,
    pub pp: u32,
    pub cp: u32,
    pub ep: u32,
    pub dp: u32,
    /// Samples of a micro-batch.
    pub mb: u32,
    /// Machines.
    pub nodes: u32,
}

impl Layout {
    fn of(&self, name: &str) -> u32 {
        match name {
            "tp" => self.tp,
            "pp" => self.pp,
            "cp" => self.cp,
            "ep" => self.ep,
            "dp" => self.dp,
            "mb" => self.mb,
            "nodes" => self.nodes,
            "local" => self.gpus.div_ceil(self.nodes),
            _ => self.gpus,
        }
    }

    /// Whether it splits a model no more than another, with as large a micro-batch.
    pub(super) fn needs_as_much(&self, other: &Layout) -> bool {
        self.tp <= other.tp && self.pp <= other.pp && self.cp <= other.cp && self.ep <= other.ep && self.mb >= other.mb
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let parts = [
            ("tp", self.tp, 0),
            ("pp", self.pp, 0),
            ("cp", self.cp, 1),
            ("ep", self.ep, 1),
            ("dp", self.dp, 0),
            ("mb", self.mb, 0),
        ];
        let said: Vec<String> =
            parts.iter().filter(|(_, of, usual)| of > usual).map(|(name, of, _)| format!("{name} {of}")).collect();
        f.pad(&said.join(" "))
    }
}

/// Values that are tried of one name, `mb=1,2,4`.
#[derive(Debug, Clone)]
pub struct Values {
    name: String,
    values: Vec<u32>,
}

impl FromStr for Values {
    type Err = String;

    fn from_str(text: &str) -> Result<Values, String> {
        let wrong = || format!("'{text}' is not written like mb=1,2,4, with one of {}", NAMES[..6].join(", "));
        let (name, values) = text.split_once('=').ok_or_else(wrong)?;
        let values: Result<Vec<u32>, _> = values.split(',').map(str::parse).collect();
        let values = values.ok().filter(|values| values.iter().all(|value| *value > 0)).ok_or_else(wrong)?;
        if NAMES[..6].contains(&name) { Ok(Values { name: name.to_string(), values }) } else { Err(wrong()) }
    }
}

/// What is tried.
#[derive(Debug, Clone)]
pub struct Search {
    /// The command as it was given, with its launcher.
    pub command: Vec<OsString>,
    pub template: LayoutTemplate,
    pub values: Vec<Values>,
    /// Cards of a machine.
    pub per_node: u32,
}

/// Micro-batches that are tried where nobody says which.
const MICRO_BATCHES: [u32; 4] = [1, 2, 4, 8];
/// Stages of a pipeline at most.
const STAGES: u32 = 16;

impl Search {
    pub(super) fn started(&self, layout: &Layout) -> String {
        let (command, variables) = self.template.with(&self.command, layout);
        let variables = variables.into_iter().map(|(name, value)| format!("{name}={value}"));
        let words = command.iter().map(|word| word.to_string_lossy().into_owned());
        let quoted = words.map(|word| {
            if word.is_empty() || word.contains([' ', '\'', '"', '$', '*', ';', '|', '&', '(']) {
                format!("'{}'", word.replace('\'', "'\\''"))
            } else {
                word
            }
        });
        variables.chain(quoted).collect::<Vec<_>>().join(" ")
    }

    /// All layouts of so many cards: tensor and context parallel groups within a machine where nobody says otherwise. Those that split a model most are
    /// the first, each with its smallest micro-batch.
    pub(super) fn layouts(&self, gpus: u32) -> Result<Vec<Layout>> {
        let names = self.template.names().map_err(anyhow::Error::msg)?;
        let of = |name: &str, most: u32| -> Vec<u32> {
            if let Some(given) = self.values.iter().find(|values| values.name == name) {
                return given.values.clone();
            }
            match name {
                _ if !names.contains(name) => vec![1],
                "mb" => MICRO_BATCHES.to_vec(),
                _ => (0..=most.ilog2()).map(|power| 1 << power).collect(),
            }
        };
        let near = self.per_node.min(gpus).max(1);
        let nodes = gpus.div_ceil(near);
        let mut layouts = Vec::new();
        for tp in of("tp", near) {
            for cp in of("cp", (near / tp).max(1)) {
                for pp in of("pp", STAGES.min(gpus)) {
                    let split = tp * pp * cp;
                    if !gpus.is_multiple_of(split) {
                        continue;
                    }
                    let dp = gpus / split;
                    for ep in of("ep", dp) {
                        let is_wanted =
                            |dp: u32| self.values.iter().all(|values| values.name != "dp" || values.values.contains(&dp));
                        let fits = is_wanted(dp) && dp.is_multiple_of(ep);
                        layouts.extend(of("mb", 1).into_iter().filter(|_| fits).map(|mb| Layout {
                            gpus,
                            tp,
                            pp,
                            cp,
                            ep,
                            dp,
                            mb,
                            nodes,
                        }));
                    }
                }
            }
        }
        layouts.sort_by_key(|of| (std::cmp::Reverse(of.tp * of.pp * of.cp * of.ep), of.mb));
        ensure!(!layouts.is_empty(), "--gpus {gpus}: no layout has so many cards with what --values allows");
        Ok(layouts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    fn search(template: &str, values: &[&str]) -> Search {
        let values = values.iter().map(|text| text.parse().unwrap()).collect();
        Search { command: Vec::new(), template: template.parse().unwrap(), values, per_node: 8 }
    }

    #[test]
    fn layouts_share_out_all_cards_and_what_splits_most_is_the_first() {
        let layouts = search("--tp {tp} --pp {pp} --mb {mb}", &["mb=1,2"]).layouts(64).unwrap();
        assert!(layouts.iter().all(|of| of.tp * of.pp * of.dp == 64 && of.tp <= 8 && of.pp <= 16));
        assert_eq!(layouts.len(), 2 * (5 + 5 + 5 + 4));
        assert_eq!((layouts[0].tp * layouts[0].pp, layouts[0].mb), (64, 1));
        assert_eq!(layouts[0].to_string(), "tp 4 pp 16 dp 1 mb 1");
        // Of what the command is not told there is one.
        assert!(search("--mb {mb}", &[]).layouts(4).unwrap().iter().all(|of| of.dp == 4));
        assert!(search("--tp {tp}", &["tp=3"]).layouts(64).is_err());
        assert_eq!(search("--pp {pp}", &["pp=3"]).layouts(12).unwrap()[0].dp, 4);
        for text in ["--tp 2", "--tp {xp}"] {
            assert!(text.parse::<LayoutTemplate>().unwrap_err().contains("{tp}"), "{text}");
        }
        assert!("mb=0".parse::<Values>().is_err() && "xx=1".parse::<Values>().is_err());
    }

    #[test]
    fn what_needs_more_than_what_does_not_fit_is_known() {
        let of = |tp, pp, mb| Layout { gpus: 64, tp, pp, cp: 1, ep: 1, dp: 64 / tp / pp, mb, nodes: 8 };
        assert!(of(2, 2, 4).needs_as_much(&of(4, 2, 4)) && of(4, 2, 8).needs_as_much(&of(4, 2, 4)));
        assert!(!of(8, 1, 1).needs_as_much(&of(4, 2, 4)) && !of(4, 2, 2).needs_as_much(&of(4, 2, 4)));
    }

    #[test]
    fn a_command_is_told_its_layout_in_its_own_words() {
        let layout = Layout { gpus: 16, tp: 2, pp: 4, cp: 1, ep: 1, dp: 2, mb: 8, nodes: 2 };
        let told = |template: &str, command: &str| template.parse::<LayoutTemplate>().unwrap().with(&words(command), &layout);
        let (command, variables) = told("--tp {tp} --mesh={pp}x{dp} --mb={mb}", "python t.py --tp 1 --lr 3");
        assert_eq!(command, words("python t.py --tp 2 --lr 3 --mesh=4x2 --mb=8"));
        assert!(variables.is_empty());
        let (command, variables) = told("TP={tp} ON=true --mb {mb}", "python t.py");
        assert_eq!((command, variables), (words("python t.py --mb 8"), vec![("TP", "2".to_string()), ("ON", "true".to_string())]));
        for (name, template) in PRESETS {
            assert!(template.parse::<LayoutTemplate>().is_ok(), "{name}");
        }
    }
}
