// Draws a scene (frames, boxes, lines; collc/show/scene.py lays it out) into an SVG that zooms and pans.
import { select } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";
import { button, hideTip, make, short, showTip, value } from "./util.js";

const LANE = 2.6; // half the distance between the two directions of a link
const LEAST_FONT = 8; // of a name, in pixels of the screen, when the picture opens
const FONT = 15;

/** The scene of a view, or of one opened server of it, with numbers of vertices and links of the machine. */
export function resolve(view, opened) {
  if (!opened) return view.scene;
  const { room, vertices, links } = view.servers[opened];
  const places = view.rooms[room];
  return {
    ...places,
    frames: places.frames.map((frame) => [opened, ...frame.slice(1)]),
    shapes: places.shapes.map(([own, ...rest]) => [own.map((v) => vertices[v]), ...rest]),
    lines: places.lines.map(([own, ...rest]) => [own.map((v) => links[v]), ...rest]),
  };
}

/** The ends of a line, moved aside where the link has another direction too, and its path. */
function path(line, paired) {
  const [, x1, y1, x2, y2, bend] = line;
  const long = Math.hypot(x2 - x1, y2 - y1) || 1;
  const nx = -(y2 - y1) / long;
  const ny = (x2 - x1) / long;
  const [ox, oy] = paired ? [nx * LANE, ny * LANE] : [0, 0];
  const a = [x1 + ox, y1 + oy];
  const b = [x2 + ox, y2 + oy];
  if (!bend) return { d: `M${a}L${b}`, at: (t) => [a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t] };
  const c = [(a[0] + b[0]) / 2 + nx * bend * 2, (a[1] + b[1]) / 2 + ny * bend * 2];
  const at = (t) => [0, 1].map((i) => (1 - t) ** 2 * a[i] + 2 * (1 - t) * t * c[i] + t * t * b[i]);
  return { d: `M${a}Q${c} ${b}`, at };
}

