// Plans: trees and flows on the machine, the use of every link, the certificate, and what limits the rate.
import { legendItem, serverSwitch } from "./machine.js";
import { linkNames, Picture, resolve, widthOf } from "./scene.js";
import { both, button, hideTip, make, picker, short, showTip, table, tableRow, value } from "./util.js";

const STEPS = ["idle", "up to 25%", "up to 50%", "up to 75%", "below 100%", "full"];
const MOST_ROWS = 400;

function step(share) {
  if (share >= 1 - 1e-12) return 5;
  return share <= 0 ? 0 : 1 + Math.min(3, Math.ceil(share * 4 - 1e-9) - 1);
}

/** One plan beside its machine: loads, gains and trees by the machine's own numbers of links. */
class Plan {
  constructor(view, index) {
    const { document: file, notes } = view.plan;
    this.file = file;
    this.plan = file.plans[index];
    this.note = notes[index];
    this.machine = view.machine;
    this.own = view.links; // the plan's link -> the machine's
    this.loads = new Map(Object.entries(this.note.loads).map(([link, load]) => [this.own[link], load]));
    this.gain = new Map(Object.entries(this.note.gain).map(([link, gain]) => [this.own[link], gain]));
    const prices = this.plan.certificate?.prices ?? {};
    this.prices = new Map(Object.entries(prices).map(([link, price]) => [this.own[link], price]));
    this.planned = new Set(this.own);
    const place = new Map(this.machine.vertices.map(([name], v) => [name, v]));
    this.ranks = file.ranks.map(({ gpu }) => place.get(gpu));
    const single = this.note.sides.length > 1 && this.note.sides.every((side) => side.length === 1);
    this.side = new Map();
    if (!single) this.note.sides.forEach((side, i) => side.forEach((name) => this.side.set(place.get(name), i)));
    this.trees = (this.plan.trees ?? []).map((tree) => ({ ...tree, count: 1 }));
    for (const tree of this.plan.orbits?.trees ?? []) this.trees.push(tree);
    this.flows = this.plan.flows ?? [];
  }

  /** The classes of links that a tree crosses, such as "nvlink" or "net + nvswitch". */
  classOf(tree) {
    const kinds = new Set();
    for (const hop of [...(tree.reduce ?? []), ...(tree.broadcast ?? [])]) {
      for (const link of hop[2]) kinds.add(this.file.links[link].kind);
    }
    return [...kinds].sort().join(" + ");
  }

  /** What can be shown: the sums, one root's or one class's trees together, each tree or pair alone. */
  choices() {
    const rows = [["sum", "all together: the load of every link"]];
    const roots = [...new Set(this.trees.map((tree) => tree.root))].sort((a, b) => a - b);
    if (roots.length > 1) for (const root of roots) rows.push([`root ${root}`, `trees of root ${this.name(root)}`]);
    const classes = [...new Set(this.trees.map((tree) => this.classOf(tree)))].sort();
    if (classes.length > 1) for (const name of classes) rows.push([`class ${name}`, `trees over ${name}`]);
    this.trees.forEach((tree, i) => {
      const copies = tree.count > 1 ? `, one of ${tree.count} alike` : "";
      rows.push([`tree ${i}`, `tree ${i + 1}: root ${this.name(tree.root)}, ${both(tree.weight_gbps)} GB/s${copies}`]);
    });
    const sources = [...new Set(this.flows.map(([from]) => from))];
    for (const rank of this.flows.length ? sources : []) rows.push([`from ${rank}`, `flows from ${this.name(rank)}`]);
    this.flows.slice(0, 500).forEach(([from, to, weight], i) => {
      rows.push([`flow ${i}`, `flow ${this.name(from)} to ${this.name(to)}, ${both(weight)} GB/s`]);
    });
    return rows;
  }

  name(rank) {
    return this.file.ranks[rank].gpu;
  }

