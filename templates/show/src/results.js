// Results: how many times another's time a series takes, and the bandwidths, over sizes; rates of plans as bars; a table.
import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear, scaleLog } from "d3-scale";
import { select } from "d3-selection";
import { area, line } from "d3-shape";
import { both, hideTip, make, picker, short, showTip, sizeName, table, timeName, value } from "./util.js";

const MARGIN = { top: 14, right: 120, bottom: 44, left: 58 };
const MOST_CURVES = 6;

/** Sizes at powers of four from the least to the largest, few enough for the width. */
function sizeTicks(low, high, width) {
  const all = [];
  for (let power = Math.ceil(Math.log2(low)); 2 ** power <= high; power += 1) all.push(2 ** power);
  const every = Math.max(1, Math.ceil(all.length / Math.max(2, width / 76)));
  return all.filter((_, i) => i % every === 0);
}

/** Moves labels apart, from top to bottom; each stays as near to its curve as the others allow. */
function apart(labels, gap, low, high) {
  labels.sort((a, b) => a.y - b.y);
  let floor = low;
  for (const label of labels) {
    label.y = Math.max(label.y, floor);
    floor = label.y + gap;
  }
  let ceiling = high;
  for (const label of [...labels].reverse()) {
    label.y = Math.min(label.y, ceiling);
    ceiling = label.y - gap;
  }
  return labels;
}

function cut(text, letters) {
  return text.length <= letters ? text : `${text.slice(0, letters - 1)}…`;
}

/** A chart of curves over sizes; `at` takes the height of a point, `range` the ends of its error or null. */
function chart(node, series, { at, range, title, one }) {
  const width = Math.max(280, node.clientWidth || 600);
  const height = Math.min(420, Math.max(240, width * 0.52));
  const right = Math.min(MARGIN.right, width * 0.26);
  const svg = select(document.createElementNS("http://www.w3.org/2000/svg", "svg"));
  svg.attr("viewBox", `0 0 ${width} ${height}`).attr("height", height).attr("role", "img").attr("aria-label", title);
  const points = series.flatMap(({ points: own }) => own).filter((point) => at(point) !== null);
  const sizes = points.map(([bytes]) => Math.max(1, bytes));
  const low = Math.min(...sizes);
  const x = scaleLog().base(2).domain([low, Math.max(...sizes, low * 2)]).range([MARGIN.left, width - right]);
  const ends = points.flatMap((point) => [at(point), ...(range?.(point) ?? [])]);
  const top = Math.max(...ends, one ? 1.1 : 0) * 1.05 || 1;
  const bottom = one ? Math.min(0.9, Math.min(...ends) * 0.95) : 0;
  const y = scaleLinear().domain([bottom, top]).nice(6).range([height - MARGIN.bottom, MARGIN.top]);
  const ticks = sizeTicks(low, Math.max(...sizes), width - MARGIN.left - right);
  svg
    .append("g")
    .attr("class", "grid")
    .selectAll("line")
    .data(y.ticks(6))
    .join("line")
    .attr("x1", MARGIN.left)
    .attr("x2", width - right)
    .attr("y1", y)
    .attr("y2", y);
  const across = axisBottom(x).tickValues(ticks).tickFormat(sizeName).tickSizeOuter(0);
  svg.append("g").attr("transform", `translate(0,${height - MARGIN.bottom})`).call(across);
  svg.append("g").attr("transform", `translate(${MARGIN.left},0)`).call(axisLeft(y).ticks(6).tickFormat(short));
  svg.append("text").attr("x", MARGIN.left).attr("y", height - 6).text("bytes of the buffer");
  if (one) {
    svg.append("line").attr("class", "one").attr("x1", MARGIN.left).attr("x2", width - right).attr("y1", y(1)).attr("y2", y(1));
  }
  const labels = [];
  series.forEach(({ name, points: own, colour }) => {
    const kept = own.filter((point) => at(point) !== null);
    if (!kept.length) return;
    const spans = kept.filter((point) => range?.(point));
    if (spans.length > 1) {
      const band = area().x(([bytes]) => x(Math.max(1, bytes))).y0((point) => y(range(point)[0])).y1((point) => y(range(point)[1]));
      svg.append("path").attr("class", `band c${colour}`).attr("d", band(spans));
    }
    const curve = line().x(([bytes]) => x(Math.max(1, bytes))).y((point) => y(at(point)));
    svg.append("path").attr("class", `curve c${colour}`).attr("d", curve(kept));
    for (const point of kept) {
      const dot = svg.append("circle").attr("class", `dot c${colour}`).attr("r", 4);
      dot.attr("cx", x(Math.max(1, point[0]))).attr("cy", y(at(point)));
      const lines = [`${name}, ${sizeName(point[0])}`, timeName(point[1]), `algbw ${short(point[2])}, busbw ${short(point[3])} GB/s`];
      if (point[4] !== null) lines.push(`${short(point[4])} times the first one's time`);
      if (range?.(point)) lines.push(`four of five measurements: ${range(point).map(short).join(" to ")}`);
      dot.on("pointerenter", (event) => showTip(lines, event.clientX, event.clientY)).on("pointerleave", hideTip);
    }
    const last = kept[kept.length - 1];
    labels.push({ name, colour, y: y(at(last)) });
  });
  const letters = Math.floor((right - 10) / 8);
  for (const label of apart(labels, 16, MARGIN.top + 4, height - MARGIN.bottom)) {
    svg.append("text").attr("class", `c${label.colour}`).attr("x", width - right + 8).attr("y", label.y + 4).text(cut(label.name, letters));
  }
  return svg.node();
}

