// Steps of a call over time, in lanes: by rank and channel, by pair of ranks, or by link. Zoom, pan, critical path.
import { axisTop } from "d3-axis";
import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";
import { button, colour, hideTip, make, picker, showTip, sizeName, timeName } from "./util.js";

const LEFT = 128;
const TOP = 26;
const LANE = 17;
const MOST_LANES = 1500;

/** What a step mostly does, for its colour. */
function sort(name) {
  if (/reduce/i.test(name)) return "reduce";
  if (/recv/i.test(name)) return "recv";
  return /send/i.test(name) ? "send" : "copy";
}

/** Lanes of the steps: for each lane its name and its steps, in order of their beginnings. */
function lanesOf(view, by) {
  const { columns } = view;
  const lanes = new Map();
  const put = (key, name, i) => {
    if (!lanes.has(key)) lanes.set(key, { key, name, steps: [] });
    lanes.get(key).steps.push(i);
  };
  for (let i = 0; i < columns.begin.length; i += 1) {
    const rank = columns.rank[i];
    if (by === "channels") put(rank * 1e6 + columns.channel[i], `rank ${rank} ch ${columns.channel[i]}`, i);
    else if (by === "ranks") put(rank, `rank ${rank}`, i);
    else if (by === "pairs") for (const to of columns.to[i]) put(rank * 1e6 + to, `${rank} → ${to}`, i);
    else for (const link of columns.over[i]) put(link, view.links[link], i);
  }
  return [...lanes.values()].sort((a, b) => a.key - b.key);
}

/** Rows inside a lane, so that steps at the same time lie below each other. */
function stack(view, lane) {
  const ends = [];
  lane.rows = lane.steps.map((i) => {
    let row = ends.findIndex((end) => end <= view.columns.begin[i] + 1e-9);
    if (row < 0) row = ends.length;
    ends[row] = view.columns.end[i];
    return row;
  });
  lane.depth = Math.max(1, ends.length);
}

class Timeline {
  constructor(view) {
    this.view = view;
    this.total = view.columns.end.reduce((most, end) => Math.max(most, end), 0) || 1;
    this.canvas = make("canvas", { tabindex: 0, role: "img", "aria-label": "Steps over time" });
    this.axis = select(document.createElementNS("http://www.w3.org/2000/svg", "svg"));
    this.node = make("div", { class: "chart" }, this.canvas, this.axis.node());
    this.zoom = zoom()
      .scaleExtent([1, 20000])
      .filter((event) => {
        if (event.type === "wheel") return event.ctrlKey || event.metaKey;
        return event.type.startsWith("touch") ? event.touches.length > 1 : !event.button;
      })
      .on("zoom", (event) => {
        this.at = event.transform;
        this.draw();
      });
    this.at = zoomIdentity;
    this.first = 0;
    select(this.canvas).call(this.zoom).on("dblclick.zoom", null);
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("pointermove", (event) => this.tell(event));
    this.canvas.addEventListener("pointerleave", hideTip);
    window.addEventListener("scheme", () => this.draw());
    new ResizeObserver(() => this.size()).observe(this.node);
  }

  lanes(by, critical) {
    this.kept = critical;
    this.all = lanesOf(this.view, by);
    this.hidden = Math.max(0, this.all.length - MOST_LANES);
    this.all = this.all.slice(0, MOST_LANES);
    this.all.forEach((lane) => stack(this.view, lane));
    this.width = 0;
    this.size();
  }

  size() {
    const width = this.node.clientWidth;
    if (!width || !this.all || width === this.width) return;
    this.width = width;
    const rows = this.all.reduce((sum, lane) => sum + Math.min(4, lane.depth), 0);
    // A canvas of more pixels than this stays empty in some browsers.
    this.lane = Math.max(3, Math.min(LANE, 12000 / rows));
    this.height = TOP + rows * this.lane + 6;
    const ratio = Math.min(window.devicePixelRatio || 1, 2, 16000 / this.height);
    this.canvas.width = width * ratio;
    this.canvas.height = this.height * ratio;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.ratio = ratio;
    this.axis.attr("width", width).attr("height", this.height);
    this.zoom.extent([[LEFT, 0], [width, this.height]]).translateExtent([[LEFT, 0], [width, this.height]]);
    this.scale = scaleLinear().domain([0, this.total]).range([LEFT, width - 14]);
    this.draw();
  }

  key(event) {
    const chart = select(this.canvas);
    if (event.key === "+" || event.key === "=") chart.call(this.zoom.scaleBy, 1.6);
    else if (event.key === "-") chart.call(this.zoom.scaleBy, 1 / 1.6);
    else if (event.key === "0") chart.call(this.zoom.transform, zoomIdentity);
    else if (event.key === "ArrowLeft") chart.call(this.zoom.translateBy, 80 / this.at.k, 0);
    else if (event.key === "ArrowRight") chart.call(this.zoom.translateBy, -80 / this.at.k, 0);
    else return;
    event.preventDefault();
  }

  /** The part of the time that is shown. */
  shown() {
    return this.at.rescaleX(this.scale);
  }

