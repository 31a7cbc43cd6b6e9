// Reads the data of the page and shows its views as tabs.
import { machineView } from "./machine.js";
import { planView } from "./plan.js";
import { programView } from "./program.js";
import { resultsView } from "./results.js";
import { timelineView } from "./timeline.js";
import { make, schemeButton } from "./util.js";

const KINDS = { machine: machineView, plan: planView, results: resultsView, timeline: timelineView, program: programView };

const data = JSON.parse(document.getElementById("data").textContent);
const app = document.getElementById("app");
const panels = data.views.map((view) => ({ view, made: null, panel: null, tab: null }));

function show(index) {
  panels.forEach((each, i) => {
    each.tab.setAttribute("aria-selected", i === index);
    each.tab.tabIndex = i === index ? 0 : -1;
    each.panel.hidden = i !== index;
  });
  const chosen = panels[index];
  if (!chosen.made) {
    chosen.made = KINDS[chosen.view.kind](chosen.view);
    chosen.panel.append(chosen.made.node);
    chosen.made.show();
  }
}

const tabs = make("div", { class: "tabs", role: "tablist", "aria-label": "Views" });
panels.forEach((each, i) => {
  each.tab = make("button", { type: "button", role: "tab", id: `tab${i}`, "aria-controls": `panel${i}`, onclick: () => show(i) }, each.view.title);
  each.panel = make("section", { role: "tabpanel", id: `panel${i}`, "aria-labelledby": `tab${i}`, hidden: true });
  tabs.append(each.tab);
});
tabs.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by) return;
  const now = panels.findIndex((each) => each.tab === document.activeElement);
  const next = (now + by + panels.length) % panels.length;
  show(next);
  panels[next].tab.focus();
});

app.replaceChildren(
  make("header", {}, make("h1", {}, data.title), make("span", { class: "hint" }, `collc ${data.collc}`), schemeButton()),
  tabs,
  ...panels.map((each) => each.panel),
);
tabs.hidden = panels.length < 2;
const first = panels.findIndex((each) => each.view.first);
show(first < 0 ? 0 : first);
document.documentElement.dataset.ready = "yes";
