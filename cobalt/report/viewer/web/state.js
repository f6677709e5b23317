// What is open and what is listed, and how the address of the page says it.

const VIEWS = [["changes", "Changes"], ["programs", "Programs"], ["responses", "Responses"]];

let index; // {kinds, runs, models, problems}; see data.py
let turns = 0; // the largest number of turns of a trajectory

// `samples` has the sample of each run; `run` is the run that the keys and the address name; `only` is a run that is
// shown alone, or -1.
const chosen = { problem: -1, run: 0, samples: [], turn: 0, view: "changes", only: -1 };

// `inside` is what `hits` were found for; `run` is -1 for any run; `from` and `to` are turns.
const filters = {
  search: "", inside: "", outcome: "all", verdict: "any", difficulty: "any", run: -1, from: 0, to: 0, sort: "file",
  descending: false,
};
let defaults; // the filters of a page without an address

let hits = null; // by position of a problem, a set of "run,sample,turn" whose programs have the text; null: no search

function runsOf(problem) {
  return problem.runs.map((_, run) => run);
}

// The address of the page, or that of one turn of the open problem.
function addressOf(run = chosen.run, sample = chosen.samples[run], turn = chosen.turn) {
  const values = new URLSearchParams({ problem: index.problems[chosen.problem].id, sample, turn });
  if (index.runs.length > 1) {
    values.set("run", index.runs[run]);
    values.set("beside", chosen.samples[1 - run]);
    if (chosen.only >= 0) values.set("only", index.runs[chosen.only]);
  }
  if (chosen.view !== "changes") values.set("view", chosen.view);
  for (const [name, value] of Object.entries(filters)) {
    if (value !== defaults[name]) values.set(name === "run" ? "of" : name, name === "run" ? index.runs[value] : value);
  }
  return `#${values}`;
}

function remember() {
  if (chosen.problem >= 0) history.replaceState(null, "", addressOf());
}

// A whole number from 0 to `most` in a part of the address; otherwise the fallback.
function wholeNumber(text, most, fallback) {
  return /^\d{1,9}$/.test(text ?? "") && Number(text) <= most ? Number(text) : fallback;
}

// Set the view and the filters that an address names; what it does not name, or names wrongly, gets its default.
function filtersFromAddress(values) {
  const named = (name, names) => (names.includes(values.get(name)) ? values.get(name) : defaults[name]);
  Object.assign(filters, {
    search: values.get("search") ?? "",
    outcome: named("outcome", OUTCOMES.map(([name]) => name)),
    verdict: named("verdict", index.kinds),
    difficulty: named("difficulty", difficulties()),
    run: index.runs.indexOf(values.get("of")),
    from: wholeNumber(values.get("from"), turns - 1, defaults.from),
    to: wholeNumber(values.get("to"), turns - 1, defaults.to),
    sort: named("sort", sorts().map(([name]) => name)),
    descending: values.get("descending") === "true",
  });
  if (filters.from > filters.to) [filters.from, filters.to] = [defaults.from, defaults.to];
  chosen.view = VIEWS.some(([name]) => name === values.get("view")) ? values.get("view") : "changes";
  chosen.only = index.runs.length > 1 ? index.runs.indexOf(values.get("only")) : -1;
}

// The selection that an address names: {position, run, samples, turn}. Undefined if the address names no problem, null
// if the page does not have the selection.
function selectionFromAddress(values) {
  if (!values.has("problem")) return undefined;
  const position = index.problems.findIndex((problem) => String(problem.id) === values.get("problem"));
  const run = values.has("run") ? index.runs.indexOf(values.get("run")) : 0;
  const levels = index.problems[position]?.runs[run]?.levels;
  if (!levels) return null;
  const sample = wholeNumber(values.get("sample") ?? "0", levels.length - 1, -1);
  const turn = wholeNumber(values.get("turn") ?? "0", (levels[sample] ?? "").length - 1, -1);
  if (sample < 0 || turn < 0) return null;
  const samples = index.problems[position].runs.map(({ levels: own }, other) => (other === run ? sample
    : wholeNumber(values.get("beside"), own.length - 1, Math.min(sample, own.length - 1))));
  return { position, run, samples, turn };
}
