//! The answer on a terminal: at most 24 lines of 80 columns. `-v` has all of it.

use super::time::{in_short, of_wait, of_whom};
use crate::answer::advice::Advice;
use crate::answer::reply::{Reply, brief};
use crate::answer::{Account, AccountRow, Answer, Fill, Finding, Part, RehearsalVerdict, Serves, moment};
use crate::words::{bytes, longer, share_of, wrapped};
use base::units::Seconds;

/// A blank line stands before them.
const LINES: usize = 23;
const COLUMNS: usize = 80;
/// Rows of the account, how many of them make room for what was found, and rows of the advice.
const ROWS: usize = 7;
const YIELDS: usize = 4;
const ADVICE: usize = 3;
/// Lines of what is said beside the verdict, of one finding and of notes.
const BESIDE: usize = 6;
const FINDING: usize = 5;
const NOTES: usize = 2;
const BAR: usize = 10;
/// Columns of a row's name, at least.
const NAMES: usize = 17;

/// Whether a line of it is the head of others.
pub fn is_head(line: &str) -> bool {
    ["What fills", "Try first", "To use less", "Makes it fit", "Speed"].iter().any(|head| line.starts_with(head))
}

/// In lines of 80 columns, as many of them as there may be; what is cut ends in dots.
fn fitted(text: &str, lines: usize) -> Vec<String> {
    let mut all: Vec<String> = wrapped(text, COLUMNS).lines().map(|line| line.trim_end().to_string()).collect();
    if all.len() > lines {
        all.truncate(lines);
        if let Some(last) = all.last_mut() {
            let end = if last.len() + 4 > COLUMNS { last.rfind(' ').unwrap_or(last.len()) } else { last.len() };
            last.truncate(end);
            last.push_str(" ...");
        }
    }
    all
}

/// Sentences, as many as there is room for, whole.
fn sentences(all: &[String], lines: usize) -> Vec<String> {
    let mut text = String::new();
    for sentence in all {
        let more = if text.is_empty() { sentence.clone() } else { format!("{text} {sentence}") };
        if text.is_empty() || wrapped(&more, COLUMNS).lines().count() <= lines {
            text = more;
        }
    }
    if text.is_empty() { Vec::new() } else { fitted(&text, lines).into_iter().map(|line| line.trim_start().to_string()).collect() }
}

fn cut(text: &str, columns: usize) -> String {
    match text.chars().count() > columns {
        true => text.chars().take(columns.saturating_sub(3)).collect::<String>() + "...",
        false => text.to_string(),
    }
}

/// What a row of the account is of.
fn of_row(row: &AccountRow, answer: &Answer) -> String {
    match row.part {
        Part::Cached => "kept by PyTorch's allocator".to_string(),
        Part::Context => "estimate".to_string(),
        _ if !row.models.is_empty() => {
            // By the attribute that holds each: the variable is mostly one object's.
            let last = |model: &str| {
                if model.contains(' ') { model.to_string() } else { brief(model).rsplit('.').next().unwrap_or(model).to_string() }
            };
            row.models.iter().map(|of| format!("{} {}", last(&of.model), bytes(of.bytes))).collect::<Vec<String>>().join(", ")
        }
        _ => {
            let lines = row.lines.iter().filter(|of| of.bytes * 10 >= row.bytes);
            let places: Vec<&str> = lines.map(|of| brief(&of.line)).collect();
            match places.as_slice() {
                [one] => {
                    let lines = answer.processes.iter().flat_map(|process| &process.peak.lines);
                    let source = lines.filter(|held| brief(&held.name) == *one).find_map(|held| held.source.clone());
                    format!("{one} {}", source.unwrap_or_default()).trim_end().to_string()
                }
                several => several.join(", "),
            }
        }
    }
}

