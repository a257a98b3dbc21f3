//! Cases of a project beside their base: as text, as a summary or a comment in Markdown, and as annotations of lines. The news is first.

use super::diff::{signed, without_folder};
use crate::capture::plain::on_one_line;
use crate::explore::ci::{CaseRow, FigureRow, State};
use crate::explore::versions::Figure;
use crate::words::{bytes, wrapped};
use base::units::{Seconds, thousands};
use std::fmt::Write;
use std::path::Path;

/// A comment that begins with it is this program's, and is written anew.
pub const MARK: &str = "<!-- vramlab ci -->";
/// Lines of a difference that are listed.
const LINES: usize = 5;
/// Of a reason, which nobody scrolls sideways for.
const COLUMNS: usize = 110;

fn value(figure: Figure, value: i64) -> String {
    if figure == Figure::Tokens {
        return thousands(value.unsigned_abs());
    }
    if figure == Figure::Step { Seconds(value as f64 / 1e9).to_string() } else { bytes(value) }
}

impl FigureRow {
    fn change(&self) -> Option<String> {
        let (before, after) = (self.before.filter(|before| *before > 0)?, self.after?);
        let change = after as f64 / before as f64 - 1.0;
        Some(if change.abs() < 5e-4 { "same".to_string() } else { format!("{:+.1} %", change * 100.0) })
    }

    /// Whether both are there, and not the same.
    pub fn differs(&self) -> bool {
        self.change().is_some_and(|change| change != "same")
    }

    /// As a line of text.
    pub fn line(&self) -> String {
        let show = |of: Option<i64>| of.map_or("-".to_string(), |of| value(self.figure, of));
        let (name, before, after) = (self.figure.to_string(), show(self.before), show(self.after));
        let line = format!("  {name:<10} {before:>11} -> {after:>11}  {}", self.change().unwrap_or_default());
        format!("{}{}", line.trim_end(), if self.grew { "  GREW" } else { "" })
    }

    fn cell(&self) -> String {
        let show = |of: Option<i64>| of.map_or("-".to_string(), |of| value(self.figure, of));
        match self.change() {
            Some(change) if change == "same" => show(self.after),
            Some(change) => {
                let text = format!("{} → {} ({change})", show(self.before), show(self.after));
                if self.grew { format!("**{text}**") } else { text }
            }
            None => show(self.after),
        }
    }
}

impl CaseRow {
    fn title(&self) -> &'static str {
        match self.state {
            State::Failed => "FAILED",
            State::NoLongerFits => "DOES NOT FIT ANY MORE",
            State::Grew => "GREW",
            State::Shrank => "shrank",
            State::New if self.is_out => "new, and DOES NOT FIT",
            State::New => "new",
            State::DoesNotFit => "does not fit, as before",
            State::Same => "same",
        }
    }

    /// What changed most, or why there is no answer.
    fn what(&self) -> String {
        if let Some(why) = &self.why {
            return self.place.as_ref().map_or(why.clone(), |place| format!("{why}, at {}", without_folder(place)));
        }
        let told = |row: &&FigureRow| row.grew || self.state == State::Shrank;
        let changed = self.figures.iter().filter(told).filter_map(|row| Some(format!("{} {}", row.figure, row.change()?)));
        changed.filter(|text| !text.ends_with("same")).collect::<Vec<String>>().join(", ")
    }

    /// In one line.
    fn said(&self) -> String {
        let what = self.what();
        format!("{}: {} on {}{}{what}", self.title(), self.case, self.gpu, if what.is_empty() { "" } else { ": " })
    }
}

/// What the whole run says in a line.
pub fn headline(rows: &[CaseRow]) -> String {
    let count = |state: State| rows.iter().filter(|row| row.state == state).count();
    let of = [
        (State::Failed, "failed"),
        (State::NoLongerFits, "no longer fit"),
        (State::Grew, "grew"),
        (State::Shrank, "shrank"),
        (State::New, "new"),
    ];
    let parts: Vec<String> =
        of.iter().filter(|(state, _)| count(*state) > 0).map(|(state, word)| format!("{} {word}", count(*state))).collect();
    let said = if parts.is_empty() { "nothing changed".to_string() } else { parts.join(", ") };
    format!("GPU memory of {} case{}: {said}", rows.len(), if rows.len() == 1 { "" } else { "s" })
}

pub fn text(rows: &[CaseRow], base: &str) -> String {
    let mut text = format!("{}, compared with {base}\n", headline(rows));
    for row in rows {
        let _ = writeln!(text, "\n{}", row.said());
        for figure in row.figures.iter().filter(|figure| figure.after.is_some()) {
            text += &(figure.line() + "\n");
        }
        if let Some(difference) = row.difference.as_ref().filter(|difference| !difference.rows.is_empty()) {
            text += &difference.brief(LINES);
        }
    }
    text
}