/** Cuts a name to a width; the whole name is in the box's title. */
function fitting(text, width, font) {
  const most = Math.max(2, Math.floor(width / (font * 0.58)));
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

/**
 * A picture with its buttons.
 *
 * `paint(links)` says how a line is drawn: {classes, width, arrow, label}. `about(links)` and `aboutShape(vertices)` give
 * the lines of a tooltip, `mark(vertices)` classes and a badge of a box. `open(server)` is called for a folded server.
 */
export class Picture {
  constructor(machine, { paint, about, aboutShape, mark, open, label }) {
    Object.assign(this, { machine, paint, about, aboutShape, mark, open });
    this.svg = select(document.createElementNS("http://www.w3.org/2000/svg", "svg"));
    this.svg.attr("class", "picture").attr("tabindex", 0).attr("role", "group").attr("aria-label", label);
    this.inner = this.svg.append("g");
    this.zoom = zoom()
      .scaleExtent([0.05, 12])
      // A wheel and one finger scroll the page; with Ctrl, two fingers, or once zoomed in, they are the picture's.
      .filter((event) => {
        if (event.type === "wheel") return event.ctrlKey || event.metaKey;
        if (event.type.startsWith("touch")) return event.touches.length > 1 || this.moved;
        return !event.button;
      })
      .on("zoom", (event) => {
        this.inner.attr("transform", event.transform);
        this.moved = event.transform.k > this.home.k * 1.02;
      });
    this.home = zoomIdentity;
    this.svg.call(this.zoom).on("dblclick.zoom", null);
    this.svg.on("keydown", (event) => this.key(event));
    const bar = make(
      "div",
      { class: "buttons" },
      button("+", "Zoom in", () => this.svg.call(this.zoom.scaleBy, 1.4)),
      button("−", "Zoom out", () => this.svg.call(this.zoom.scaleBy, 1 / 1.4)),
      button("Fit", "Show the whole picture", () => this.whole()),
    );
    this.bar = bar;
    this.node = make("div", { class: "stage" }, this.svg.node());
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(this.node);
  }

  key(event) {
    const step = 60;
    const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (moves[event.key] && event.shiftKey) this.svg.call(this.zoom.translateBy, ...moves[event.key]);
    else if (event.key === "+" || event.key === "=") this.svg.call(this.zoom.scaleBy, 1.4);
    else if (event.key === "-") this.svg.call(this.zoom.scaleBy, 1 / 1.4);
    else if (event.key === "0") this.whole();
    else return;
    event.preventDefault();
  }

  /** The size of the picture on the page, and the zoom at which it opens: names legible, else the upper left first. */
  fit() {
    const width = this.node.clientWidth;
    if (!width || !this.scene || width === this.width) return;
    this.width = width;
    const { w, h } = this.scene;
    const most = Math.max(280, window.innerHeight * 0.74);
    const fitted = Math.min(width / w, most / h, Math.max(1.5, window.innerHeight / 700));
    const k = Math.max(fitted, Math.min(LEAST_FONT / FONT, most / h));
    const height = Math.min(most, Math.max(180, h * k));
    this.svg.attr("width", width).attr("height", height).attr("viewBox", `0 0 ${width} ${height}`);
    this.fitted = zoomIdentity.translate(Math.max(0, (width - w * fitted) / 2), 0).scale(fitted);
    this.home = k > fitted ? zoomIdentity.scale(k) : this.fitted;
    this.svg.call(this.zoom.transform, this.home);
    this.moved = k > fitted * 1.02;
  }

  whole() {
    this.svg.call(this.zoom.transform, this.fitted ?? this.home);
  }

  draw(scene) {
    const fresh = this.scene !== scene;
    this.scene = scene;
    this.inner.selectAll("*").remove();
    const layers = ["frames", "halos", "lines", "boxes", "names", "hits"];
    const layer = Object.fromEntries(layers.map((name) => [name, this.inner.append("g").attr("class", name)]));
    for (const frame of scene.frames) this.frame(layer, frame);
    const pairs = new Set(scene.lines.map((line) => this.ends(line[0][0])));
    const lines = scene.lines.map((line) => ({ line, paint: this.paint(line[0]) }));
    lines.sort((a, b) => a.paint.order - b.paint.order);
    const labels = [];
    for (const { line, paint } of lines) {
      const [from, to, kind] = this.ends(line[0][0]).split(" ");
      const shape = path(line, pairs.has(`${to} ${from} ${kind}`));
      this.line(layer, line, paint, shape);
      if (paint.label) labels.push({ text: paint.label, shape, ends: [from, to].sort().join(" ") + kind });
    }
    for (const shape of scene.shapes) this.shape(layer, shape);
    this.labels(layer, labels);
    if (fresh) {
      this.width = null;
      this.fit();
    }
  }

  ends(link) {
    const [from, to, kind] = this.machine.links[link];
    return `${from} ${to} ${kind}`;
  }

  frame(layer, [server, x, y, w, h, folded]) {
    const box = layer.frames.append("rect").attr("class", folded ? "frame folded" : "frame");
    box.attr("x", x).attr("y", y).attr("width", w).attr("height", h).attr("rx", 8);
    const name = fitting(server, w - 16, FONT);
    layer.names.append("text").attr("class", "server").attr("x", x + 8).attr("y", y + 18).text(name);
    if (!folded) return;
    const open = () => this.open(server);
    const hit = layer.hits.append("rect").attr("class", "hit").attr("x", x).attr("y", y).attr("width", w).attr("height", h);
    hit.attr("tabindex", 0).attr("role", "button").attr("aria-label", `Open ${server}`).attr("data-server", server);
    hit.on("click", open).on("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      open();
    });
    const tell = (event) => showTip([server, "Click to open"], event.clientX, event.clientY);
    hit.on("pointermove", tell).on("pointerleave", hideTip);
  }

  line(layer, line, paint, shape) {
    const links = line[0].join(" ");
    if (paint.limit) layer.halos.append("path").attr("class", "halo").attr("d", shape.d).attr("stroke-width", paint.width + 9);
    const drawn = layer.lines.append("path").attr("class", `link ${paint.classes}`).attr("d", shape.d);
    drawn.attr("stroke-width", paint.width).attr("data-links", links);
    if (paint.arrow) {
      const [x, y] = shape.at(0.74);
      const [px, py] = shape.at(0.7);
      const angle = (Math.atan2(y - py, x - px) * 180) / Math.PI;
      layer.lines
        .append("path")
        .attr("class", `arrow ${paint.classes}`)
        .attr("d", "M-9,-6.5L9,0L-9,6.5Z")
        .attr("transform", `translate(${x},${y}) rotate(${angle})`);
    }
    const hit = layer.halos.append("path").attr("class", "reach").attr("d", shape.d).attr("stroke-width", 11);
    for (const node of [hit, drawn]) {
      node.on("pointermove", (event) => showTip(this.about(line[0]), event.clientX, event.clientY));
      node.on("pointerleave", hideTip);
    }
  }

  shape(layer, [vertices, x, y, w, h, text, role]) {
    const kind = this.machine.vertices[vertices[0]][1];
    const { classes, badge } = this.mark(vertices);
    const box = layer.boxes.append("rect").attr("class", `vertex ${kind} ${role} ${classes}`);
    box.attr("x", x - w / 2).attr("y", y - h / 2).attr("width", w).attr("height", h);
    box.attr("rx", role === "pip" || role === "trunk" ? 1 : 4).attr("data-vertex", vertices[0]);
    box.on("pointermove", (event) => showTip(this.aboutShape(vertices), event.clientX, event.clientY));
    box.on("pointerleave", hideTip);
    if (!text) return;
    const room = badge ? w - 17 : w - 2;
    const tight = badge && text.length > 4 ? "tight" : "";
    const name = layer.names.append("text").attr("class", `name ${tight} ${classes}`);
    name.attr("x", badge ? x - 7 : x).attr("y", y + 5).text(fitting(text, room, tight ? 13 : FONT));
    if (!badge) return;
    layer.names.append("text").attr("class", "badge").attr("x", x + w / 2 - 4).attr("y", y + 5).text(badge);
  }

  /** Figures beside lines, where they cover neither a box nor another figure; one for both directions if they agree. */
  labels(layer, labels) {
    const taken = this.scene.shapes.map(([, x, y, w, h]) => [x - w / 2, y - h / 2, x + w / 2, y + h / 2]);
    for (const [, x, y, w] of this.scene.frames) taken.push([x, y, x + w, y + 24]);
    const seen = new Set();
    for (const { text, shape, ends } of labels) {
      if (seen.has(`${ends} ${text}`)) continue;
      const half = text.length * 3.6 + 3;
      for (const t of [0.5, 0.4, 0.6, 0.3, 0.7, 0.22, 0.78]) {
        const [x, y] = shape.at(t);
        const box = [x - half, y - 9, x + half, y + 9];
        if (taken.some((o) => box[0] < o[2] && box[2] > o[0] && box[1] < o[3] && box[3] > o[1])) continue;
        taken.push(box);
        seen.add(`${ends} ${text}`);
        layer.names.append("text").attr("class", "figure").attr("x", x).attr("y", y + 4).text(text);
        break;
      }
    }
  }

  /** Marks the lines of some links, as a row of a table asks; none unmarks. */
  highlight(links) {
    const wanted = new Set(links.map(String));
    this.svg.selectAll(".link").classed("marked", function marked() {
      return this.dataset.links.split(" ").some((link) => wanted.has(link));
    });
    this.svg.classed("marking", links.length > 0);
  }
}

/** The width of a line by the speed of its link beside the fastest: four times the speed is twice as wide. */
export function widthOf(gbps, most) {
  return Math.max(1.6, 5 * Math.sqrt(value(gbps) / most));
}

/** "gpu0 → gpu1", or how many links a line stands for. */
export function linkNames(machine, links) {
  const [from, to] = machine.links[links[0]];
  const first = `${machine.vertices[from][0]} → ${machine.vertices[to][0]}`;
  return links.length === 1 ? first : `${links.length} links: ${first} …`;
}

/** The kinds that a machine has, with the speeds of each. */
export function kindsOf(machine) {
  const found = new Map();
  for (const [, , kind, gbps] of machine.links) found.set(kind, (found.get(kind) ?? new Set()).add(value(gbps)));
  return [...found].map(([kind, speeds]) => {
    const sorted = [...speeds].sort((a, b) => a - b);
    const shown = sorted.slice(0, 4).map(short).join(", ");
    return [kind, sorted.length > 4 ? `${shown}, …` : shown];
  });
}