/// A row of what fills the card.
fn row(name: &str, width: usize, held: i64, (most, total): (i64, i64), what: &str) -> String {
    let bar = "#".repeat(usize::try_from((held.max(0) * BAR as i64 + most / 2) / most).unwrap_or(0).min(BAR));
    let line = format!("  {name:<width$} {:>8} {:>5}  {bar:<BAR$}  {what}", bytes(held), share_of(held, total));
    cut(line.trim_end(), COLUMNS)
}

/// What a server has of the card, and what is left of it.
fn fills(serves: &Serves, answer: &Answer) -> Vec<String> {
    let total = serves.fills.iter().map(|fill| fill.bytes).sum();
    let most = serves.fills.iter().map(|fill| fill.bytes).max().unwrap_or(1).max(1);
    let line = |fill: &Fill| match fill.what.as_str() {
        "KV cache" => serves.lines.iter().map(|line| brief(&line.place()).to_string()).collect::<Vec<String>>().join(", "),
        _ => String::new(),
    };
    let mut lines = vec![format!("What fills {} of {}:", bytes(total), answer.gpu.name)];
    let width = NAMES.max(serves.fills.iter().map(|fill| fill.what.len()).max().unwrap_or(0));
    lines.extend(serves.fills.iter().map(|fill| row(&fill.what, width, fill.bytes, (most, total), &line(fill))));
    lines
}

/// How many rows of the account have a line of their own where there is room for so many: all others together are no more than the largest.
fn named(held: &[i64], room: usize) -> usize {
    let least = if held.len() > room { room - 1 } else { room };
    let is_enough = |shown: &usize| held.iter().skip(*shown).sum::<i64>() <= held[0];
    (least..held.len()).find(is_enough).unwrap_or(least.max(held.len()))
}

fn account(account: &Account, answer: &Answer, rows: usize) -> Vec<String> {
    let at = account.line.as_ref().map_or(String::new(), |line| format!(", {}", brief(&line.place())));
    let when = moment(&account.phase, account.step, account.pass);
    let mut lines = vec![cut(&format!("What fills {}: {when}{at}", bytes(account.total)), COLUMNS)];
    let most = account.rows.first().map_or(1, |row| row.bytes.max(1));
    let shown = named(&account.rows.iter().map(|row| row.bytes).collect::<Vec<i64>>(), rows);
    let width = account.rows.iter().take(shown).map(|row| row.part.name().len()).max().unwrap_or(0).max(NAMES);
    let row = |name: &str, held: i64, what: &str| row(name, width, held, (most, account.total), what);
    lines.extend(account.rows.iter().take(shown).map(|one| row(one.part.name(), one.bytes, &of_row(one, answer))));
    if let Some(rest) = account.rows.get(shown..).filter(|rest| !rest.is_empty()) {
        let names: Vec<&str> = rest.iter().map(|row| row.part.name()).collect();
        lines.push(row("all others", rest.iter().map(|row| row.bytes).sum(), &names.join(", ")));
    }
    lines
}

/// What the advice is for: half of a card that stands free wants none, a smaller card or a larger batch may.
pub fn advice_is_for(advice: &[Advice], answer: &Answer) -> &'static str {
    match answer.headroom.saturating_mul(2) > answer.gpu.memory {
        _ if advice.iter().any(|one| one.makes_it_fit) => "Makes it fit",
        true if answer.verdict.fits() => "To use less",
        _ => "Try first",
    }
}

fn advice(head: &str, advice: &[Advice]) -> Vec<String> {
    if advice.is_empty() {
        return Vec::new();
    }
    let any_fits = advice.iter().any(|one| one.makes_it_fit);
    let mut lines = vec![format!("{head:<24}{:>9} {:>9}   (about; --what-if: exact figures)", "memory", "step time")];
    for one in advice.iter().filter(|one| !any_fits || one.makes_it_fit).take(ADVICE) {
        let (frees, time) = (format!("-{}", bytes(one.frees)), one.longer.map_or("?".to_string(), longer));
        lines.push(cut(&format!("  {:<22}{frees:>9} {time:>9}   {}", one.technique, one.what), COLUMNS));
    }
    lines
}

