// Programs: the text before and after a pass, side by side, equal lines beside each other.
import { make, picker, table, tableRow } from "./util.js";

const MOST_ROWS = 8000;
const AROUND = 3; // equal lines that are left around a difference

/** The rows to show: all, or those near a difference, with a row for each gap. */
function chosen(rows, changed) {
  if (!changed) return rows;
  const near = new Set();
  rows.forEach(([kind], i) => {
    if (kind === "same") return;
    for (let j = i - AROUND; j <= i + AROUND; j += 1) near.add(j);
  });
  const found = [];
  rows.forEach((row, i) => {
    if (near.has(i)) found.push(row);
    else if (near.has(i - 1)) found.push(["gap", "…", "…"]);
  });
  return found;
}

export function programView(view) {
  const body = make("div", { class: "scroll tall" });
  const counts = make("p", { class: "hint" });
  const heads = make("p", {});
  let index = 0;
  const alone = () => view.pairs[index].after === null;
  const toggle = make("input", { type: "checkbox", checked: true, onchange: () => draw() });
  const check = make("label", { class: "check" }, toggle, "differences alone");
  function draw() {
    const pair = view.pairs[index];
    check.hidden = alone();
    const different = pair.rows.filter(([kind]) => kind !== "same").length;
    const rows = chosen(pair.rows, toggle.checked && !alone() && different > 0).slice(0, MOST_ROWS);
    const lines = rows.map(([kind, before, after]) => tableRow(alone() ? [before] : [before, after], { class: kind === "same" ? "" : kind }));
    const header = alone() ? ["program"] : pair.title.split(" | ");
    body.replaceChildren(table(header, lines, { class: "diff" }));
    heads.textContent = alone() ? pair.before : `Before: ${pair.before}. After: ${pair.after}.`;
    const left = pair.left_out ? `; ${pair.left_out} lines are left out` : "";
    counts.textContent = alone() ? `${pair.rows.length} lines${left}` : `${different} of ${pair.rows.length} lines differ${left}`;
  }
  const node = make(
    "div",
    { class: "wide" },
    make(
      "div",
      { class: "controls" },
      view.pairs.length > 1
        ? picker("Program", view.pairs.map(({ title }, i) => [i, title]), 0, (i) => {
            index = Number(i);
            draw();
          })
        : null,
      check,
    ),
    heads,
    counts,
    body,
  );
  return { node, show: draw };
}
