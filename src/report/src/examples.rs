//! What README shows of rehearsals: read from files that scripts write again, never pasted.

use super::prose::digits;
use anyhow::{Context, Result};
use rehearse::show::is_head;
use std::collections::HashMap;
use std::path::Path;

/// What README shows of an answer of `--what-if`: its table, as the program prints it.
pub fn table(text: &str) -> Option<String> {
    let rows: Vec<&str> =
        text.lines().skip_while(|line| !line.trim_end().ends_with(" fits")).take_while(|line| !line.is_empty()).collect();
    (rows.len() > 2).then(|| format!("```\n{}\n```", rows.join("\n")))
}

/// A terminal of 80 columns with such a text, as SVG.
pub fn terminal(text: &str) -> String {
    const WIDTH: f64 = 8.43;
    const LINE: usize = 19;
    const TOP: usize = 30;
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let colour = |(at, line): (usize, &str)| match line {
        _ if at == 0 && line.starts_with("FITS") => "#3fb950\" font-weight=\"bold",
        _ if at == 0 => "#ff7b72\" font-weight=\"bold",
        _ if is_head(line) => "#ffffff\" font-weight=\"bold",
        _ => "#c9d1d9",
    };
    let lines = text.lines().enumerate().map(|(at, line)| {
        format!(
            "<text x=\"16\" y=\"{}\" fill=\"{}\" xml:space=\"preserve\">{}</text>\n",
            TOP + at * LINE,
            colour((at, line)),
            escaped(line)
        )
    });
    let (lines, count): (String, usize) = (lines.collect(), text.lines().count());
    let (width, height) = ((80.0 * WIDTH) as usize + 32, TOP + count * LINE);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" font-family=\"'DejaVu Sans Mono', Menlo, Consolas, monospace\" \
         font-size=\"14\">\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#0d1117\"/>\n{lines}</svg>\n"
    )
}

/// What docs/ecosystem.md shows of torchtune's ladder, and the command of its last step.
pub fn ladder(ecosystem: &str, entry_points: &str) -> Option<String> {
    let table: Vec<&str> = ladder_table(ecosystem).collect();
    let rows = rows(entry_points)?;
    let last = rows.iter().rfind(|row| row["name"].starts_with("Llama 3.2 3B: + "))?;
    let (step, command) = (last["name"].split(": ").nth(1)?, &last["command"]);
    let folded = format!("<details><summary>The command of '{step}'</summary>\n\n```sh\n{command}\n```\n\n</details>");
    Some(format!("{}\n\n{folded}", table.join("\n")))
}

/// Of torchtune's steps, with its head.
fn ladder_table(ecosystem: &str) -> impl Iterator<Item = &str> {
    ecosystem.lines().skip_while(|line| !line.starts_with("| step | theirs")).take_while(|line| line.starts_with('|'))
}

type Row = HashMap<String, String>;

fn rows(csv: &str) -> Option<Vec<Row>> {
    csv::Reader::from_reader(csv.as_bytes()).deserialize().collect::<csv::Result<_>>().ok()
}

fn number(row: &Row, column: &str) -> Option<f64> {
    row.get(column)?.parse().ok()
}

/// `-9.1%` of a table's cell.
fn per_cent(cell: &str) -> Option<f64> {
    cell.trim().rsplit(' ').next()?.trim_end_matches('%').parse().ok()
}

/// The smallest size within which so many of the sizes lie.
fn within(mut sizes: Vec<f64>, share: f64) -> Option<f64> {
    sizes.sort_by(f64::total_cmp);
    sizes.get(((sizes.len() as f64 * share).ceil() as usize).checked_sub(1)?).copied()
}

/// The table 'Can I trust it': what came out as on real GPUs, and what did not.
pub fn trust(project: &Path, real_gpus: &str) -> Result<String> {
    let read = |file: &str| {
        let path = project.join(file);
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    };
    let (ecosystem, titan) = (read("docs/ecosystem.md")?, read("tests/ecosystem/torchtitan.csv")?);
    let ran = |card: &str, side: &str| -> Result<(String, String)> {
        Ok((read(&format!("records/gpus/{card}-{side}.csv"))?, read(&format!("records/gpus/{card}-measured.csv"))?))
    };
    let blind = [ran("h200", "rehearsed")?, ran("h100", "rehearsed")?];
    let techniques = read("records/gpus/h200-what-if.csv")?;
    let times = [read("docs/time.md")?, read("records/times/fine_tuning.csv")?];
    trusted(real_gpus, &ecosystem, &titan, [&blind, &[ran("h200", "today")?, ran("h100", "today")?]], &techniques, &times)
        .context("records of real GPUs have not what README shows of them")
}

