//! What README shows of rehearsals: read from files that scripts write again, never pasted.

use super::prose::digits;
use anyhow::{Context, Result};
use std::collections::HashMap;
use std::path::Path;

/// Fixes of an answer that README shows.
const FIXES: usize = 3;

/// What README shows of an answer of `--what-if`: what to do, some techniques that make it fit and leave the result as it is, and the last of their lines.
pub fn answer(text: &str) -> Option<String> {
    let sentence = text.lines().find(|line| line.starts_with("The fastest that fits"))?;
    let table: Vec<&str> =
        text.lines().skip_while(|line| !line.starts_with("    technique ")).take_while(|line| !line.is_empty()).collect();
    let (head, rows) = table.split_first()?;
    let plain = rows.iter().find(|row| row.trim_start().starts_with("as it is "))?;
    let name = |row: &str| row.get(4..)?.split("  ").next().map(str::to_string);
    // A letter at the end stands for what changes in the result.
    let leaves_result = |row: &&&str| row.ends_with("  yes") && name(row).is_some_and(|name| !name.contains(" + "));
    let fixes: Vec<&str> = rows.iter().filter(leaves_result).take(FIXES).copied().collect();
    // Of each the last line, which calls what the others define.
    let last = |row: &&str| {
        let from = text.lines().skip_while(|line| Some(line.trim()) != name(row).map(|name| format!("# {name}")).as_deref());
        let is_next = |line: &str| rows.iter().any(|row| Some(line.trim()) == name(row).map(|name| format!("# {name}")).as_deref());
        from.skip(1).take_while(|line| !is_next(line)).filter(|line| !line.is_empty()).last()
    };
    // Names are as wide as those of sets, which do not stand here.
    let width = [plain].into_iter().chain(&fixes).filter_map(|row| name(row)).map(|name| name.len()).max()?.max("technique".len());
    let short = |row: &&str| {
        let first = name(row).unwrap_or_default();
        let rest = row[4 + first.len()..].trim_start();
        format!("  {first:<width$}  {rest}")
    };
    let rest = |row: &str| row.split("technique").nth(1).map_or("", str::trim_start).to_string();
    // The columns keep their widths: the first is as wide as its head and three figures.
    let head = format!("  {:<width$}  {:>8}{}", "technique", "needs", rest(head).strip_prefix("needs").unwrap_or_default());
    let table = [head].into_iter().chain([plain].into_iter().chain(&fixes).map(short)).collect::<Vec<String>>().join("\n");
    let last = fixes.iter().map(|row| Some(format!("  {:<width$}  {}", name(row)?, last(row)?.trim())));
    let last = last.collect::<Option<Vec<String>>>()?.join("\n");
    Some(format!("```\n{}\n\n{table}\n\n{last}\n```", sentence.split("; with the same").next()?))
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
    let ran = ["h200", "h100"].map(|card| -> Result<(String, String)> {
        Ok((read(&format!("records/gpus/{card}-rehearsed.csv"))?, read(&format!("records/gpus/{card}-measured.csv"))?))
    });
    let [h200, h100] = ran;
    let techniques = read("records/gpus/h200-what-if.csv")?;
    let times = [read("docs/time.md")?, read("records/times/fine_tuning.csv")?];
    trusted(real_gpus, &ecosystem, &titan, &[("H200", h200?), ("H100", h100?)], &techniques, &times)
        .context("records of real GPUs have not what README shows of them")
}

/// The row of the programs that ran on a card, each beside its rehearsal, and how far the times of their steps were off.
fn on_card(card: &str, rehearsed: &str, measured: &str) -> Option<(String, Vec<f64>)> {
    let (rehearsed, measured) = (rows(rehearsed)?, rows(measured)?);
    let pairs =
        || measured.iter().filter_map(|row| Some((rehearsed.iter().find(|other| other["program"] == row["program"])?, row)));
    let off = |column: &str| -> Vec<f64> {
        pairs().filter_map(|(ours, real)| Some(number(ours, column)? / number(real, column)? - 1.0)).collect()
    };
    let (allocated, reserved) = (off("peak_allocated"), off("peak_reserved"));
    let below = |most: f64| allocated.iter().filter(|off| off.abs() < most).count();
    let missed: Vec<String> = pairs()
        .filter_map(|(ours, real)| {
            let off = number(ours, "peak_allocated")? / number(real, "peak_allocated")? - 1.0;
            (off.abs() >= 0.004).then(|| format!("{} {:+.1} %", real["program"], 100.0 * off))
        })
        .collect();
    let row = format!(
        "| {} programs, rehearsed without a GPU and run on an {card} | peak allocated within 0.1 % in {}, within 0.4 % in {}; **missed**: {}; reserved {:.0} to {:.0} % |",
        allocated.len(),
        below(0.001),
        below(0.004),
        missed.join(", "),
        reserved.iter().copied().fold(0.0, f64::min) * 100.0,
        reserved.iter().copied().fold(0.0, f64::max) * 100.0
    );
    Some((row, off("step_seconds").into_iter().map(f64::abs).collect()))
}