fn speed(reply: &Reply, answer: &Answer) -> Vec<String> {
    let Some(time) = &reply.time else { return Vec::new() };
    let [step, low, high] = [time.seconds, time.low, time.high].map(|seconds| Seconds(seconds).to_string());
    let of = answer.time.as_ref().map_or("", of_whom);
    let rate =
        time.throughput.split(", ").next().filter(|rate| !rate.is_empty()).map_or(String::new(), |rate| format!(", {rate}{of}"));
    let slowest: Vec<String> =
        reply.slowest.iter().map(|(line, share)| format!("{} {:.0} %", brief(line), share * 100.0)).collect();
    let speed = format!("Speed (predicted): {step} a {} ({low} to {high}){rate}; bound by {}.", time.unit, time.bound_by);
    let with = |some: &[String]| if some.is_empty() { speed.clone() } else { format!("{speed} Slowest: {}.", some.join(", ")) };
    let fits = |some: &&[String]| wrapped(&with(some), COLUMNS).lines().count() <= 2;
    let text = with((0..=slowest.len()).rev().map(|count| &slowest[..count]).find(fits).unwrap_or_default());
    let waits = answer.time.as_ref().and_then(|time| time.waits.as_ref());
    let waits = waits.map_or_else(Vec::new, |wait| fitted(&format!("  {}.", of_wait(wait, brief(&wait.line.place()))), 1));
    let moved = answer.time.as_ref().and_then(in_short).map_or_else(Vec::new, |text| fitted(&format!("  {text}."), 1));
    fitted(&text, 2).into_iter().map(|line| line.trim_start().to_string()).chain(waits).chain(moved).collect()
}

/// Files by their names alone; code of no function is said without one.
fn without_folders(text: &str) -> String {
    let word = |word: &str| match word.rfind('/') {
        Some(last) if word.contains(".py") => {
            let begins = word[..last].rfind(|sign| "([{<'\"`=,".contains(sign)).map_or(0, |sign| sign + 1);
            format!("{}{}", &word[..begins], &word[last + 1..])
        }
        _ => word.to_string(),
    };
    text.replace(" (<module>)", "").split_whitespace().map(word).collect::<Vec<String>>().join(" ")
}

