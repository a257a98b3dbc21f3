"use strict";
// Without this script the page is whole; with it one can search, filter and sort, and the contents show where the reader is.

const SCALE = {
  B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40,
  ns: 1e-9, "µs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, x: 1, "%": 1,
};

// '1.5 GiB (0.38x)', '2 min 05 s' and '0.26x to 0.38x' as the number that they begin with; NaN for what is none.
function quantity(text) {
  const first = /^(?:[^\d−+-]{0,40}?)([−+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([A-Za-zµ%]*)/.exec(text.replaceAll("−", "-"));
  if (!first) return NaN;
  const value = Number(first[1]) * (SCALE[first[2]] ?? 1);
  const rest = /^\s+(\d+)\s(min|s)\b/.exec(text.slice(first[0].length));
  return rest ? value + Number(rest[1]) * SCALE[rest[2]] : value;
}

function sorted(rows, column, direction) {
  const cells = rows.map((row) => ({ row, text: row.cells[column].textContent.trim() }));
  const keys = cells.map((cell) => ({ ...cell, number: quantity(cell.text) }));
  // One text among the numbers is a cell without a figure; a column of texts has hardly any number.
  const numeric = keys.filter((key) => !Number.isNaN(key.number)).length * 2 > keys.length;
  const compare = numeric
    ? (a, b) => (Number.isNaN(a.number) - Number.isNaN(b.number)) || direction * (a.number - b.number)
    : (a, b) => direction * a.text.localeCompare(b.text, "en", { numeric: true });
  return keys.sort(compare).map((key) => key.row);
}

for (const table of document.querySelectorAll(".table table")) {
  const body = table.tBodies[0];
  const original = [...(body?.rows ?? [])];
  if (original.length < 2) continue;
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Sort by this column";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const next = { undefined: "ascending", ascending: "descending" }[head.ariaSort ?? undefined];
      for (const other of heads) other.removeAttribute("aria-sort");
      if (next) head.setAttribute("aria-sort", next);
      body.append(...(next ? sorted(original, column, next === "ascending" ? 1 : -1) : original));
    });
  });
}

const byId = (id) => document.getElementById(id);
const pages = [...document.querySelectorAll("main > section")];
const texts = new Map(pages.map((page) => [page, page.textContent.toLowerCase()]));
// Rows that tell what became of a claim; the machine stands before the verdict.
const rows = [...document.querySelectorAll("table")].filter((table) => table.tHead?.textContent.includes("verdict on the claim"))
  .flatMap((table) => [...table.tBodies[0].rows]);

function filter() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const [verdict, machine, technique] = ["verdict", "machine", "technique"].map((id) => byId(id).value);
  const fits = (row) => {
    const cells = [...row.cells].map((cell) => cell.textContent.trim());
    return cells.at(-1).startsWith(verdict) && (!machine || cells.at(-2) === machine);
  };
  const kept = new Set();
  for (const row of rows) {
    row.hidden = !fits(row);
    if (!row.hidden) kept.add(row.closest("section"));
  }
  let shown = 0;
  for (const page of pages) {
    const has = words.every((word) => texts.get(page).includes(word));
    page.hidden = !has || Boolean(technique && page.id !== technique) || Boolean((verdict || machine) && !kept.has(page));
    shown += page.hidden ? 0 : 1;
  }
  for (const link of document.querySelectorAll("nav a")) {
    link.parentElement.hidden = byId(link.hash.slice(1))?.hidden ?? false;
  }
  const isFiltered = words.length > 0 || verdict || machine || technique;
  byId("found").textContent = isFiltered ? `${shown} of ${pages.length} pages` : "";
}
for (const id of ["search", "verdict", "machine", "technique"]) byId(id).addEventListener("input", filter);

// Each claim and each heading has a link of its own; what a filter hides is shown when a link leads there.
for (const anchor of document.querySelectorAll("td > a[id]")) {
  const link = document.createElement("a");
  link.href = `#${anchor.id}`;
  link.className = "permalink";
  link.textContent = "¶";
  link.ariaLabel = "Link to this claim";
  anchor.parentElement.append(" ", link);
}
function reveal() {
  const target = byId(decodeURIComponent(location.hash.slice(1)));
  const page = target?.closest("main > section");
  if (!page) return;
  if (page.hidden || target.closest("tr")?.hidden) {
    for (const id of ["search", "verdict", "machine", "technique"]) byId(id).value = "";
    filter();
  }
  for (let parent = target.parentElement; parent; parent = parent.parentElement) {
    if (parent.tagName === "DETAILS") parent.open = true;
  }
  target.scrollIntoView();
}
addEventListener("hashchange", reveal);

// On a phone the contents are folded away until they are wanted.
const contents = byId("contents");
const isNarrow = matchMedia("(max-width: 60rem)");
const fold = () => { contents.open = !isNarrow.matches; };
isNarrow.addEventListener("change", fold);
fold();
contents.addEventListener("click", (event) => {
  if (isNarrow.matches && event.target.closest("nav a")) contents.open = false;
});

const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
function mark() {
  const passed = pages.filter((page) => !page.hidden && page.getBoundingClientRect().top < innerHeight / 3);
  const current = links.get(passed.at(-1)?.id);
  for (const link of links.values()) {
    if (link !== current) link.removeAttribute("aria-current");
  }
  current?.setAttribute("aria-current", "true");
}
addEventListener("scroll", mark, { passive: true });
mark();
reveal();