/// A table, and below it the lines of what changed. A stranger's text stands in fences and in code.
pub fn markdown(rows: &[CaseRow], base: &str) -> String {
    let code = |text: &str| format!("`{}`", on_one_line(text).replace(['`', '|'], "'"));
    let mut text = format!("{MARK}\n### {}\n\nCompared with {}; a step's time is predicted.\n\n", headline(rows), code(base));
    text += "| case | GPU | | allocated | reserved | needs | step |\n|---|---|---|---|---|---|---|\n";
    for row in rows {
        let cells: Vec<String> = row.figures.iter().map(FigureRow::cell).collect();
        let cells = if cells.is_empty() { " | | | ".to_string() } else { cells.join(" | ") };
        let _ = writeln!(text, "| {} | {} | {} | {cells} |", code(&row.case), code(&row.gpu), row.title());
    }
    for row in rows {
        let lines = row.difference.as_ref().filter(|difference| !difference.rows.is_empty()).map(|d| d.brief(LINES));
        let why = row.why.as_ref().map(|_| wrapped(&format!("    {}", row.what()), COLUMNS));
        if let Some(more) = lines.or(why) {
            let fenced = more.replace("```", "'''");
            let _ = write!(text, "\n**{}** {} on {}\n```text\n{fenced}```\n", row.title(), code(&row.case), code(&row.gpu));
        }
    }
    text
}

/// Commands of a GitHub runner, which shows them at the lines that they name.
pub fn annotations(rows: &[CaseRow], root: &Path) -> String {
    let escaped = |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    let property = |text: &str| escaped(text).replace(':', "%3A").replace(',', "%2C");
    let mut text = String::new();
    for row in rows {
        let kind = match row.state {
            State::Failed | State::NoLongerFits | State::Grew => "error",
            State::New if row.is_out => "error",
            State::Shrank => "notice",
            _ => continue,
        };
        // Where it failed, or the largest change at a line of the project.
        let changes = row.difference.iter().flat_map(|difference| &difference.rows);
        let places = row.place.iter().map(|place| (place, String::new()));
        let mut places = places.chain(changes.map(|change| (&change.line, format!(" ({} here)", signed(change.bytes)))));
        let place = places.find_map(|(place, here)| {
            let (file, line) = place.rsplit_once(':')?;
            let file = Path::new(file).strip_prefix(root).ok()?;
            Some((format!(" file={},line={line},", property(&file.to_string_lossy())), here))
        });
        let (place, here) = place.unwrap_or((" ".to_string(), String::new()));
        let _ = writeln!(text, "::{kind}{place}title=GPU memory::{}{here}", escaped(&on_one_line(&row.said())));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Earlier;
    use crate::explore::ci::{Project, status};
    use anyhow::anyhow;

    #[test]
    fn the_news_is_first_and_each_output_says_the_same() {
        let project: Project = toml::from_str(
            "[tolerance]\nallocated = \"1%\"\n[case.a]\ncommand = \"python a.py\"\n[case.b]\ncommand = \"python b.py\"\ngpu = [\"t4\", \"a10\"]\n",
        )
        .unwrap();
        let answer = |mib: i64, verdict: &str| Ok(Earlier::of_one_line(mib << 20, verdict));
        let of = |name, before, after| CaseRow::of(name, "t4", before, after, &project).unwrap();
        let mut rows = vec![
            of("a", answer(1000, "fits"), answer(1001, "fits")),
            of("b", answer(1000, "fits"), answer(1500, "fits")),
            of("a", answer(1000, "fits"), Err(anyhow!("KeyError: '::error::'\n|`x`"))),
            of("a", answer(1000, "fits"), answer(500, "fits")),
            of("a", answer(1000, "fits"), answer(1500, "does_not_fit")),
            of("a", answer(1000, "does_not_fit"), answer(1500, "does_not_fit")),
            of("a", Err(anyhow!("no such file")), answer(10, "fits")),
        ];
        // Reserved may not grow at all where nothing is said of it.
        assert_eq!(rows[0].state, State::Grew);
        rows.sort_by_key(|row| row.state);
        let states: Vec<State> = rows.iter().map(|row| row.state).collect();
        use State::{DoesNotFit, Failed, Grew, New, NoLongerFits, Shrank};
        assert_eq!(states, [Failed, NoLongerFits, Grew, Grew, Shrank, New, DoesNotFit]);
        assert_eq!([status(&rows), status(&rows[1..]), status(&rows[2..]), status(&rows[4..])], [1, 3, 4, 0]);
        assert_eq!(headline(&rows[..1]), "GPU memory of 1 case: 1 failed");
        assert_eq!(headline(&rows), "GPU memory of 7 cases: 1 failed, 1 no longer fit, 2 grew, 1 shrank, 1 new");
        let said = text(&rows, "main");
        assert!(said.contains("GREW: b on t4: allocated +50.0 %, reserved +50.0 %\n"), "{said}");
        assert!(said.contains("shrank: a on t4: allocated -50.0 %"), "{said}");
        let page = markdown(&rows, "main");
        assert!(page.starts_with(MARK) && page.contains("| `b` | `t4` | GREW | **1000 MiB → 1.46 GiB (+50.0 %)** |"), "{page}");
        let both = of("a", Err(anyhow!("no such file")), Err(anyhow!("word ".repeat(40))));
        let page = markdown(&[both], "main");
        assert!(page.contains("base: no such file)") && page.lines().all(|line| line.len() < 120), "{page}");
        let noted = annotations(&rows, Path::new("/a"));
        assert!(noted.contains("::error file=t.py,line=1572864000,title=GPU memory::GREW: b on t4"), "{noted}");
        assert_eq!(noted.lines().count(), 5, "{noted}");
        assert!(noted.lines().all(|line| line.starts_with("::error ") || line.starts_with("::notice ")), "{noted}");
    }
}
