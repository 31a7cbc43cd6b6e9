// Small things that all views use: elements, exact numbers as text, sizes, the tooltip, the colour scheme.

/** Makes an element; names and other texts from outside only ever become text nodes or attributes. */
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** "600/7" -> 85.71...; the exact text stays beside it wherever it is shown. */
export function value(text) {
  const [above, below] = String(text).split("/");
  return below === undefined ? Number(above) : Number(above) / Number(below);
}

/** "600/7" -> "600/7 = 85.71"; whole numbers stay as they are. */
export function both(text) {
  const exact = String(text);
  return exact.includes("/") ? `${exact} = ${short(value(exact))}` : exact;
}

/** A figure of at most four digits. */
export function short(number) {
  if (!Number.isFinite(number)) return "–";
  return Math.abs(number) >= 1000 ? String(Math.round(number)) : String(Number(number.toPrecision(4)));
}

/** 65536 -> "64 KiB". */
export function sizeName(bytes) {
  for (const [unit, factor] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes >= factor) return `${Number((bytes / factor).toPrecision(4))} ${unit}`;
  }
  return `${bytes} B`;
}

/** A time in microseconds with its unit. */
export function timeName(us) {
  if (Math.abs(us) >= 1e6) return `${short(us / 1e6)} s`;
  return Math.abs(us) >= 1e3 ? `${short(us / 1e3)} ms` : `${short(us)} µs`;
}

let tip = null;

/** Shows lines of text near a point of the window; also where a keyboard has put the focus. */
export function showTip(lines, x, y) {
  tip ??= document.body.appendChild(make("div", { class: "tip", role: "status", "aria-live": "polite" }));
  tip.replaceChildren(...lines.map((line, i) => make("div", { class: i ? "" : "first" }, line)));
  tip.classList.add("shown");
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, window.innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 18 + box.height > window.innerHeight ? Math.max(4, y - box.height - 12) : y + 18}px`;
}

export function hideTip() {
  tip?.classList.remove("shown");
}

/** A drop-down list of [value, text] rows with its label. */
export function picker(label, rows, chosen, onchange) {
  const list = make(
    "select",
    { "aria-label": label, onchange: () => onchange(list.value) },
    ...rows.map(([key, text]) => make("option", { value: key, selected: String(key) === String(chosen) }, text)),
  );
  return make("label", { class: "field" }, make("span", {}, label), list);
}

/** A button of the page. */
export function button(text, label, onclick) {
  return make("button", { type: "button", "aria-label": label, title: label, onclick }, text);
}

/** A table with a header; cells may be nodes. */
export function table(header, rows, attributes = {}) {
  return make(
    "table",
    attributes,
    make("thead", {}, make("tr", {}, ...header.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...rows.map((row) => (row instanceof Node ? row : tableRow(row)))),
  );
}

export function tableRow(cells, attributes = {}) {
  return make("tr", attributes, ...cells.map((cell) => make("td", {}, cell)));
}

/** Light, dark, or as the system has it, kept for the session where the browser lets a file keep anything. */
export function schemeButton() {
  const names = { auto: "Colours: system", light: "Colours: light", dark: "Colours: dark" };
  const order = Object.keys(names);
  let now = "auto";
  const node = button(names[now], "Switch between the system's, light and dark colours", () => {
    now = order[(order.indexOf(now) + 1) % order.length];
    document.documentElement.dataset.scheme = now;
    node.textContent = names[now];
    window.dispatchEvent(new Event("scheme"));
  });
  return node;
}

/** The colour that a name of page.css has now. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
