"use strict";
/* Figures from their data. Every kind of panel answers the same questions:
     extent(panel)            what the axes have to hold
     draw(view)               everything but the axes
     nearest(view, x, y)      what is under the pointer, or null
     step(view, pick, key)    what is next to it in the direction of a key
     mark(view, pick)         how it is pointed out
     read(view, pick)         what is said of it
   A view is one panel on the screen: its size, its scales, its svg and its canvas. */

const NS = document.querySelector("svg").namespaceURI;
const COLOURS = [..."01234567"].map((i) => getComputedStyle(document.documentElement).getPropertyValue("--s" + i));
const ON_HEAT = ["#ffffff", "#ff9d3b", "#e0569b"];
const VIRIDIS = ["440154", "482878", "3e4a89", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725"].map(
  (hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)),
);

function node(made, about, parts) {
  for (const [name, value] of Object.entries(about)) made.setAttribute(name, value);
  made.append(...parts);
  return made;
}
const html = (tag, about = {}, ...parts) => node(document.createElement(tag), about, parts);
const svg = (tag, about = {}, ...parts) => node(document.createElementNS(NS, tag), about, parts);
const clamp = (value, least, most) => Math.min(Math.max(value, least), most);
const known = (value) => value !== null && value !== undefined;
const write = (value) => (known(value) ? String(Number(value.toPrecision(4))).replace("-", "−") : "–");

/* ---- numbers ---- */

function ticks([low, high], most) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((by) => by * power).find((step) => step >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / size - 1e-9); i * size <= high + size * 1e-9; i++) found.push(Number((i * size).toPrecision(12)));
  return found;
}

function spread(values, room) {
  let [low, high] = values.filter(known).reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
  if (low > high) [low, high] = [0, 1];
  const more = high > low ? (high - low) * room : Math.abs(low) * 0.1 || 1;
  return [low - more, high + more];
}

/* The value of a line at x: [value, whether it is between two of its points], or null outside. */
function at(line, x) {
  const exact = line.x.indexOf(x);
  if (exact >= 0) return known(line.y[exact]) ? [line.y[exact], false, exact] : null;
  const after = line.x.findIndex((other, i) => i && (other - x) * (line.x[i - 1] - x) < 0);
  if (after < 0 || !known(line.y[after]) || !known(line.y[after - 1])) return null;
  const share = (x - line.x[after - 1]) / (line.x[after] - line.x[after - 1]);
  return [line.y[after - 1] + share * (line.y[after] - line.y[after - 1]), true, -1];
}

/* How values within a range are written: all with as many digits as tell its hundredths apart. */
function teller([low, high]) {
  const digits = clamp(2 - Math.floor(Math.log10(high - low)), 0, 8);
  return (value) => (known(value) ? value.toFixed(digits).replace("-", "−") : "–");
}

/* ---- lines ---- */