/// Of programs that ran on cards, by name: how far allocated, reserved after as many steps and in all, and a step's time were off.
struct Ran {
    allocated: Vec<(String, f64)>,
    reserved: Vec<f64>,
    early: Vec<f64>,
    times: Vec<f64>,
}

fn ran(cards: &[(String, String)]) -> Option<Ran> {
    let mut ran = Ran { allocated: Vec::new(), reserved: Vec::new(), early: Vec::new(), times: Vec::new() };
    for (rehearsed, measured) in cards {
        let (rehearsed, measured) = (rows(rehearsed)?, rows(measured)?);
        for real in &measured {
            let Some(ours) = rehearsed.iter().find(|other| other["program"] == real["program"]) else { continue };
            let off = |own: &str, column: &str| Some(number(ours, own)? / number(real, column)? - 1.0);
            ran.allocated.extend(off("peak_allocated", "peak_allocated").map(|off| (real["program"].clone(), off)));
            ran.reserved.extend(off("peak_reserved", "peak_reserved"));
            ran.early.extend(off("peak_reserved", "peak_reserved_early"));
            ran.times.extend(off("step_seconds", "step_seconds").map(f64::abs));
        }
    }
    Some(ran)
}

fn trusted(
    real_gpus: &str,
    ecosystem: &str,
    titan: &str,
    [blind, today]: [&[(String, String)]; 2],
    techniques: &str,
    [times, fine_tuning]: &[String; 2],
) -> Option<String> {
    let (blind, today) = (ran(blind)?, ran(today)?);
    let titan = rows(titan)?;
    let table = [
        "| prediction | beside the real figure: blind, before the card was seen (minus: we said too little) | today's program |"
            .to_string(),
        "|---|---|---|".to_string(),
        trusted_allocated(&rows(real_gpus)?, &blind, &today)?,
        trusted_reserved(&blind, &today)?,
        trusted_of_others(ecosystem, &titan)?,
        trusted_times(&blind, &today, times, &rows(fine_tuning)?, &titan)?,
        trusted_fixes(rows(techniques)?),
    ];
    Some(table.join("\n"))
}

fn least(values: &[f64]) -> Option<f64> {
    values.iter().copied().reduce(f64::min)
}

fn most(values: &[f64]) -> Option<f64> {
    values.iter().copied().reduce(f64::max)
}

fn near(values: &[f64], within: f64) -> usize {
    values.iter().filter(|off| off.abs() < within).count()
}

fn cells(line: &str) -> Vec<String> {
    line.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect()
}

fn trusted_allocated(events: &[Row], blind: &Ran, today: &Ran) -> Option<String> {
    let sum = |column: &str| events.iter().filter_map(|row| number(row, column)).sum::<f64>() as u64;
    let of = |ran: &Ran| ran.allocated.iter().map(|(_, off)| *off).collect::<Vec<f64>>();
    let (worst, furthest) = blind.allocated.iter().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()))?;
    Some(format!(
        "| **allocated**: {} runs of our programs on an H200 and an H100 | within 0.4 % in {}; **missed**: {worst} {:+.0} % (`cudnn.benchmark`). {} of {} allocations and frees of 15 steps that others recorded are equal | {} of them rehearsed again: within 0.4 % in {} |",
        blind.allocated.len(),
        near(&of(blind), 0.004),
        100.0 * furthest,
        digits(sum("events_identical")),
        digits(sum("events_measured")),
        today.allocated.len(),
        near(&of(today), 0.004)
    ))
}

fn trusted_reserved(blind: &Ran, today: &Ran) -> Option<String> {
    let Ran { reserved, early, .. } = blind;
    Some(format!(
        "| **reserved**, which decides whether it fits: the same runs | within 1 % in {}; **{:.0} to {:+.0} %** | within 1 % in {} of {} |",
        near(reserved, 0.01),
        100.0 * least(reserved)?.min(least(early)?),
        100.0 * most(reserved)?.max(most(early)?),
        near(&today.reserved, 0.01),
        today.reserved.len()
    ))
}