  chosen(choice) {
    const [what, ...rest] = choice.split(" ");
    const key = rest.join(" ");
    if (what === "root") return { trees: this.trees.filter((tree) => tree.root === Number(key)) };
    if (what === "class") return { trees: this.trees.filter((tree) => this.classOf(tree) === key) };
    if (what === "tree") return { trees: [this.trees[Number(key)]] };
    if (what === "from") return { flows: this.flows.filter(([from]) => from === Number(key)) };
    return what === "flow" ? { flows: [this.flows[Number(key)]] } : {};
  }

  /** GB/s by the machine's links of what is chosen; `phase` leaves one phase of an all_reduce. */
  carried(choice, phase) {
    const { trees, flows } = this.chosen(choice);
    const found = new Map();
    const add = (links, weight) => {
      for (const link of links) found.set(this.own[link], (found.get(this.own[link]) ?? 0) + weight);
    };
    if (!trees && !flows) {
      for (const [link, load] of this.loads) found.set(link, value(load));
      return found;
    }
    for (const [, , weight, links] of flows ?? []) add(links, value(weight));
    for (const tree of trees ?? []) {
      for (const name of ["reduce", "broadcast"]) {
        if (phase !== "both" && phase !== name) continue;
        for (const hop of tree[name] ?? []) add(hop[2], value(tree.weight_gbps));
      }
    }
    return found;
  }
}

/** A tree as an indented list of GPUs, children below their parents. */
function outline(plan, tree) {
  const down = new Map();
  const hops = tree.broadcast?.length ? tree.broadcast : (tree.reduce ?? []).map(([child, parent]) => [parent, child]);
  for (const [parent, child] of hops) down.set(parent, [...(down.get(parent) ?? []), child]);
  const lines = [];
  const walk = (rank, depth) => {
    if (lines.length > 200) return;
    lines.push(make("li", { class: "step", "data-depth": Math.min(depth, 12) }, plan.name(rank)));
    for (const child of (down.get(rank) ?? []).sort((a, b) => a - b)) walk(child, depth + 1);
  };
  walk(tree.root, 0);
  return make("ol", { class: "outline", "aria-label": "The tree, children below their parents" }, ...lines);
}

export function planView(view) {
  const { machine } = view;
  const most = Math.max(...machine.links.map((link) => value(link[3])), 1e-9);
  const state = { plan: new Plan(view, 0), choice: "sum", phase: "both", opened: null, carried: new Map(), figures: view.links.length <= 80 };
  const picture = new Picture(machine, {
    label: `Plans on ${machine.name}`,
    paint: (links) => paint(state, links, most),
    about: (links) => about(state, links),
    aboutShape: (vertices) => aboutShape(state, vertices),
    mark: (vertices) => mark(state, vertices),
    open: (server) => servers.open(server),
  });
  const side = make("div", { class: "side" });
  const draw = () => picture.draw(resolve(view, state.opened));
  const servers = serverSwitch(view, (server) => {
    state.opened = server;
    draw();
  });
  const refresh = () => {
    state.carried = state.plan.carried(state.choice, state.phase);
    draw();
    side.replaceChildren(...sideOf(state, picture, { refresh, pick, view }));
  };
  const pick = (choice) => {
    state.choice = choice;
    refresh();
  };
  const legend = make("div", { class: "legend" }, ...STEPS.map((name, i) => legendItem(`link use${i}`, name)), legendItem("halo", "limits the rate"));
  const node = make("div", { class: "split" }, make("div", { class: "main" }, make("div", { class: "above" }, servers.node, picture.bar), picture.node, legend), side);
  node.addEventListener("keydown", (event) => {
    if (event.key !== "[" && event.key !== "]") return;
    pick(neighbour(state, event.key === "]" ? 1 : -1));
  });
  return { node, show: refresh };
}

function neighbour(state, by) {
  const rows = state.plan.choices();
  const at = rows.findIndex(([key]) => key === state.choice);
  return rows[(at + by + rows.length) % rows.length][0];
}

