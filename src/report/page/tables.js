"use strict";
// Without this script the page is whole; with it tables sort, and the contents show where the reader is.

const SCALE = {
  B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40,
  ns: 1e-9, "µs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, x: 1, "%": 1,
};

// '1.5 GiB (0.38x)', '2 min 05 s' and '0.26x to 0.38x' as the number that they begin with; NaN for what is none.
function quantity(text) {
  const first = /^(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([A-Za-zµ%]*)/.exec(text);
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

const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const sections = [...document.querySelectorAll("main h2")];
function mark() {
  const passed = sections.filter((section) => section.getBoundingClientRect().top < innerHeight / 3);
  const current = links.get(passed.at(-1)?.id);
  for (const link of links.values()) {
    if (link !== current) link.removeAttribute("aria-current");
  }
  if (!current || current.hasAttribute("aria-current")) return;
  current.setAttribute("aria-current", "true");
  const bar = document.querySelector("nav");
  const [box, own] = [bar.getBoundingClientRect(), current.getBoundingClientRect()];
  bar.scrollBy(Math.min(0, own.left - box.left) || Math.max(0, own.right - box.right),
    Math.min(0, own.top - box.top) || Math.max(0, own.bottom - box.bottom));
}
addEventListener("scroll", mark, { passive: true });
mark();
