//! One page of a process on a card: the answer, its memory over time with the blocks in it, and what fills the peak.

use super::course::{LAYERS, MOST_EVENTS, View, layer, who};
use super::time::modules;
use crate::answer::reply::{Reply, smallest};
use crate::answer::time::Prediction;
use crate::answer::{Answer, LiveBytes, MOST_ROWS, PhaseRow, ProcessAnswer, module_of};
use crate::words::{bytes, place_of, share_of, short};
use anyhow::Result;
use base::inline::{STYLE, document, picture_address};
use base::units::Seconds;
use chart::{AreaPlot, Areas, Head, NARROW, Panel, WIDE, areas};
use minijinja::value::Serde;
use minijinja::{Value, context};
use serde_json::json;
use sim::trace::MemoryBlock;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

/// Blocks that a page tells of one by one, the largest; smaller ones are there as the sum of their layer.
const MOST_BLOCKS: usize = 20_000;
/// Steps whose phases are listed, beside that of the peak and the last.
const FIRST_STEPS: u32 = 8;
/// Rows of the table of blocks.
const ROWS: usize = 20;

/// Draws a view; with the picture, where its course lies.
pub fn picture(answer: &Answer, view: &View, width: i32) -> Result<(String, Option<AreaPlot>)> {
    let process = view.process;
    let title = format!("{} of GPU memory allocated at most", bytes(process.peak_allocated));
    let command = command(answer);
    let several = if answer.processes.len() > 1 { format!(", {}", who(process)) } else { String::new() };
    let course = view.course().0;
    let course = if course.points.is_empty() { Err("nothing was allocated".to_string()) } else { Ok(course) };
    let (svg, plots) = areas(&Areas {
        head: &Head::new(&title, &format!("{command}, on {}{several}", answer.gpu.name), width),
        layers: LAYERS.map(|(name, _)| name.to_string()).to_vec(),
        rows: vec![vec![Panel { name: String::new(), course }]],
        one_scale: true,
        note: "bytes after each allocation and free, in order; each part is as wide as the others, however many events it has"
            .to_string(),
    })?;
    Ok((svg, plots.into_iter().next()))
}

/// The command without the folders of its program.
fn command(answer: &Answer) -> String {
    let program = answer.command.first().map(Path::new).and_then(Path::file_name).map(|name| name.to_string_lossy());
    program.into_iter().chain(answer.command.iter().skip(1).map(|word| word.into())).collect::<Vec<_>>().join(" ")
}