const lines = {
  room: 0.02,
  extent: (panel) => ({
    x: panel.lines.flatMap((line) => line.x).concat(panel.diagonal ? [0, 1] : []),
    y: panel.lines.flatMap((line) => [...line.y, ...line.low, ...line.high]).concat(panel.diagonal ? [0, 1] : []),
  }),

  draw(view) {
    if (view.panel.diagonal) {
      const [x1, y1, x2, y2] = [view.x(0), view.y(0), view.x(1), view.y(1)];
      view.inside.append(svg("line", { class: "diagonal", x1, y1, x2, y2 }));
    }
    for (const line of lines.seen(view, true)) {
      const { colour, dash } = view.figure.style(line);
      const group = svg("g", { class: "series" + (line.bundle ? " thin" : ""), "data-name": line.name });
      const place = (values) => line.x.map((x, i) => (known(values[i]) ? `${view.x(x).toFixed(1)} ${view.y(values[i]).toFixed(1)}` : null));
      if (line.dots) {
        place(line.y).filter(known).forEach((spot) => {
          const [cx, cy] = spot.split(" ");
          group.append(svg("circle", { class: "single", cx, cy, r: 2 }));
        });
      } else {
        if (line.low.length) {
          const band = [...place(line.high), ...place(line.low).reverse()].filter(known);
          group.append(svg("path", { class: "band", style: "fill:" + colour, d: "M" + band.join("L") + "Z" }));
        }
        let path = "";
        for (const spot of place(line.y)) path += spot === null ? "|" : (path === "" || path.endsWith("|") ? "M" : "L") + spot;
        group.append(svg("path", { stroke: colour, "stroke-dasharray": dash, d: path.replaceAll("|", "") }));
      }
      view.inside.append(group);
    }
    const curves = lines.seen(view, false);
    view.stops = [...new Set((curves.length ? curves : lines.seen(view, true)).flatMap((line) => line.x))].sort((a, b) => a - b);
  },

  seen: (view, dots) => view.panel.lines.filter((line) => !view.figure.hidden.has(line.name) && (dots || !line.dots)),
  nearest(view, px) {
    const x = view.x.back(px);
    return view.stops.reduce((best, stop) => (best === null || Math.abs(stop - x) < Math.abs(best - x) ? stop : best), null);
  },
  step({ stops }, pick, key) {
    const to = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -Infinity, End: Infinity }[key];
    return stops[clamp(stops.indexOf(pick) + to, 0, stops.length - 1)] ?? null;
  },

  mark(view, pick) {
    const x = view.x(pick);
    const marks = [svg("line", { class: "cross", x1: x, x2: x, y1: view.top, y2: view.bottom })];
    for (const line of lines.seen(view, false)) {
      const found = line.bundle ? null : at(line, pick);
      if (found) marks.push(svg("circle", { class: "spot", cx: x, cy: view.y(found[0]), r: 4, fill: view.figure.style(line).colour }));
    }
    return { marks, x, y: view.high - 12, under: true };
  },

  read(view, pick) {
    const rows = [];
    const seen = lines.seen(view, !lines.seen(view, false).length);
    for (const line of seen.filter((one) => !one.bundle)) {
      const found = at(line, pick);
      if (!found) continue;
      const [value, between, index] = found;
      const band = line.low.length && index >= 0 ? `${view.tellY(line.low[index])} to ${view.tellY(line.high[index])}` : "";
      rows.push({ name: line.name || view.panel.y, line, value, text: (between ? "≈ " : "") + view.tellY(value), more: band });
    }
    rows.sort((a, b) => b.value - a.value);
    const bundle = seen.filter((line) => line.bundle).map((line) => at(line, pick)).filter(Boolean).map(([value]) => value);
    if (bundle.length) {
      const mean = bundle.reduce((a, b) => a + b) / bundle.length;
      const more = `${view.tellY(Math.min(...bundle))} to ${view.tellY(Math.max(...bundle))}`;
      rows.push({ name: `mean of ${bundle.length}`, line: seen.find((line) => line.bundle), text: view.tellY(mean), more });
    }
    return { title: `${view.panel.x} ${write(pick)}`, rows };
  },
};

/* ---- points ---- */

const points = {
  room: 0.04,
  extent: (panel) => ({ x: panel.groups.flatMap((group) => group.x), y: panel.groups.flatMap((group) => group.y) }),

  draw(view) {
    const { context, figure } = view;
    for (const group of view.panel.groups.filter((one) => !figure.hidden.has(one.name))) {
      const few = group.x.length < 300;
      context.fillStyle = figure.style(group).colour;
      context.globalAlpha = figure.hot !== null && figure.hot !== group.name ? 0.07 : few ? 0.75 : 0.5;
      for (let i = 0; i < group.x.length; i++) {
        if (!known(group.x[i]) || !known(group.y[i])) continue;
        context.beginPath();
        context.arc(view.x(group.x[i]), view.y(group.y[i]), few ? 3.2 : 2.2, 0, 7);
        context.fill();
        if (view.panel.kind === "heat") context.stroke();
      }
      context.globalAlpha = 1;
    }
  },

  all: (view) =>
    view.panel.groups
      .filter((group) => !view.figure.hidden.has(group.name))
      .flatMap((group) => group.x.map((x, i) => ({ group, i, x, y: group.y[i] })))
      .filter((spot) => known(spot.x) && known(spot.y)),
  nearest(view, px, py) {
    let [best, least] = [null, 24 ** 2];
    for (const spot of points.all(view)) {
      const far = (view.x(spot.x) - px) ** 2 + (view.y(spot.y) - py) ** 2;
      if (far < least) [best, least] = [spot, far];
    }
    return best;
  },
  step(view, pick, key) {
    const axis = key === "ArrowUp" || key === "ArrowDown" ? "y" : "x";
    const order = points.all(view).sort((a, b) => a[axis] - b[axis]);
    const now = order.findIndex((spot) => pick && spot.group === pick.group && spot.i === pick.i);
    const to = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -Infinity, End: Infinity }[key];
    return order[clamp(now + to, 0, order.length - 1)] ?? null;
  },

  mark(view, pick) {
    const [x, y] = [view.x(pick.x), view.y(pick.y)];
    const fill = view.figure.style(pick.group).colour;
    return { marks: [svg("circle", { cx: x, cy: y, r: 4.5, fill }), svg("circle", { class: "ring", cx: x, cy: y, r: 6.5 })], x, y };
  },
  read(view, pick) {
    const rows = [{ name: view.panel.x, text: view.tellX(pick.x) }, { name: view.panel.y, text: view.tellY(pick.y) }];
    return { title: pick.group.name, line: pick.group, image: pick.group.images[pick.i], rows };
  },
};