/** The rates of plans beside each other: for each collective one bar per plan, and its ratio to the first. */
function rateTable(view) {
  const rows = new Map();
  for (const { collective, name, rate_gbps: rate } of view.rates) {
    rows.set(collective, (rows.get(collective) ?? new Map()).set(name, rate));
  }
  const [first] = view.names;
  const header = ["collective", ...view.names.map((name) => `${name}, GB/s`), ...view.names.slice(1).map((name) => `${name} / ${first}`)];
  const cells = [...rows].map(([collective, rates]) => [
    collective,
    ...view.names.map((name) => (rates.get(name) ? both(rates.get(name)) : "–")),
    ...view.names.slice(1).map((name) => (rates.get(name) && rates.get(first) ? short(value(rates.get(name)) / value(rates.get(first))) : "–")),
  ]);
  return make("div", { class: "scroll" }, table(header, cells));
}

function breakdown(rows) {
  const held = rows.filter((row) => row.breakdown?.length);
  if (!held.length) return null;
  const cells = held.flatMap((row) =>
    row.breakdown.map(([channel, waiting, copying, reducing]) => {
      const all = waiting + copying + reducing || 1;
      const share = (part) => `${timeName(part)} (${Math.round((part / all) * 100)}%)`;
      const which = `${row.collective} ${sizeName(row.bytes)}${row.in_place ? ", in place" : ""}`;
      return [which, String(channel), share(waiting), share(copying), share(reducing)];
    }),
  );
  return make(
    "section",
    { class: "wide" },
    make("h3", {}, "Where the time goes, by channel"),
    make("div", { class: "scroll" }, table(["call", "channel", "waiting", "copying", "reducing"], cells)),
  );
}

export function resultsView(view) {
  const plots = make("div", { class: "plots" });
  let chosen = 0;
  const draw = () => {
    if (!view.plots.length) return;
    const plot = view.plots[chosen];
    const series = plot.series.slice(0, MOST_CURVES).map((each, i) => ({ ...each, colour: i }));
    const boxes = [];
    const add = (title, drawn, options) => {
      const node = make("figure", { class: "plot" }, make("h3", {}, title));
      boxes.push([node, drawn, { ...options, title }]);
      return node;
    };
    const nodes = [];
    if (series.length > 1) {
      nodes.push(
        add(`Time over that of ${series[0].name} (below 1: faster)`, series.slice(1), {
          at: (point) => point[4],
          range: (point) => (point[5] === null ? null : [point[5], point[6]]),
          one: true,
        }),
      );
    }
    nodes.push(add("Bus bandwidth, GB/s", series, { at: (point) => point[3] }));
    plots.replaceChildren(...nodes);
    for (const [node, drawn, options] of boxes) node.append(chart(node, drawn, options));
  };
  const rows = view.table.map((row) => [
    view.names.length > 1 && row.name ? `${row.name}: ${row.collective}` : row.collective,
    row.root === null || row.root < 0 ? "" : String(row.root),
    `${row.type ?? ""} ${row.op ?? ""}`.trim(),
    row.in_place ? "in" : "out of",
    sizeName(row.bytes),
    `${row.plan ?? ""} ${row.proto ?? ""}`.trim(),
    timeName(row.time_us),
    short(row.algbw_gbps),
    short(row.busbw_gbps),
    row.wrong === null || row.wrong === undefined ? "–" : String(row.wrong),
  ]);
  const controls = make("div", { class: "wide" });
  if (view.plots.length > 1) {
    const titles = view.plots.map(({ title }, i) => [i, title]);
    controls.append(
      make("div", { class: "controls" }, picker("Collective", titles, 0, (i) => {
        chosen = Number(i);
        draw();
      })),
    );
  }
  const parts = [controls, plots];
  if (view.rates.length) parts.push(make("section", { class: "wide" }, make("h3", {}, "Rates of the plans"), rateTable(view)));
  const where = breakdown(view.table);
  if (where) parts.push(where);
  if (rows.length) {
    const header = ["collective", "root", "type", "place", "size", "plan", "time", "algbw", "busbw", "wrong"];
    parts.push(make("section", { class: "wide" }, make("h3", {}, "All rows"), make("div", { class: "scroll" }, table(header, rows))));
  }
  let width = 0;
  new ResizeObserver(() => {
    if (plots.clientWidth && plots.clientWidth !== width) {
      width = plots.clientWidth;
      draw();
    }
  }).observe(plots);
  return { node: make("div", {}, ...parts), show: draw };
}
