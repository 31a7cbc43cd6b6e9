// The machine itself: what joins what, by kind and speed.
import { kindsOf, linkNames, Picture, resolve, widthOf } from "./scene.js";
import { button, make, short, value } from "./util.js";

/** Opens and closes servers of a view's picture; `render(opened)` draws. */
export function serverSwitch(view, render) {
  const back = button("All servers", "Back to all servers", () => open(null));
  const hint = make("span", { class: "hint" }, "Click a server to open it.");
  const node = make("div", { class: "servers", hidden: !view.servers }, back, hint);
  function open(server) {
    back.hidden = server === null;
    hint.textContent = server === null ? "Click a server to open it." : "";
    render(server);
    if (server !== null) back.focus();
  }
  back.hidden = true;
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !back.hidden) open(null);
  });
  return { node, open };
}

export function legendItem(classes, text) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "key");
  svg.setAttribute("viewBox", "0 0 34 12");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
  line.setAttribute("class", classes);
  line.setAttribute("d", "M1,6H33");
  line.setAttribute("stroke-width", classes.includes("halo") ? 10 : 4);
  svg.append(line);
  return make("span", { class: "item" }, svg, make("span", {}, text));
}

export function machineView(view) {
  const { machine } = view;
  const most = Math.max(...machine.links.map((link) => value(link[3])), 1e-9);
  const holding = new Set(machine.ranks);
  const counts = new Map();
  for (const [, kind] of machine.vertices) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  const near = machine.vertices.map(() => []);
  for (const [from, to, kind, gbps] of machine.links) near[from].push([to, kind, gbps]);
  let figures = machine.links.length <= 80;
  const picture = new Picture(machine, {
    label: `The machine ${machine.name}`,
    paint(links) {
      const [, , kind, gbps] = machine.links[links[0]];
      const together = links.reduce((sum, link) => sum + value(machine.links[link][3]), 0);
      return {
        classes: `k-${kind}`,
        width: widthOf(gbps, most),
        order: kind === "pcie" || kind === "net" ? 0 : 1,
        label: figures ? short(together) : "",
      };
    },
    about(links) {
      const [, , kind, gbps] = machine.links[links[0]];
      const speed = links.length === 1 ? `${gbps} GB/s each way` : `${gbps} GB/s each`;
      return [linkNames(machine, links), `${kind}, ${speed}`];
    },
    aboutShape(vertices) {
      if (vertices.length > 1) return [vertices.map((v) => machine.vertices[v][0]).join(", ")];
      const [name, kind] = machine.vertices[vertices[0]];
      const rows = near[vertices[0]].slice(0, 12).map(([to, way, gbps]) => `${machine.vertices[to][0]}: ${way} ${gbps} GB/s`);
      const more = near[vertices[0]].length - rows.length;
      return [`${name} (${kind})`, ...rows, ...(more > 0 ? [`and ${more} more`] : [])];
    },
    mark: (vertices) => ({ classes: machine.vertices[vertices[0]][1] === "gpu" && !holding.has(vertices[0]) ? "idle" : "" }),
    open: (server) => servers.open(server),
  });
  let opened = null;
  const servers = serverSwitch(view, (server) => {
    opened = server;
    picture.draw(resolve(view, opened));
  });
  const called = { gpu: ["GPU", "GPUs"], cpu: ["CPU", "CPUs"], nic: ["NIC", "NICs"], switch: ["switch", "switches"] };
  const words = [...counts].map(([kind, count]) => `${count} ${called[kind][count === 1 ? 0 : 1]}`);
  const toggle = make("input", {
    type: "checkbox",
    checked: figures,
    onchange: () => {
      figures = toggle.checked;
      picture.draw(resolve(view, opened));
    },
  });
  const legend = kindsOf(machine).map(([kind, speeds]) => legendItem(`link k-${kind}`, `${kind}: ${speeds} GB/s`));
  const node = make(
    "div",
    { class: "split" },
    make("div", { class: "main" }, make("div", { class: "above" }, servers.node, picture.bar), picture.node, make("div", { class: "legend" }, ...legend)),
    make(
      "div",
      { class: "side" },
      make("h2", {}, machine.name),
      make("p", {}, `${words.join(", ")}; ${machine.links.length} directed links. A wider line is a faster link; each of the two lanes is one direction.`),
      make("label", { class: "check" }, toggle, "GB/s beside the lines"),
      make("p", { class: "hint" }, "Point at a link or a box for its figures. Ctrl and the wheel zoom; with the picture focused also + and -, 0 for all, and Shift with the arrows moves it."),
    ),
  );
  return { node, show: () => picture.draw(resolve(view, opened)) };
}
