/* Figures on the page: panels that fit their place, a legend that hides and shows, values where one points. */

/* ---- one panel on the screen ---- */

function scale([low, high], from, to) {
  const place = (value) => from + ((value - low) / (high - low)) * (to - from);
  place.back = (spot) => low + ((spot - from) / (to - from)) * (high - low);
  return place;
}

function layOut(view) {
  const { panel, kind, host } = view;
  const wide = host.clientWidth;
  const high = Math.round(clamp(wide * 0.74, 215, 380));
  const extent = kind.extent(panel);
  const [rangeX, rangeY] = ["x", "y"].map((axis) => (panel[axis + "_range"].length ? panel[axis + "_range"] : spread(extent[axis], kind.room)));
  const [ticksX, ticksY] = [ticks(rangeX, Math.max(2, wide / 58)), ticks(rangeY, high / 45)];
  const left = 12 + 6.4 * Math.max(...ticksY.map((tick) => write(tick).length), 1);
  Object.assign(view, { wide, high, left, top: 24, right: wide - (panel.kind === "heat" ? 60 : 10), bottom: high - 38, ticksX, ticksY });
  view.x = scale(rangeX, view.left, view.right);
  view.y = scale(rangeY, view.bottom, view.top);
  [view.tellX, view.tellY] = [teller(rangeX), teller(rangeY)];
}

/* A label cut to its place; the readout has all of it. */
const fit = (text, room) => (text.length * 6.3 > room ? text.slice(0, Math.max(3, room / 6.3 - 1)).trimEnd() + "…" : text);