/// Lines, each ended.
pub fn short(answer: &Answer) -> String {
    let reply = Reply::of(answer);
    let mut head = fitted(&reply.verdict, 2);
    let beside: Vec<String> = reply.beside.iter().map(|sentence| without_folders(sentence)).collect();
    head.extend(sentences(&beside, BESIDE));
    let fill = match answer.serves.as_ref().filter(|serves| serves.starts) {
        Some(serves) => fills(serves, answer),
        None => reply.account.map_or_else(Vec::new, |of| account(of, answer, ROWS)),
    };
    let more = "More: -v phases, modules, kernels, host RAM   --out DIR memory.html, snapshot";
    let mut parts =
        [head, fill, Vec::new(), advice(advice_is_for(reply.advice, answer), reply.advice), speed(&reply, answer), Vec::new()];
    let taken = |parts: &[Vec<String>]| parts.iter().filter(|part| !part.is_empty()).map(|part| part.len() + 1).sum::<usize>();
    let told = |finding: &Finding| {
        let row = finding.cure.as_ref().or(finding.rows.first()).map_or("", |row| row.trim());
        let row = if finding.title.contains(row) { "" } else { row };
        [format!("{} {row}", finding.title), finding.title.clone()].map(|text| without_folders(text.trim_end()))
    };
    // Findings and notes have what is left, the first of them before small rows and the last of the advice.
    let mut room = LINES.saturating_sub(taken(&parts) + 1);
    if let (Some(first), Some(of), None) = (reply.findings.first(), reply.account, &answer.serves) {
        let texts = told(first);
        let wanted = wrapped(&texts[0], COLUMNS).lines().count().clamp(2, FINDING) + 1;
        let yields = wanted.saturating_sub(room).clamp(2, YIELDS);
        let before = parts[1].len();
        parts[1] = account(of, answer, ROWS - yields);
        room += before - parts[1].len();
        while room < wanted && parts[3].len() > 2 && answer.verdict.fits() {
            parts[3].pop();
            room += 1;
        }
    }
    for finding in reply.findings {
        let texts = told(finding);
        let blank = usize::from(parts[2].is_empty());
        let fits = |text: &&String| wrapped(text, COLUMNS).lines().count() <= FINDING.min(room.saturating_sub(blank));
        let Some(text) = texts.iter().filter(|text| !text.ends_with(':')).find(fits) else { continue };
        let lines = sentences(std::slice::from_ref(text), FINDING);
        let needed = lines.len() + blank;
        if needed <= room {
            room -= needed;
            parts[2].extend(lines);
        }
    }
    let lines = NOTES.min(room.saturating_sub(1)).max(1);
    let fitting = reply.notes.iter().filter(|note| wrapped(note, COLUMNS).lines().count() <= lines).cloned();
    let notes = sentences(&fitting.collect::<Vec<String>>(), lines);
    if !notes.is_empty() && notes.len() < room {
        parts[5] = notes;
    }
    if answer.verdict != RehearsalVerdict::ScriptFailed {
        parts[5].push(more.to_string());
    }
    let text: Vec<String> = parts.iter().filter(|part| !part.is_empty()).map(|part| part.join("\n")).collect();
    text.join("\n\n") + "\n"
}

#[cfg(test)]
mod tests {
    use crate::answer::advice::Advice;
    use crate::answer::technique::Changes;

    #[test]
    fn what_makes_it_fit_is_shown_wherever_it_stands() {
        let one = |technique: &str, makes_it_fit| Advice {
            technique: technique.to_string(),
            what: String::new(),
            frees: 1 << 30,
            longer: Some(0.1),
            changes: Changes::default(),
            needs: Vec::new(),
            pins: 0,
            makes_it_fit,
            group: String::new(),
        };
        // What changes the training comes last.
        let all = [one("a", false), one("b", false), one("c", false), one("bf16", true)];
        let lines = super::advice("Makes it fit", &all);
        assert!(lines.len() == 2 && lines[0].starts_with("Makes it fit") && lines[1].starts_with("  bf16"), "{lines:?}");
        let lines = super::advice("Try first", &all[..3]);
        assert!(lines.len() == 4 && lines[0].starts_with("Try first"), "{lines:?}");
    }

    #[test]
    fn all_others_are_no_more_than_the_largest_row() {
        assert_eq!(super::named(&[45, 24, 18, 7, 3, 2, 1], 7), 7);
        assert_eq!(super::named(&[45, 24, 18, 7, 3, 2, 1], 3), 2);
        assert_eq!(super::named(&[30, 20, 15, 15, 10, 10], 3), 4);
        assert_eq!(super::named(&[10, 10, 10, 10, 10, 10], 3), 5);
    }

    #[test]
    fn what_is_cut_ends_in_dots() {
        let text = "nothing is computed ".repeat(6);
        let lines = super::fitted(&text, 1);
        assert!(lines.len() == 1 && lines[0].ends_with(" ...") && lines[0].len() <= super::COLUMNS, "{lines:?}");
        assert!(!super::fitted(&text, 2).concat().contains("..."));
    }

    #[test]
    fn files_lose_their_folders_and_nothing_else() {
        let told = "tests/some/train.py:5 keeps (/home/me/train.py:7, a.py) 12 MiB/s of file=here/b.py";
        assert_eq!(super::without_folders(told), "train.py:5 keeps (train.py:7, a.py) 12 MiB/s of file=b.py");
    }
}