/// Writes the page of the process that is the `n`th of the answer; `names` are what the files of each have in their names.
pub fn page(answer: &Answer, view: &View, names: &[String], n: usize) -> Result<String> {
    let process = view.process;
    let (wide, wide_plot) = picture(answer, view, WIDE)?;
    let (narrow, narrow_plot) = picture(answer, view, NARROW)?;
    let mut places = SourcePlaces { view, lines: HashMap::new() };
    let (data, left_out) = data(&mut places, [(WIDE, wide_plot), (NARROW, narrow_plot)]);
    let style = format!("{}\n{}", STYLE.trim_end(), include_str!("page.css").trim_end());
    let script = include_str!("page.js").trim_end();
    let others = answer.processes.iter().zip(names).enumerate();
    let other = |(m, (other, name)): (usize, (&ProcessAnswer, &String))| {
        let (allocated, reserved) = (bytes(other.peak_allocated), bytes(other.peak_reserved));
        context! { who => who(other), file => format!("memory{name}.html"), allocated, reserved, is_this => m == n }
    };
    let others: Vec<Value> = others.map(other).collect();
    let peak = &process.peak;
    let share = |row: &LiveBytes| [short(&row.name), bytes(row.bytes), share_of(row.bytes, peak.bytes), row.blocks.to_string()];
    let shares = |held: &[LiveBytes]| held.iter().take(MOST_ROWS).map(share).collect::<Vec<[String; 4]>>();
    let at: Vec<String> = [("at", &peak.line), ("called from", &peak.called_from), ("backward of", &peak.forward_line)]
        .into_iter()
        .filter_map(|(word, line)| Some(format!("{word} {}", place_of(line.as_ref()?))))
        .chain(peak.module.iter().map(|module| format!("in {module}")))
        .chain(peak.operator.clone())
        .collect();
    let last = process.phases.iter().map(|row| row.step).max().unwrap_or(0);
    let is_listed = |step: u32| step <= FIRST_STEPS || step == last || step == peak.step;
    let phase = |row: &PhaseRow| {
        let step = if row.step == 0 { "–".to_string() } else { row.step.to_string() };
        [step, row.phase.to_string(), bytes(row.peak_allocated), bytes(row.allocated), bytes(row.reserved)]
    };
    let phases: Vec<[String; 5]> = process.phases.iter().filter(|row| is_listed(row.step)).map(phase).collect();
    let values = context! {
        title => Reply::of(answer).headline(),
        verdict => Serde(&answer.verdict),
        command => command(answer),
        who => who(process),
        torch => &process.torch,
        rows => Serde(figures(answer, view)),
        place => match &process.out_of_memory {
            Some(oom) => format!("Out of memory {}, allocating {} ({} free)", view.place(process.moment), bytes(oom.tried), bytes(oom.free)),
            None => format!("The peak is {}", view.place(process.moment)),
        },
        at => Serde(at),
        tables => Serde([("category", shares(&peak.categories)), ("module", shares(&peak.modules)), ("line", shares(&peak.lines))]),
        blocks => Serde(largest(&mut places)),
        phases => Serde(phases),
        time => Serde(answer.time.as_ref().filter(|_| n == 0).map(time_of)),
        steps_left_out => (0..=last).filter(|step| !is_listed(*step)).count(),
        findings => Serde(&process.findings),
        notes => Serde(answer.notes.iter().map(|note| &note.text).collect::<Vec<_>>()),
        others => Serde(&others),
        name => &names[n],
        left_out,
        most_events => MOST_EVENTS,
        cut => view.events.len() > MOST_EVENTS,
        wide => picture_address(&wide), narrow => picture_address(&narrow),
        // Nothing in it can end the element that it stands in.
        data => data.to_string().replace('<', "\\u003c"),
    };
    document(include_str!("page.html"), &style, script, values)
}

/// A sentence, and of each module the time of its kernels with its share; all of it predicted.
fn time_of(time: &Prediction) -> (String, Vec<[String; 4]>) {
    let between = format!("{} to {}", Seconds(time.low_seconds), Seconds(time.high_seconds));
    let sentence = format!("{} on {} (80 %: {between}), bound by {}", Seconds(time.step_seconds), time.gpu, time.bound_by);
    (sentence, modules(time).collect())
}

fn figures(answer: &Answer, view: &View) -> Vec<Value> {
    let (process, gpu) = (view.process, &answer.gpu);
    let row = |what: &str, value: i64, note: &str| context! { what, size => bytes(value), bytes => value, note };
    let on_device = process.peak_reserved + gpu.context;
    let beyond = bytes(process.fragmentation.reserved_beyond_allocated);
    let reserved = format!("what the allocator had of the GPU, {beyond} more than was ever allocated");
    let mut rows = vec![
        row("peak requested", process.peak_requested, "what tensors asked for"),
        row("peak allocated", process.peak_allocated, "rounded up by the allocator"),
        row("peak reserved", process.peak_reserved, &reserved),
        row("on the GPU", on_device, &format!("with {} of context (assumed)", bytes(gpu.context))),
    ];
    if gpu.memory >= on_device && process.out_of_memory.is_none() {
        rows.push(row("headroom", gpu.memory - on_device, &format!("of {}", bytes(gpu.memory))));
    }
    rows.extend(answer.needs_at_least.map(|needs| row("needs at least", needs, &smallest(answer))));
    rows
}

/// Names of lines, each made once.
struct SourcePlaces<'a> {
    view: &'a View<'a>,
    lines: HashMap<u32, String>,
}