function drawAxes(view) {
  const { left, right, top, bottom } = view;
  const axes = svg("g");
  for (const tick of view.ticksY) {
    const y = view.y(tick);
    if (view.panel.kind !== "heat") axes.append(svg("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }));
    axes.append(svg("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, write(tick)));
  }
  for (const tick of view.ticksX) {
    const x = view.x(tick);
    axes.append(svg("line", { class: "base", x1: x, x2: x, y1: bottom, y2: bottom + 4 }));
    axes.append(svg("text", { x, y: bottom + 16, "text-anchor": "middle" }, write(tick)));
  }
  axes.append(svg("line", { class: "base", x1: left, x2: right, y1: bottom, y2: bottom }));
  axes.append(svg("text", { class: "name", x: 0, y: 12 }, fit(view.panel.y, view.wide - 6 * (view.panel.scale?.length ?? 0))));
  axes.append(svg("text", { class: "name", x: (left + right) / 2, y: view.high - 5, "text-anchor": "middle" }, fit(view.panel.x, right - left)));
  return axes;
}

function draw(view) {
  if (!view.host.clientWidth) return;
  layOut(view);
  const { wide, high } = view;
  const sharp = Math.max(2, devicePixelRatio);
  const canvas = html("canvas", { width: wide * sharp, height: high * sharp });
  view.context = canvas.getContext("2d");
  view.context.scale(sharp, sharp);
  const clip = `clip-${view.id}`;
  const [x, y, width, height] = [view.left, view.top - 3, view.right - view.left + 3, view.bottom - view.top + 4];
  view.inside = svg("g", { "clip-path": `url(#${clip})` });
  view.pointer = svg("g");
  const about = { viewBox: `0 0 ${wide} ${high}`, "aria-hidden": "true" };
  view.svg = svg("svg", about, svg("clipPath", { id: clip }, svg("rect", { x, y, width, height })), view.inside);
  view.kind.draw(view);
  view.svg.append(view.pointer);
  view.host.replaceChildren(svg("svg", { ...about, class: "behind" }, drawAxes(view)), canvas, view.svg);
  warm(view);
}

/* While a name in the legend is pointed at, the others step back. */
function warm(view) {
  const { hot } = view.figure;
  for (const group of view.svg.querySelectorAll(".series")) group.classList.toggle("faded", hot !== null && group.dataset.name !== hot);
}

/* ---- pointing ---- */

const readout = document.getElementById("readout");
const spoken = document.getElementById("spoken");
let shown = null;

function swatch(figure, line) {
  const { colour, dash, edge, dots } = figure.style(line);
  const about = dots
    ? svg("circle", { cx: 10, cy: 6, r: 4.5, fill: colour, stroke: edge ?? "none" })
    : svg("path", { d: "M1 6H19", stroke: colour, "stroke-dasharray": dash });
  return svg("svg", { class: "swatch", viewBox: "0 0 20 12", "aria-hidden": "true" }, about);
}

function show(view, pick, aloud) {
  if (pick === null) return hide();
  if (shown && shown !== view) hide();
  shown = view;
  view.pick = pick;
  const { marks, x, y, under } = view.kind.mark(view, pick);
  view.pointer.replaceChildren(...marks);
  const { title, line, image, rows } = view.kind.read(view, pick);
  const body = html("table");
  for (const row of rows) {
    const name = html("th", { scope: "row" }, ...(row.line ? [swatch(view.figure, row.line), " "] : []), row.name);
    body.append(html("tr", {}, name, html("td", {}, row.text), ...(row.more ? [html("td", {}, row.more)] : [])));
  }
  const head = html("div", {}, ...(line ? [swatch(view.figure, line), " "] : []), html("b", {}, title));
  readout.replaceChildren(...(image ? [html("img", { src: "data:image/png;base64," + image, alt: "" })] : []), head, body);
  readout.hidden = false;
  put(view, x, y, under);
  if (aloud) spoken.textContent = [title, ...rows.map((row) => `${row.name} ${row.text} ${row.more ?? ""}`)].join("; ");
}

/* Beside what is pointed at or, for lines, which go on to both sides, below the panel. */
function put(view, x, y, under) {
  const box = view.svg.getBoundingClientRect();
  const ratio = box.width / view.wide;
  const { offsetWidth: width, offsetHeight: height } = readout;
  const spot = box.left + x * ratio;
  const page = document.documentElement.clientWidth;
  const beside = under ? spot - width / 2 : spot + 16 + width > page ? spot - 16 - width : spot + 16;
  const below = box.top + y * ratio;
  const level = !under ? below - height / 2 : below + height < innerHeight ? below : box.top - height;
  readout.style.left = clamp(beside, 4, Math.max(4, page - width - 4)) + "px";
  readout.style.top = clamp(level, 4, Math.max(4, innerHeight - height - 4)) + "px";
}

function hide() {
  shown?.pointer.replaceChildren();
  shown = null;
  readout.hidden = true;
}

function listen(view) {
  const { host } = view;
  const point = (event) => {
    const box = view.svg.getBoundingClientRect();
    const ratio = view.wide / box.width;
    show(view, view.kind.nearest(view, (event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio), false);
  };
  host.addEventListener("pointermove", point);
  host.addEventListener("pointerdown", point);
  host.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
  host.addEventListener("blur", hide);
  host.addEventListener("focus", () => host.matches(":focus-visible") && show(view, view.pick ?? view.kind.step(view, null, "Home"), true));
  host.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    if (!/^(Arrow|Home$|End$)/.test(event.key)) return;
    event.preventDefault();
    show(view, view.kind.step(view, view.pick ?? null, event.key), true);
  });
}

/* ---- a figure ---- */

function makeFigure(host, number) {
  const panels = JSON.parse(host.querySelector("script").textContent);
  const figure = { hidden: new Set(), hot: null, styles: new Map() };
  figure.style = (line) => figure.styles.get(line.name || "");
  let next = 0;
  for (const panel of panels) {
    (panel.lines ?? panel.groups).forEach((line, i) => {
      const name = line.name || "";
      if (figure.styles.has(name) && name) return;
      if (line.dots) figure.styles.set(name, { colour: "var(--ink)", dots: true });
      else if (line.bundle) figure.styles.set(name, { colour: COLOURS[0], bundle: true });
      else if (panel.kind === "heat") figure.styles.set(name, { colour: ON_HEAT[i % ON_HEAT.length], edge: "#444", dots: true });
      else figure.styles.set(name, { colour: COLOURS[next % 8], dash: next++ < 5 ? "none" : "5 4", dots: panel.kind === "points" });
    });
  }
  const views = panels.map((panel, i) => ({ panel, figure, kind: KINDS[panel.kind], host: host.querySelectorAll(".plot")[i], id: `${number}-${i}` }));
  const again = () => views.forEach(draw);
  const names = [...figure.styles].filter(([name, style]) => name && !style.bundle).map(([name]) => name);
  host.querySelector(".legend").append(...(names.length > 1 || panels[0]?.kind !== "lines" ? names : []).map((name) => key(figure, views, name, again)));
  for (const view of views) {
    const label = `${view.panel.title || "Panel"}: ${view.panel.y} over ${view.panel.x}. Arrow keys read values.`;
    node(view.host, { tabindex: 0, role: "application", "aria-roledescription": "chart", "aria-label": label }, []);
    listen(view);
    new ResizeObserver(() => view.host.clientWidth !== view.wide && draw(view)).observe(view.host);
  }
}

function key(figure, views, name, again) {
  const button = html("button", { type: "button", class: "key", "aria-pressed": "true" }, swatch(figure, { name }), name);
  const heated = (hot) => () => {
    figure.hot = hot;
    views.forEach((view) => (view.panel.kind === "lines" ? warm(view) : draw(view)));
  };
  button.addEventListener("click", () => {
    const off = figure.hidden.has(name) ? !figure.hidden.delete(name) : !!figure.hidden.add(name);
    button.setAttribute("aria-pressed", String(!off));
    hide();
    again();
  });
  button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && heated(name)());
  button.addEventListener("pointerleave", heated(null));
  return button;
}

document.querySelectorAll("figure.live").forEach(makeFigure);
addEventListener("scroll", () => shown && !shown.host.matches(":focus-visible") && hide(), { passive: true });
document.addEventListener("pointerdown", (event) => shown && !shown.host.contains(event.target) && hide());