/// The row of scripts whose techniques were predicted and then measured on a card.
fn techniques_on_card(card: &str, what_if: &str) -> Option<String> {
    let rows = rows(what_if)?;
    let tried: Vec<&Row> = rows.iter().filter(|row| !row["techniques"].is_empty()).collect();
    let off = |row: &&Row| Some((number(row, "peak_reserved")? / number(row, "peak_reserved_measured")? - 1.0).abs());
    let near = tried.iter().filter(|row| off(row).is_some_and(|off| off < 0.004)).count();
    let per_cent = |row: &Row, column: &str| Some(format!("{:+.0} %", 100.0 * number(row, column)?));
    let is_in_band = |row: &Row| {
        Some(
            number(row, "change_low")? <= number(row, "change_measured")?
                && number(row, "change_measured")? <= number(row, "change_high")?,
        )
    };
    let missed = tried.iter().filter(|row| is_in_band(row) == Some(false));
    let missed: Option<Vec<String>> = missed
        .map(|row| {
            let (script, technique) = (row["program"].rsplit(':').next()?, &row["techniques"]);
            Some(format!("{technique} on {script} {}, {}", per_cent(row, "change")?, per_cent(row, "change_measured")?))
        })
        .collect();
    let missed = missed?;
    Some(format!(
        "| `--what-if`: {} techniques on three scripts, measured on an {card} | reserved within 0.4 % in {near}; change of a step's time in its 80 % band in {}; **missed** (predicted, measured): {} |",
        tried.len(),
        tried.len() - missed.len(),
        missed.join("; ")
    ))
}