/* ---- heat maps ---- */

const heat = {
  room: 0,
  extent: (panel) => ({ x: panel.x_range, y: panel.y_range }),

  share(panel, value) {
    const top = panel.most;
    return panel.log ? Math.log(Math.max(value, 1)) / Math.log(Math.max(top, 2)) : value / Math.max(top, 1e-12);
  },
  colour(share) {
    const where = clamp(share, 0, 1) * (VIRIDIS.length - 1);
    const i = Math.min(Math.floor(where), VIRIDIS.length - 2);
    return VIRIDIS[i].map((from, k) => Math.round(from + (where - i) * (VIRIDIS[i + 1][k] - from)));
  },
  empty: (panel, value) => !known(value) || (panel.log && value <= 0),

  draw(view) {
    const { panel, context } = view;
    panel.most ??= Math.max(...panel.values.flat().filter(known), 0);
    const [down, across] = [panel.values.length, panel.values[0]?.length ?? 0];
    if (!across) return;
    const small = html("canvas", { width: across, height: down });
    const pixels = new ImageData(across, down);
    panel.values.forEach((row, j) =>
      row.forEach((value, i) => {
        if (!heat.empty(panel, value)) pixels.data.set([...heat.colour(heat.share(panel, value)), 255], 4 * ((down - 1 - j) * across + i));
      }),
    );
    small.getContext("2d").putImageData(pixels, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, view.left, view.top, view.right - view.left, view.bottom - view.top);
    context.lineWidth = 0.6;
    context.strokeStyle = "#222";
    points.draw(view);
    heat.bar(view);
  },

  bar(view) {
    const [x, width, high] = [view.right + 12, 9, view.bottom - view.top];
    for (let y = 0; y < high; y++) {
      view.context.fillStyle = `rgb(${heat.colour(1 - y / high)})`;
      view.context.fillRect(x, view.top + y, width, 1.5);
    }
    const top = view.panel.most;
    const marks = view.panel.log ? [1, 10, 100, 1e3, 1e4, 1e5].filter((v) => v <= Math.max(top, 2)) : ticks([0, Math.max(top, 1e-12)], 4);
    for (const value of marks) {
      const y = view.bottom - heat.share(view.panel, value) * high;
      view.svg.append(svg("text", { x: x + width + 5, y: y + 4 }, write(value)));
    }
    view.svg.append(svg("text", { class: "name", x: view.wide, y: 12, "text-anchor": "end" }, view.panel.scale));
  },

  size: (view) => [
    (view.right - view.left) / view.panel.values[0].length,
    (view.bottom - view.top) / view.panel.values.length,
  ],
  nearest(view, px, py) {
    if (px < view.left || px > view.right || py < view.top || py > view.bottom) return null;
    const [w, h] = heat.size(view);
    const { values } = view.panel;
    return { i: clamp(Math.floor((px - view.left) / w), 0, values[0].length - 1), j: clamp(Math.floor((view.bottom - py) / h), 0, values.length - 1) };
  },
  step(view, pick, key) {
    const { values } = view.panel;
    const [right, up] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1], Home: [-Infinity, 0], End: [Infinity, 0] }[key];
    const from = pick ?? { i: -1, j: 0 };
    return { i: clamp(from.i + right, 0, values[0].length - 1), j: clamp(from.j + up, 0, values.length - 1) };
  },
  mark(view, { i, j }) {
    const [width, height] = heat.size(view);
    const [x, y] = [view.left + i * width, view.bottom - (j + 1) * height];
    return { marks: [svg("rect", { class: "ring", x, y, width, height })], x: x + width / 2, y: y + height / 2 };
  },
  read(view, { i, j }) {
    const { panel } = view;
    const [w, h] = heat.size(view);
    const [x, y] = [view.x.back(view.left + (i + 0.5) * w), view.y.back(view.bottom - (j + 0.5) * h)];
    const rows = [{ name: panel.x, text: view.tellX(x) }, { name: panel.y, text: view.tellY(y) }];
    return { title: `${panel.scale || "value"}: ${write(panel.values[j][i])}`, rows };
  },
};

const KINDS = { lines, points, heat };
