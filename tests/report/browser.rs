//! The page in a real browser: search, filter, sort, permalinks, both widths. Run with `just browser`, which needs Chromium.

use super::fixture_report;
use std::path::Path;
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
const table = document.querySelector("#top table, #page-accumulation table");
const sortable = [...document.querySelectorAll("th button")].find((button) => button.closest("table").tBodies[0].rows.length > 3);
const column = sortable.closest("th").cellIndex, body = sortable.closest("table").tBodies[0];
const before = [...body.rows]; sortable.click(); sortable.click(); sortable.click();
check("sort comes back", [...body.rows].every((row, n) => row === before[n]));
check("permalinks", document.querySelectorAll("a.permalink").length > 3);
set("technique", "page-inplace"); location.hash = "#accumulate-memory";
setTimeout(() => {
  check("a permalink shows what was hidden", !document.getElementById("page-accumulation").hidden);
  check("no sideways scrolling", document.documentElement.scrollWidth <= innerWidth + 1);
  check("contents", document.getElementById("contents").open === (innerWidth > 960));
  const image = document.querySelector("img"); image.loading = "eager";
  setTimeout(() => { check("pictures load", image.naturalWidth > 100); check("narrow pictures", (innerWidth > 600) || image.currentSrc.includes("narrow"));
    document.body.dataset.outcome = failed.length ? failed.join("; ") : "everything holds"; }, 300);
}, 300);
"##;

fn chromium(arguments: &[&str], page: &Path) -> std::process::Output {
    let name = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok());
    let name = name.expect("no Chromium: install it (apt-get install chromium), then `just browser`");
    let mut command = Command::new(name);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=5000"]);
    command.args(arguments).arg(format!("file://{}", page.display())).output().unwrap()
}

#[test]
#[ignore = "needs Chromium: `just browser` runs it"]
fn a_visitor_searches_filters_sorts_and_follows_links() {
    let (_, out) = fixture_report("browser");
    let page = out.join("index.html");
    for (width, scheme) in [("1400,900", "light"), ("390,844", "light"), ("1400,900", "dark"), ("390,844", "dark")] {
        let dark =
            if scheme == "dark" { "--blink-settings=preferredColorScheme=0" } else { "--blink-settings=preferredColorScheme=1" };
        let size = format!("--window-size={width}");
        // As it is, with its policy: nothing may be refused, and no script may fail.
        let plain = chromium(&[&size, dark, "--dump-dom"], &page);
        let console = String::from_utf8_lossy(&plain.stderr);
        let told: Vec<&str> = console.lines().filter(|line| line.contains("CONSOLE")).collect();
        assert!(told.is_empty(), "{width} {scheme}: {told:?}");
        // With a visitor in it, whom the policy would keep out.
        let text = std::fs::read_to_string(&page).unwrap();
        let policy = text.lines().find(|line| line.contains("Content-Security-Policy")).unwrap();
        let visited = out.join("visited.html");
        let script = format!("<script>{VISIT}</script>\n</body>");
        std::fs::write(&visited, text.replace(policy, "").replace("</body>", &script)).unwrap();
        let visit = chromium(&[&size, dark, "--dump-dom"], &visited);
        let dom = String::from_utf8_lossy(&visit.stdout);
        let outcome =
            dom.split("data-outcome=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or("the script ended early");
        assert_eq!(outcome, "everything holds", "{width} {scheme}: {}", String::from_utf8_lossy(&visit.stderr));
    }
}
