// The list of problems and its controls.

let shown = []; // positions of the problems that the list shows, in order

function setUpControls() {
  const fill = (id, options) => byId(id).replaceChildren(
    ...options.map(([value, text]) => make("option", { value }, text)));
  const turnOptions = [...Array(turns).keys()].map((turn) => [turn, `turn ${turn}`]);
  fill("outcome", OUTCOMES);
  fill("verdict", [["any", "any"], ...index.kinds.map((kind) => [kind, kind.replaceAll("_", " ")])]);
  fill("difficulty", [["any", "any"], ...difficulties().map((text) => [text, text])]);
  fill("run", [[-1, "any run"], ...index.runs.map((name, run) => [run, name])]);
  fill("from", turnOptions);
  fill("to", turnOptions);
  fill("sort", sorts());
  byId("run").closest("label").hidden = index.runs.length === 1;
  byId("range").hidden = turns === 1;
  for (const id of ["search", "outcome", "verdict", "difficulty", "run", "from", "to", "sort"]) {
    byId(id).addEventListener("input", () => readControl(id));
  }
  byId("descending").addEventListener("click", () => {
    filters.descending = !filters.descending;
    showControls();
    refresh();
  });
  byId("inside-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (searching === null) searchInside(byId("inside").value);
    else cancelSearch();
  });
  byId("inside").addEventListener("input", () => {
    if (byId("inside").value === "" && filters.inside !== "") searchInside("");
  });
  byId("clear").addEventListener("click", () => {
    const inside = filters.inside;
    Object.assign(filters, defaults, { inside });
    byId("inside").value = "";
    showControls();
    searchInside("");
  });
  showControls();
}

function readControl(id) {
  const number = ["run", "from", "to"].includes(id);
  filters[id] = number ? Number(byId(id).value) : byId(id).value;
  if (id === "from") filters.to = Math.max(filters.from, filters.to);
  if (id === "to") filters.from = Math.min(filters.from, filters.to);
  showControls();
  refresh();
}

function showControls() {
  for (const id of ["search", "outcome", "verdict", "difficulty", "run", "from", "to", "sort"]) {
    byId(id).value = filters[id];
  }
  byId("descending").setAttribute("aria-pressed", String(filters.descending));
  byId("descending").textContent = filters.descending ? "High to low" : "Low to high";
}

// Whether the filters leave out trajectories, apart from those of other problems.
function filtersNarrow() {
  return filters.outcome !== "all" || filters.verdict !== "any" || filters.run >= 0 || hits !== null;
}

// Draw all that the filters decide.
function refresh() {
  const problems = listed();
  listProblems(problems);
  drawFigures(problems);
  drawTables();
  remember();
}

function listProblems(problems) {
  shown = problems.map(([position]) => position);
  const trajectories = problems.reduce((sum, [, samples]) => sum + samples.flat().length, 0);
  byId("count").textContent = `${shown.length} of ${count(index.problems.length, "problem")}, `
    + `${count(trajectories, "trajectory", "trajectories")} that match`;
  byId("problems").replaceChildren(...shown.map((position) => {
    const problem = index.problems[position];
    return make("li", {}, make("button", { type: "button", "data-position": position, onclick: () => visit(position) },
      make("span", { class: "id" }, String(problem.id)),
      make("span", { class: "change" }, problem.runs.map(changeOf).join(" | ")),
      make("span", { class: "opening" }, [problem.difficulty, problem.opening].filter(Boolean).join(": "))));
  }));
  markListed();
}

// How many samples solve the problem at the first and last turn, as the legend explains it: "1 -> 0 / 2, 1 H".
function changeOf(figures) {
  const [first, last, all] = [solvedAt(figures, 0), solvedAt(figures, -1), figures.levels.length];
  const hacked = figures.hacked.length ? `, ${figures.hacked.length} H` : "";
  return `${turns === 1 ? first : `${first}\u2192${last}`}/${all}${hacked}`;
}

function legend() {
  const [first, last] = [`turn ${filters.from}`, `turn ${filters.to}`];
  const example = turns === 1 ? "1/2: 1 of 2 samples solves the problem"
    : `1\u21920/2: of 2 samples, 1 solves the problem at the first turn and 0 at the last`;
  const runs = index.runs.length > 1 ? `; ${index.runs.join(" | ")}` : "";
  const hacked = index.problems.some((problem) => problem.runs.some((figures) => figures.hacked.length))
    ? "; H: hacking events" : "";
  const range = turns > 1 ? ` (${first} to ${last})` : "";
  return `${example}${range}${runs}${hacked}`;
}

function markListed() {
  byId("legend").textContent = legend();
  for (const button of byId("problems").querySelectorAll("button")) {
    if (Number(button.dataset.position) !== chosen.problem) button.removeAttribute("aria-current");
    else {
      button.setAttribute("aria-current", "true");
      scrollList(button);
    }
  }
}

// Bring an entry of the list into its view; scrollIntoView would move the whole page, too.
function scrollList(button) {
  const [list, entry] = [byId("problems").getBoundingClientRect(), button.getBoundingClientRect()];
  if (entry.top < list.top) byId("problems").scrollTop += entry.top - list.top;
  else if (entry.bottom > list.bottom) byId("problems").scrollTop += entry.bottom - list.bottom;
}

// Open a problem that the user chose in the list; where the list is above the problem, go there.
async function visit(position) {
  await openProblem(position);
  if (!matchMedia("(max-width: 46rem)").matches) return;
  byId("problem-title")?.scrollIntoView();
  byId("problem-title")?.focus({ preventScroll: true });
}

function step(by) {
  if (shown.length === 0) return;
  const listIndex = shown.indexOf(chosen.problem);
  openProblem(shown[listIndex < 0 ? 0 : Math.min(shown.length - 1, Math.max(0, listIndex + by))]);
}