impl SourcePlaces<'_> {
    fn line(&mut self, stack: u32) -> String {
        let trace = self.view.trace;
        self.lines.entry(stack).or_insert_with(|| trace.line(stack).map_or(String::new(), place_of)).clone()
    }

    /// The tensor that a block is, else what made it.
    fn name(&self, block: &MemoryBlock) -> String {
        let trace = self.view.trace;
        let made = &self.view.events[block.made()];
        let tensor = trace.tensors.get(&block.tensor);
        tensor.or_else(|| trace.operators.get(&made.operator.into())).cloned().unwrap_or_default()
    }
}

fn largest(places: &mut SourcePlaces) -> Vec<[String; 5]> {
    let view = places.view;
    let peak = view.process.moment;
    let mut live: Vec<&MemoryBlock> = view.blocks.iter().filter(|block| block.is_live_after(peak)).collect();
    live.sort_by_key(|block| (-block.rounded, block.made()));
    live.truncate(ROWS);
    let line = |block: &MemoryBlock| {
        let made = &view.events[block.made()];
        let line = places.line(if made.origin != 0 { made.origin } else { made.stack });
        let module = module_of(view.trace, block).unwrap_or_default();
        [bytes(block.rounded), block.category.name().to_string(), places.name(block), module, line]
    };
    live.into_iter().map(line).collect()
}

/// What the page's script needs to say what lies under the pointer; and how many blocks are too small for the page.
fn data(places: &mut SourcePlaces, pictures: [(i32, Option<AreaPlot>); 2]) -> (serde_json::Value, usize) {
    let view = places.view;
    let all = view.course().1;
    let used: BTreeSet<usize> = pictures.iter().flat_map(|(_, plot)| plot).flat_map(|plot| &plot.points).copied().collect();
    let used: Vec<usize> = used.into_iter().collect();
    let events: Vec<usize> = used.iter().map(|point| all[*point].event).collect();
    // Only what is there at a moment that is drawn can be pointed at.
    let mut blocks: Vec<&MemoryBlock> = view.blocks.iter().collect();
    blocks
        .retain(|block| events.get(events.partition_point(|event| *event < block.made())).is_some_and(|e| block.is_live_after(*e)));
    blocks.sort_by_key(|block| (-block.rounded, block.made()));
    let left_out = blocks.len().saturating_sub(MOST_BLOCKS);
    blocks.truncate(MOST_BLOCKS);
    blocks.sort_by_key(|block| block.made());
    let mut names = Names { numbers: HashMap::new(), names: Vec::new() };
    names.number(String::new());
    // Event, where it is (a name), and bytes of each layer.
    let moments = used.iter().map(|point| all[*point]).map(|m| (m.event, names.number(view.place(m.event)), m.layers));
    let moments: Vec<_> = moments.collect();
    // Made and freed after which events (0 where never), bytes, and layer; then names: what it is, module, line, forward line.
    let blocks: Vec<[i64; 8]> = blocks
        .into_iter()
        .map(|block| {
            let made = &view.events[block.made()];
            let forward = if made.origin != 0 { places.line(made.origin) } else { String::new() };
            let texts = [places.name(block), module_of(view.trace, block).unwrap_or_default(), places.line(made.stack), forward];
            let [name, module, line, forward] = texts.map(|text| names.number(text) as i64);
            let freed = block.freed().unwrap_or(0) as i64;
            [block.made() as i64, freed, block.rounded, layer(block.category) as i64, name, module, line, forward]
        })
        .collect();
    let moment = |point: &usize| used.partition_point(|own| own < point);
    let pictures = pictures.map(|(width, plot)| {
        json!({ "width": width, "plot": plot.map(|plot| AreaPlot { points: plot.points.iter().map(moment).collect(), ..plot }) })
    });
    let layers = LAYERS.map(|(name, _)| name);
    (json!({ "layers": layers, "pictures": pictures, "moments": moments, "blocks": blocks, "names": names.names }), left_out)
}

/// Texts that are said once.
struct Names {
    numbers: HashMap<String, usize>,
    names: Vec<String>,
}

impl Names {
    fn number(&mut self, name: String) -> usize {
        let next = self.names.len();
        let number = *self.numbers.entry(name.clone()).or_insert(next);
        if number == next {
            self.names.push(name);
        }
        number
    }
}