function paint(state, links, most) {
  const [, , kind, gbps] = state.plan.machine.links[links[0]];
  const share = Math.max(...links.map((link) => (state.carried.get(link) ?? 0) / value(state.plan.machine.links[link][3])));
  // A tree or flow alone stands out: what it leaves idle is thin, and the limits of the whole plan are not marked.
  const whole = state.choice === "sum";
  const limit = whole && links.some((link) => state.plan.gain.has(link));
  const planned = links.some((link) => state.plan.planned.has(link));
  const used = step(share);
  const load = links.reduce((sum, link) => sum + (state.carried.get(link) ?? 0), 0);
  const speed = links.reduce((sum, link) => sum + value(state.plan.machine.links[link][3]), 0);
  return {
    classes: `${whole || !used ? `use${used}` : "chosen"} kind-${kind}${planned && (whole || used) ? "" : " unplanned"}`,
    width: planned && (whole || used) ? widthOf(gbps, most) : 1,
    limit,
    order: used + (limit ? 1 : 0),
    arrow: !whole && used > 0,
    label: state.figures && used ? `${short(load)}/${short(speed)}` : "",
  };
}

function about(state, links) {
  const { plan } = state;
  const lines = [linkNames(plan.machine, links)];
  if (links.length > 1) {
    const full = links.filter((link) => (state.carried.get(link) ?? 0) >= value(plan.machine.links[link][3]) * (1 - 1e-12));
    lines.push(`${full.length} of them full`);
    const gains = new Set(links.map((link) => plan.gain.get(link)).filter(Boolean));
    for (const gain of gains) lines.push(`limits the rate: +1 GB/s on one of them brings ${both(gain)}`);
    return lines;
  }
  const [link] = links;
  const [, , kind, gbps] = plan.machine.links[link];
  const load = state.choice === "sum" ? plan.loads.get(link) : undefined;
  const carried = state.carried.get(link) ?? 0;
  const percent = Math.round((carried / value(gbps)) * 100);
  lines.push(`${kind}, ${gbps} GB/s`);
  lines.push(plan.planned.has(link) ? `carries ${load ? both(load) : short(carried)} GB/s (${percent}%)` : "not in this plan");
  const gain = plan.gain.get(link);
  if (gain) lines.push(`limits the rate: +1 GB/s here brings ${both(gain)} GB/s`);
  const price = plan.prices.get(link);
  if (price) lines.push(`price ${both(price)}`);
  return lines;
}

function aboutShape(state, vertices) {
  const { machine, ranks, side } = state.plan;
  if (vertices.length > 1) return [vertices.map((v) => machine.vertices[v][0]).join(", ")];
  const [name, kind] = machine.vertices[vertices[0]];
  const rank = ranks.indexOf(vertices[0]);
  const lines = [`${name} (${kind})`];
  if (rank >= 0) lines.push(`rank ${rank}`);
  else if (kind === "gpu") lines.push("takes no part");
  if (side.has(vertices[0])) lines.push(`part ${letter(side.get(vertices[0]))} of the certificate`);
  return lines;
}

function letter(part) {
  return part < 26 ? String.fromCharCode(65 + part) : String(part + 1);
}

function mark(state, vertices) {
  const { machine, ranks, side, plan } = state.plan;
  const kind = machine.vertices[vertices[0]][1];
  const classes = [];
  if (kind === "gpu" && !ranks.includes(vertices[0])) classes.push("idle");
  const { trees } = state.plan.chosen(state.choice);
  const root = trees ? trees.length && trees.every((tree) => tree.root === trees[0].root) && trees[0].root : plan.root;
  if (root !== null && root !== false && root !== undefined && ranks[root] === vertices[0]) classes.push("root");
  const part = side.get(vertices[0]);
  if (part !== undefined) classes.push(`part part${part % 6}`);
  return { classes: classes.join(" "), badge: part !== undefined && vertices.length === 1 ? letter(part) : "" };
}