fn trusted(
    real_gpus: &str,
    ecosystem: &str,
    titan: &str,
    cards: &[(&str, (String, String))],
    techniques: &str,
    [times, fine_tuning]: &[String; 2],
) -> Option<String> {
    let events = rows(real_gpus)?;
    let sum = |column: &str| events.iter().filter_map(|row| number(row, column)).sum::<f64>();
    let (equal, all) = (sum("events_identical"), sum("events_measured"));

    let on_cards: Vec<(String, Vec<f64>)> =
        cards.iter().map(|(card, (rehearsed, measured))| on_card(card, rehearsed, measured)).collect::<Option<_>>()?;
    let apart: Vec<f64> = on_cards.iter().flat_map(|(_, apart)| apart.clone()).collect();
    let on_cards: Vec<String> = on_cards.into_iter().map(|(row, _)| row).collect();

    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect::<Vec<String>>();
    let lines = |starts: &'static str| ecosystem.lines().filter(move |line| line.starts_with(starts)).map(cells);
    let ladder: Vec<Vec<String>> = ladder_table(ecosystem).skip(2).map(cells).collect();
    let bytes: Vec<f64> = ladder.iter().filter_map(|row| per_cent(&row[3])).collect();
    let near = bytes.iter().filter(|off| off.abs() < 1.0).count();
    let missed = ladder.iter().filter_map(|row| Some((row, per_cent(&row[3])?)));
    let missed: Vec<String> = missed
        .filter(|(_, off)| off.abs() >= 1.0)
        .map(|(row, off)| format!("{} {off:+.0} %", row[0].trim_start_matches("+ ")))
        .collect();
    let speed = |row: &Vec<String>| per_cent(&row[6]);
    let baseline = speed(ladder.first()?)?;
    let speeds: Vec<f64> = ladder[1..].iter().filter_map(speed).collect();
    let modded = |what: &str| {
        let of = |row: Vec<String>| per_cent(row[6].split(&format!(" {what}: ")).nth(1)?.split(',').next()?);
        let said = |off: f64| if off.abs() < 0.05 { "equal".to_string() } else { format!("**{off:+.1} %**") };
        lines("| modded-nanogpt").filter_map(of).map(said).collect::<Vec<_>>().join(", ")
    };
    let detection: Vec<f64> =
        lines("| vision: references/detection").chain(lines("| detectron2")).filter_map(|row| per_cent(&row[6])).collect();

    let titan: Vec<f64> = rows(titan)?
        .iter()
        .filter_map(|row| Some(number(row, "reserved")? / 2f64.powi(30) / number(row, "published_gib")? - 1.0))
        .collect();
    let defaults = titan.iter().filter(|off| off.abs() < 0.002).count();
    let others: Vec<f64> = titan.iter().filter(|off| off.abs() >= 0.002).map(|off| -100.0 * off).collect();
    let of = |values: &[f64], better: fn(f64, f64) -> f64| values.iter().copied().reduce(better);
    let error = |row: &Row| Some((number(row, "predicted")? / number(row, "measured")? - 1.0).abs());
    let tuned: Vec<f64> = rows(fine_tuning)?.iter().map(error).collect::<Option<_>>()?;
    let halves = |errors: Vec<f64>| {
        let [half, most] = [0.5, 0.9].map(|share| within(errors.clone(), share).map(|error| 100.0 * error));
        Some(format!("half within {:.1} %, nine in ten within {:.1} %", half?, most?))
    };
    let step = times.lines().find(|line| line.starts_with("| all steps |")).map(cells)?;

    let table = [
        "| what was compared | how it came out |".to_string(),
        "|---|---|".to_string(),
        format!(
            "| each allocation and free of 15 steps and passes that others recorded | **{} of {} equal** in order and size |",
            digits(equal as u64),
            digits(all as u64)
        ),
        on_cards.join("\n"),
        techniques_on_card("H200", techniques)?,
        format!(
            "| torchtitan's table, Llama 3.1 8B on 8 and 128 H100s | reserved within 0.2 % in {defaults} rows: PyTorch 2.7, allocator's defaults. Which setting theirs had is not known; **with others we say {:.1} to {:.1} % less** |",
            of(&others, f64::min)?,
            of(&others, f64::max)?
        ),
        format!(
            "| torchtune's ladder, Llama 3.2 3B on an A100 ([step by step](docs/ecosystem.md#torchtune-llama-32-3b-step-by-step)) | {near} of {} peaks within 1 %; **missed**: {} |",
            bytes.len(),
            missed.join(", ")
        ),
        format!(
            "| modded-nanogpt, compiled, three runs on 8 H100s | allocated {}; reserved {} |",
            modded("allocated"),
            modded("reserved")
        ),
        format!(
            "| object detection as torchvision and detectron2 published it in 2019 | **missed**: {:.0} to {:.0} % |",
            of(&detection, f64::max)?,
            of(&detection, f64::min)?
        ),
        format!(
            "| time of a step, a pass or a token: {} of those programs' runs; {} steps that others timed and the GPU bounds; {} of fine-tuning, on which nothing is fitted; torchtune's ladder | {}; half within {}; {}; tokens/s {:+.0} to {:+.0} %, **{baseline:+.0} % before packing** |",
            apart.len(),
            step[1],
            tuned.len(),
            halves(apart)?,
            step[2].replace(" / ", ", nine in ten within "),
            halves(tuned)?,
            of(&speeds, f64::min)?,
            of(&speeds, f64::max)?
        ),
    ];
    Some(table.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_cut_to_what_to_do() {
        let text = "\nThe fastest that fits x leaves the result as it is: b, which needs 1 GiB.\n\n  On x.\n\n    technique           needs       saves         allocated  fits  changes\n  \
                    * a                1.00 GiB     1 GiB  50 %   1.00 GiB  yes   a\n  * b                1.00 GiB     1 GiB  50 %   1.00 GiB  yes\n    \
                    as it is           2.00 GiB       0 B   0 %   1.00 GiB  no\n    b + c              1.00 GiB     1 GiB  50 %   1.00 GiB  yes\n\n  \
                    The lines to write\n\n    # a\n    a()\n\n    # b\n    b()\n\n    b(c)\n";
        let shown = answer(text).unwrap();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1], "The fastest that fits x leaves the result as it is: b, which needs 1 GiB.");
        assert!(lines[4].starts_with("  as it is   2.00 GiB") && lines[5].starts_with("  b          1.00 GiB"), "{shown}");
        assert_eq!(lines[6..], ["", "  b          b(c)", "```"]);
        assert_eq!(answer("nothing"), None);
    }

    #[test]
    fn half_and_nine_in_ten_are_of_all() {
        let sizes: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!([0.5, 0.9, 1.0].map(|share| within(sizes.clone(), share)), [Some(5.0), Some(9.0), Some(10.0)]);
        assert_eq!(within(Vec::new(), 0.5), None);
    }
}