fn trusted_of_others(ecosystem: &str, titan: &[Row]) -> Option<String> {
    let lines = |starts: &'static str| ecosystem.lines().filter(move |line| line.starts_with(starts)).map(cells);
    let bytes: Vec<f64> = ladder_table(ecosystem).skip(2).map(cells).filter_map(|row| per_cent(&row[3])).collect();
    let detection = lines("| vision: references/detection").chain(lines("| detectron2"));
    let detection: Vec<f64> = detection.filter_map(|row| per_cent(&row[6])).collect();
    let off = |row: &Row| Some(number(row, "reserved")? / 2f64.powi(30) / number(row, "published_gib")? - 1.0);
    let titan: Vec<f64> = titan.iter().filter_map(off).collect();
    let far: Vec<f64> = titan.iter().copied().filter(|off| off.abs() >= 0.002).collect();
    Some(format!(
        "| memory that others published, in view | | torchtitan on H100s: {} of {} within 0.2 %, the others {:.0} to {:.0} %; [torchtune](docs/ecosystem.md#torchtune-llama-32-3b-step-by-step): {} of {} within 1 %; **detection of 2019: {:.0} to {:.0} %** |",
        near(&titan, 0.002),
        titan.len(),
        100.0 * least(&titan)?,
        100.0 * most(&far)?,
        near(&bytes, 1.0),
        bytes.len(),
        least(&detection)?,
        most(&detection)?
    ))
}

fn trusted_times(blind: &Ran, today: &Ran, times: &str, fine_tuning: &[Row], titan: &[Row]) -> Option<String> {
    let speed = |row: &Row| Some(100.0 * number(row, "tokens_per_second")? / number(row, "published_tokens_per_second")? - 100.0);
    let speeds: Vec<f64> = titan.iter().filter_map(speed).collect();
    let error = |row: &Row| Some((number(row, "predicted")? / number(row, "measured")? - 1.0).abs());
    let tuned: Vec<f64> = fine_tuning.iter().map(error).collect::<Option<_>>()?;
    let halves = |errors: &[f64]| {
        let [half, most] = [0.5, 0.9].map(|share| within(errors.to_vec(), share).map(|error| 100.0 * error));
        Some(format!("half within {:.0} %, nine in ten within {:.0} %", half?, most?))
    };
    let step = times.lines().find(|line| line.starts_with("| all steps |")).map(cells)?;
    Some(format!(
        "| **time of a step** | our {} runs: {} | {} of them predicted again: {}; {} steps that others timed: half within {}; {} of fine-tuning: {}; **torchtitan's tokens/s {:+.0} to {:+.0} %**, as GH200s at 500 W |",
        blind.times.len(),
        halves(&blind.times)?,
        today.times.len(),
        halves(&today.times)?,
        step[1],
        step[2].replace(" / ", ", nine in ten within "),
        tuned.len(),
        halves(&tuned)?,
        least(&speeds)?,
        most(&speeds)?
    ))
}

fn trusted_fixes(techniques: Vec<Row>) -> String {
    let tried: Vec<Row> = techniques.into_iter().filter(|row| !row["techniques"].is_empty()).collect();
    let is_in_band = |row: &&Row| {
        let real = number(row, "change_measured");
        real.is_some_and(|real| number(row, "change_low") <= Some(real) && Some(real) <= number(row, "change_high"))
    };
    // What was predicted to be faster and was slower.
    let wrong = |row: &Row| {
        let (said, real) = (number(row, "change")?, number(row, "change_measured")?);
        let text = || format!("{} {:+.0} % and was {:+.0} %", row["techniques"], 100.0 * said, 100.0 * real);
        (said < 0.0 && real > 0.01).then(text)
    };
    let wrong: Vec<String> = tried.iter().filter_map(wrong).collect();
    let wrong = if wrong.is_empty() { String::new() } else { format!("; **wrong sign**: we said {}", wrong.join(", ")) };
    format!(
        "| **what a fix costs**: {} fixes measured on an H200 | change of time in our band in {}{wrong} | |",
        tried.len(),
        tried.iter().filter(is_in_band).count()
    )
}
