// Keys, the address, and the start of the page.

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  n: () => move(0, 1) && reveal(),
  p: () => move(0, -1) && reveal(),
  s: () => move(1, 0) && reveal(),
  S: () => move(-1, 0) && reveal(),
  r: () => index.runs.length > 1 && pieces && setRun(1 - chosen.run),
  v: () => setView(VIEWS[(VIEWS.findIndex(([name]) => name === chosen.view) + 1) % VIEWS.length][0]),
  c: () => copyChosen(),
  l: () => pieces && copyLink(chosen.run, chosen.turn),
  g: () => byId("figures-box").toggleAttribute("open"),
  "/": () => byId("search").focus(),
  i: () => byId("inside").focus(),
  f: () => {
    byId("filters").open = true;
    byId("outcome").focus();
  },
  "?": () => byId("help").showModal(),
};

function copyChosen() {
  if (!pieces) return;
  const { program } = pieces[chosen.run].samples[chosen.samples[chosen.run]][chosen.turn];
  if (program === null) announce("There is no program in this response");
  else copyText("the program", pieces[chosen.run].texts[program]);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const arrow = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (event.target.dataset?.cell && arrow) {
    move(...arrow);
    event.preventDefault();
    return;
  }
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (!Object.hasOwn(KEYS, event.key)) return;
  KEYS[event.key]();
  event.preventDefault();
}

// Open what the address names: filters, then the turn. An address without a problem opens the first one.
async function openFromAddress() {
  const values = new URLSearchParams(location.hash.slice(1));
  filtersFromAddress(values);
  showControls();
  const addressed = selectionFromAddress(values);
  const problems = listed();
  listProblems(problems);
  drawFigures(problems);
  const { position, ...selection } = addressed ?? { position: shown[0] ?? 0 };
  if (addressed) byId("figures-box").open = false;
  await openProblem(position, ...(addressed ? [selection] : []));
  if (addressed && pieces) {
    reveal();
    byId(`title-${chosen.run}-${chosen.turn}`)?.focus({ preventScroll: true });
  }
  if (addressed === null) {
    alertUser("This page does not have the problem, run, sample or turn that the address names: the first problem is shown.");
  }
  const inside = values.get("inside") ?? "";
  byId("inside").value = inside;
  if (inside !== filters.inside) searchInside(inside); // its end is not waited for
}

function factsOfRuns() {
  return index.runs.map((name, run) => {
    const all = index.problems.map((problem) => problem.runs[run]);
    const samples = all.reduce((sum, figures) => sum + figures.levels.length, 0);
    const [first, last] = [0, -1].map((end) => all.reduce(
      (sum, figures) => sum + solvedAt(figures, end) / figures.levels.length, 0) / all.length);
    const rates = turns === 1 ? percent(first) : `${percent(first)} at the first turn, ${percent(last)} at the last`;
    const head = index.runs.length > 1 ? `${name}: ` : "";
    const model = index.models[run] ? `model ${index.models[run]}, ` : "";
    return `${head}${model}${count(all.length, "problem")}, ${samples} trajectories; Pass@1 on hidden tests ${rates}`;
  }).join(". ");
}

async function start() {
  if (!("DecompressionStream" in window)) {
    byId("facts").textContent = "";
    alertUser("This browser cannot unpack the page's data (it lacks DecompressionStream): open the page in Chrome or"
      + " Edge 80, Firefox 113, Safari 16.4, or a newer one.");
    return;
  }
  try {
    index = await decode("index");
  } catch (error) {
    alertUser(`The page's data cannot be read (${error.message}): the page was cut short or changed; make it again.`);
    return;
  }
  for (const { runs } of index.problems) {
    for (const { levels } of runs) turns = Math.max(turns, ...levels.map((own) => own.length));
  }
  filters.to = turns - 1;
  defaults = { ...filters };
  byId("facts").textContent = factsOfRuns();
  byId("filters").open = !matchMedia("(max-width: 46rem)").matches;
  setUpControls();
  byId("help-button").addEventListener("click", () => byId("help").showModal());
  document.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", openFromAddress);
  await openFromAddress();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start();
