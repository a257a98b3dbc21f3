"use strict";
const data = JSON.parse(document.getElementById("data").textContent);

function size(bytes) {
  for (const [unit, scale] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes >= scale) return `${(bytes / scale).toPrecision(bytes / scale >= 1000 ? 4 : 3)} ${unit}`;
  }
  return `${bytes} B`;
}

// What lies so many bytes above the ground at a moment: a layer, from where to where, and the block where it is known.
function find(moment, height) {
  const [event, , layers] = moment;
  let from = 0;
  for (const [layer, bytes] of layers.entries()) {
    if (height < from + bytes) {
      let below = from;
      for (const block of data.blocks) {
        const [made, freed, rounded, own] = block;
        if (own !== layer || made > event || (freed !== 0 && freed <= event)) continue;
        if (height < below + rounded) return { layer, from: below, to: below + rounded, block };
        below += rounded;
      }
      return { layer, from: below, to: from + bytes, block: null };
    }
    from += bytes;
  }
  return null;
}

function words(moment, found) {
  const [event, place, layers] = moment;
  const lines = [];
  const say = (text, quiet) => lines.push([text, quiet]);
  if (found && found.block) {
    const [made, freed, rounded, layer, name, module, line, forward] = found.block;
    say(`${size(rounded)} of ${data.layers[layer]}`);
    if (name) say(data.names[name]);
    if (module) say(`in ${data.names[module]}`);
    if (line) say(`at ${data.names[line]}`);
    if (forward) say(`backward of ${data.names[forward]}`);
    say(`from event ${made} ${freed === 0 ? "to the end" : `to ${freed}`}`, true);
  } else if (found) {
    say(`${size(found.to - found.from)} of ${data.layers[found.layer]}`);
    say("blocks that are too small to be told one by one");
  } else {
    say("Allocated");
    layers.forEach((bytes, layer) => { if (bytes > 0) say(`${size(bytes)} ${data.layers[layer]}`); });
  }
  say(`${size(layers.reduce((sum, bytes) => sum + bytes, 0))} allocated ${data.names[place]}, event ${event}`, true);
  return lines;
}

for (const figure of document.querySelectorAll(".memory")) {
  const { width, plot } = data.pictures[Number(figure.dataset.picture)];
  const image = figure.querySelector("img"), tip = figure.querySelector(".tip");
  const line = figure.querySelector(".line"), mark = figure.querySelector(".block");
  const hide = () => { for (const part of [tip, line, mark]) part.hidden = true; };
  if (!plot) continue;
  let column = 0, height = 0;

  const show = () => {
    const scale = image.clientWidth / width;
    const moment = data.moments[plot.points[column]];
    const y = (bytes) => (plot.ground - (bytes / plot.high) * (plot.ground - plot.top)) * scale;
    const found = find(moment, height);
    const x = (plot.left + column + 0.5) * scale;
    line.hidden = tip.hidden = false;
    mark.hidden = !found;
    Object.assign(line.style, { left: `${x}px`, top: `${plot.top * scale}px`, height: `${(plot.ground - plot.top) * scale}px` });
    if (found) Object.assign(mark.style, { left: `${x}px`, top: `${y(found.to)}px`, height: `${y(found.from) - y(found.to)}px` });
    tip.replaceChildren(...words(moment, found).map(([text, quiet]) => {
      const part = document.createElement("div");
      part.textContent = text;
      if (quiet) part.className = "quiet";
      return part;
    }));
    const right = x + 16 + tip.offsetWidth > image.clientWidth;
    const left = right ? Math.max(0, x - 16 - tip.offsetWidth) : x + 16;
    Object.assign(tip.style, { left: `${left}px`, top: `${Math.max(0, y(height) - tip.offsetHeight - 8)}px` });
  };

  const point = (event) => {
    const box = image.getBoundingClientRect(), scale = width / box.width;
    column = Math.floor((event.clientX - box.left) * scale - plot.left);
    height = ((plot.ground - (event.clientY - box.top) * scale) / (plot.ground - plot.top)) * plot.high;
    if (column < 0 || column >= plot.points.length || height < 0) hide();
    else show();
  };
  figure.addEventListener("pointermove", point);
  figure.addEventListener("pointerdown", point);
  figure.addEventListener("pointerleave", hide);
  figure.addEventListener("blur", hide);
  figure.addEventListener("keydown", (event) => {
    const [across, up] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key] ?? [0, 0];
    if (across === 0 && up === 0) return;
    event.preventDefault();
    column = Math.min(plot.points.length - 1, Math.max(0, column + across * (event.shiftKey ? 20 : 1)));
    // Up and down go from block to block.
    const found = find(data.moments[plot.points[column]], height);
    if (up > 0 && found) height = found.to;
    if (up < 0) height = found ? Math.max(0, found.from - 1) : data.moments[plot.points[column]][2].reduce((sum, bytes) => sum + bytes, 0) - 1;
    show();
  });
}