  draw() {
    if (!this.all) return;
    const { columns, names } = this.view;
    const x = this.shown();
    const pen = this.canvas.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    const fills = Object.fromEntries(["send", "recv", "reduce", "copy"].map((kind) => [kind, colour(`step-${kind}`)]));
    const critical = colour("critical");
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    let y = TOP;
    this.tops = [];
    let lastName = -100;
    this.all.forEach((lane, number) => {
      const depth = Math.min(4, lane.depth);
      const height = depth * this.lane;
      this.tops.push(y);
      if (number % 2) {
        pen.fillStyle = colour("panel");
        pen.fillRect(LEFT, y, this.width - LEFT, height);
      }
      lane.steps.forEach((i, place) => {
        const from = Math.max(LEFT, x(columns.begin[i]));
        const to = Math.min(this.width, x(columns.end[i]));
        if (to < LEFT || from > this.width) return;
        const row = Math.min(depth - 1, lane.rows[place]);
        pen.fillStyle = columns.critical[i] ? critical : fills[sort(names[columns.name[i]])];
        pen.globalAlpha = this.kept && !columns.critical[i] ? 0.16 : 1;
        pen.fillRect(from, y + row * this.lane + 1, Math.max(0.8, to - from - 0.4), Math.max(1, this.lane - 2));
      });
      pen.globalAlpha = 1;
      if (y - lastName >= 13) {
        pen.fillStyle = colour("ink");
        pen.fillText(lane.name.length > 17 ? `${lane.name.slice(0, 16)}…` : lane.name, 6, y + Math.min(height, this.lane) / 2);
        lastName = y;
      }
      y += height;
    });
    this.axis.selectAll("*").remove();
    const count = Math.max(2, Math.floor((this.width - LEFT) / 110));
    const ticks = axisTop(x).ticks(count).tickFormat(timeName);
    this.axis.append("g").attr("transform", `translate(0,${TOP - 3})`).call(ticks);
  }

  /** The step below the pointer. */
  find(event) {
    const box = this.canvas.getBoundingClientRect();
    const left = event.clientX - box.left;
    const down = event.clientY - box.top;
    const number = this.tops.findLastIndex((top) => top <= down);
    if (number < 0 || left < LEFT) return -1;
    const lane = this.all[number];
    const depth = Math.min(4, lane.depth);
    const row = Math.floor((down - this.tops[number]) / this.lane);
    const x = this.shown();
    const { begin, end } = this.view.columns;
    const found = lane.steps.findIndex((i, place) => Math.min(depth - 1, lane.rows[place]) === row && x(begin[i]) - 1 <= left && left <= x(end[i]) + 1);
    return found < 0 ? -1 : lane.steps[found];
  }

  tell(event) {
    const i = this.find(event);
    if (i < 0) {
      hideTip();
      return;
    }
    const { columns, names, reasons, links } = this.view;
    const lines = [
      `${names[columns.name[i]]}, rank ${columns.rank[i]}, channel ${columns.channel[i]}`,
      `${timeName(columns.begin[i])} to ${timeName(columns.end[i])}: ${timeName(columns.end[i] - columns.begin[i])}`,
      `chunk ${columns.chunk[i]} of share ${columns.share[i]}, ${sizeName(columns.bytes[i])}`,
      `released by ${reasons[columns.why[i]]}`,
    ];
    if (columns.to[i].length) lines.push(`to rank ${columns.to[i].join(", ")}`);
    if (columns.over[i].length) lines.push(`over ${columns.over[i].map((link) => links[link]).join(", ")}`);
    if (columns.critical[i]) lines.push("on the critical path");
    showTip(lines, event.clientX, event.clientY);
  }
}

export function timelineView(view) {
  const drawn = new Timeline(view);
  const { columns } = view;
  let by = "channels";
  let critical = false;
  const lanes = [["channels", "ranks and channels"], ["ranks", "ranks"], ["pairs", "pairs of ranks, from → to"]];
  if (view.links.length) lanes.push(["links", "links"]);
  const more = make("p", { class: "hint" });
  const refresh = () => {
    drawn.lanes(by, critical);
    more.textContent = drawn.hidden ? `${drawn.hidden} more lanes are not shown.` : "";
  };
  const toggle = make("input", {
    type: "checkbox",
    onchange: () => {
      critical = toggle.checked;
      refresh();
    },
  });
  const along = columns.critical.reduce((sum, on) => sum + on, 0);
  const chart = select(drawn.canvas);
  const keys = ["send", "recv", "reduce", "copy"].map((kind) => make("span", { class: "item" }, make("span", { class: `chip step-${kind}` }), kind));
  const node = make(
    "div",
    { class: "wide" },
    make("p", { class: "rate" }, `${view.words ? `${view.words} ` : ""}${columns.begin.length} steps in ${timeName(drawn.total)}; ${along} of them on the critical path.`),
    make(
      "div",
      { class: "controls" },
      picker("Lanes", lanes, by, (chosen) => {
        by = chosen;
        refresh();
      }),
      make("label", { class: "check" }, toggle, "critical path alone"),
      button("+", "Zoom in", () => chart.call(drawn.zoom.scaleBy, 1.6)),
      button("−", "Zoom out", () => chart.call(drawn.zoom.scaleBy, 1 / 1.6)),
      button("All", "The whole time", () => chart.call(drawn.zoom.transform, zoomIdentity)),
    ),
    drawn.node,
    make("div", { class: "legend" }, ...keys, make("span", { class: "item" }, make("span", { class: "chip step-critical" }), "critical path")),
    more,
    make("p", { class: "hint" }, "Ctrl and the wheel zoom, dragging moves. With the chart focused: + and -, the arrows, 0 for all."),
  );
  return { node, show: refresh };
}
