//! The page in a real browser: search, filter, sort, permalinks, both widths. Run with `just browser`, which needs Chromium.

use super::fixture_report;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a visitor does, and what he must see then; each line of the outcome is a check that failed.
const VISIT: &str = r##"
const failed = [];
const check = (what, holds) => { if (!holds) failed.push(what); };
const shown = () => [...document.querySelectorAll("main > section")].filter((page) => !page.hidden).map((page) => page.id);
const set = (id, value) => { const field = document.getElementById(id); field.value = value; field.dispatchEvent(new Event("input")); };
const everything = shown().length;
check("pages", everything > 5);
set("search", "hypothetical-nonsense"); check("search finds nothing", shown().length === 0);
set("search", "checkpointing"); check("search finds a page", shown().includes("page-checkpointing") && shown().length < everything);
set("search", "");
set("verdict", "✘ refuted"); check("verdicts", shown().includes("page-accumulation") && !shown().includes("page-machines"));
const rows = [...document.querySelectorAll("#page-accumulation td:last-child")].filter((cell) => /^[✔✘◐]/.test(cell.textContent.trim()) && cell.closest("details") === null);
check("rows", rows.every((cell) => cell.parentElement.hidden !== cell.textContent.trim().startsWith("✘")));
set("verdict", ""); set("machine", document.getElementById("machine").options[1].value);
check("machines", shown().length < everything); set("machine", "");
set("technique", "page-inplace"); check("technique", shown().join() === "page-inplace"); set("technique", "");
check("all again", shown().length === everything);
const sortable = [...document.querySelectorAll("th.number button")].find((button) => button.closest("table").tBodies[0].rows.length > 3);
const column = sortable.closest("th").cellIndex, body = sortable.closest("table").tBodies[0];
const before = [...body.rows], key = (row) => quantity(row.cells[column].textContent.trim());
for (const direction of [1, -1]) {
  sortable.click();
  const keys = [...body.rows].map(key).filter((number) => !Number.isNaN(number));
  check(`sorted by number, ${direction}`, keys.length > 1 && keys.every((number, n) => n === 0 || direction * (number - keys[n - 1]) >= 0));
}
sortable.click();
check("sort comes back", [...body.rows].every((row, n) => row === before[n]));
check("permalinks", document.querySelectorAll("a.permalink").length > 3);
set("technique", "page-inplace"); location.hash = "#accumulate-memory";
setTimeout(() => {
  check("a permalink shows what was hidden", !document.getElementById("page-accumulation").hidden);
  check("no sideways scrolling", document.documentElement.scrollWidth <= innerWidth + 1);
  check("the width that was asked for", Math.abs(innerWidth - WIDTH) < 20);
  check("the scheme that was asked for", matchMedia(`(prefers-color-scheme: ${SCHEME})`).matches);
  const [page, ink] = ["backgroundColor", "color"].map((name) => getComputedStyle(document.body)[name].match(/\d+/g).map(Number));
  const light = (color) => color[0] + color[1] + color[2] > 384;
  check("paper and ink follow the scheme", light(page) === (SCHEME === "light") && light(ink) !== light(page));
  check("contents", document.getElementById("contents").open === (innerWidth > 960));
  for (const picture of document.querySelectorAll("img")) check(`${picture.src} is lazy`, picture.loading === "lazy");
  const image = document.querySelector("img"); image.loading = "eager";
  setTimeout(() => {
    check("pictures load", image.naturalWidth > 100);
    check("narrow pictures", (innerWidth > 600) === !image.currentSrc.includes("narrow"));
    const outcome = failed.length ? failed.join("; ") : "everything holds";
    document.body.dataset.outcome = outcome;
    parent.postMessage(outcome, "*");
  }, 300);
}, 300);
"##;

/// A phone's width, in a frame: a window of a browser is wider than that.
const PHONE: i32 = 390;

/// A page with another in a frame of a phone's size; what the other tells is its own outcome.
fn framed(page: &Path) -> PathBuf {
    let frame = page.with_extension("frame.html");
    let name = page.file_name().unwrap().to_string_lossy();
    let html = format!(
        "<!DOCTYPE html><meta charset=\"utf-8\"><meta name=\"color-scheme\" content=\"light dark\"><body style=\"margin:0\"><iframe src=\"{name}\" \
         width=\"{PHONE}\" height=\"844\" style=\"border:0\"></iframe><script>addEventListener(\"message\", (event) => \
         {{ document.body.dataset.outcome = event.data; }});</script>"
    );
    std::fs::write(&frame, html).unwrap();
    frame
}

fn chromium(arguments: &[&str], page: &Path) -> std::process::Output {
    let name = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok());
    let name = name.expect("no Chromium: install it (apt-get install chromium), then `just browser`");
    let mut command = Command::new(name);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=5000"]);
    command.args(["--allow-file-access-from-files", "--no-first-run", "--hide-scrollbars"]);
    command.args(arguments).arg(format!("file://{}", page.display())).output().unwrap()
}

#[test]
#[ignore = "needs Chromium: `just browser` runs it"]
fn a_visitor_searches_filters_sorts_and_follows_links() {
    let (_, out) = fixture_report("browser");
    let page = out.join("index.html");
    let text = std::fs::read_to_string(&page).unwrap();
    let policy = text.lines().find(|line| line.contains("Content-Security-Policy")).unwrap();
    for (width, scheme) in [(1400, "light"), (PHONE, "light"), (1400, "dark"), (PHONE, "dark")] {
        let setting = format!("--blink-settings=preferredColorScheme={}", i32::from(scheme == "light"));
        let open = |page: &Path| {
            let page = if width == PHONE { framed(page) } else { page.to_path_buf() };
            let output = chromium(&["--window-size=1400,900", &setting, "--dump-dom"], &page);
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        };
        // As it is, with its policy: nothing may be refused, and no script may fail.
        let [_, console] = open(&page);
        let told: Vec<&str> = console.lines().filter(|line| line.contains("CONSOLE")).collect();
        assert!(told.is_empty(), "{width} {scheme}: {told:?}");
        // With a visitor in it, whom the policy would keep out.
        let visited = out.join("visited.html");
        // In a block of its own: the page has names of its own.
        let script = format!("<script>{{ const WIDTH = {width}, SCHEME = \"{scheme}\"; {VISIT} }}</script>\n</body>");
        std::fs::write(&visited, text.replace(policy, "").replace("</body>", &script)).unwrap();
        let [dom, console] = open(&visited);
        let outcome = dom.split("data-outcome=\"").nth(1).and_then(|rest| rest.split('"').next());
        assert_eq!(outcome.unwrap_or("the script ended early"), "everything holds", "{width} {scheme}: {console}");
    }
}