function sideOf(state, picture, { refresh, pick, view }) {
  const { plan } = state;
  const { file, note } = plan;
  const names = file.plans.map((each, i) => {
    const root = each.root === null ? "" : ` ${["reduce", "gather"].includes(each.collective) ? "to" : "from"} ${plan.name(each.root)}`;
    return [i, `${each.collective}${root}: ${each.rate_gbps === null ? "–" : short(value(each.rate_gbps))} GB/s`];
  });
  const [rate, ...words] = note.words;
  const nodes = [
    picker("Collective", names, file.plans.indexOf(plan.plan), (index) => {
      state.plan = new Plan(view, Number(index));
      state.choice = "sum";
      refresh();
    }),
    make("p", { class: "rate" }, rate),
    make("ul", { class: "words" }, ...words.map((line) => make("li", {}, line))),
    make(
      "div",
      { class: "stepper" },
      picker("Show", plan.choices(), state.choice, pick),
      button("‹", "The one before ( [ )", () => pick(neighbour(state, -1))),
      button("›", "The next one ( ] )", () => pick(neighbour(state, 1))),
    ),
  ];
  const { trees } = plan.chosen(state.choice);
  if (trees && plan.plan.collective === "all_reduce") {
    const phases = [["both", "both phases"], ["reduce", "reduce, up to the root"], ["broadcast", "broadcast, down from it"]];
    nodes.push(
      picker("Phase", phases, state.phase, (phase) => {
        state.phase = phase;
        refresh();
      }),
    );
  }
  if (trees?.length === 1) nodes.push(outline(plan, trees[0]));
  if (note.left_out) nodes.push(make("p", { class: "hint" }, `${note.left_out} lighter trees are left out of this page; sums count all.`));
  nodes.push(linkTable(state, picture));
  const toggle = make("input", {
    type: "checkbox",
    checked: state.figures,
    onchange: () => {
      state.figures = toggle.checked;
      refresh();
    },
  });
  nodes.push(make("label", { class: "check" }, toggle, "load/speed beside the lines"));
  nodes.push(make("p", { class: "hint" }, `Graph ${file.topology.fingerprint}`));
  return nodes;
}

/** The links of the plan, those that limit first, then by use; a row marks its link in the picture. */
function linkTable(state, picture) {
  const { plan } = state;
  const rows = plan.own.map((link) => {
    const speed = value(plan.machine.links[link][3]);
    return { link, speed, load: state.carried.get(link) ?? 0, gain: plan.gain.get(link) };
  });
  rows.sort((a, b) => Boolean(b.gain) - Boolean(a.gain) || b.load / b.speed - a.load / a.speed || a.link - b.link);
  const drawn = rows.slice(0, MOST_ROWS).map(({ link, speed, load, gain }) => {
    const row = tableRow(
      [
        linkNames(plan.machine, [link]),
        short(speed),
        `${short(load)} (${Math.round((load / speed) * 100)}%)`,
        gain ? `+${gain}` : "",
      ],
      { class: gain ? "limit" : "", tabindex: 0, "data-link": link },
    );
    const on = () => picture.highlight([link]);
    const off = () => {
      picture.highlight([]);
      hideTip();
    };
    row.addEventListener("pointerenter", on);
    row.addEventListener("pointerleave", off);
    row.addEventListener("focus", () => {
      on();
      const box = row.getBoundingClientRect();
      showTip(about(state, [link]), box.left + 20, box.top);
    });
    row.addEventListener("blur", off);
    return row;
  });
  const limits = rows.filter((row) => row.gain).length;
  const caption = make("h3", {}, limits ? `Links: ${limits} limit the rate` : "Links");
  const more = rows.length - drawn.length;
  return make(
    "section",
    { class: "links" },
    caption,
    make("div", { class: "scroll" }, table(["link", "GB/s", "carries", "+1 GB/s brings"], drawn)),
    more > 0 ? make("p", { class: "hint" }, `and ${more} more`) : null,
  );
}
