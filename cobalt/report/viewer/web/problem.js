// The open problem: its question, what each run was sent, the table of trajectories, and their turns.

let pieces = null; // of the open problem, by run
let opening = 0; // number of the last call of openProblem

// Open a problem at a selection {run, samples, turn}; without one at the first trajectory that matches the filters.
async function openProblem(position, selection = firstSelection(position)) {
  const call = ++opening;
  byId("alert").hidden = true;
  Object.assign(chosen, { problem: position, ...selection });
  if (chosen.only >= 0) chosen.only = chosen.run;
  markListed();
  pieces = null;
  let loaded;
  try {
    loaded = await Promise.all(index.runs.map((_, run) => decode(`piece-${run}-${position}`)));
  } catch (error) {
    if (call === opening) alertDamage(position, error);
    return;
  }
  if (call !== opening) return; // another problem was opened meanwhile
  pieces = loaded;
  drawProblem();
  remember();
}

function firstSelection(position) {
  const samples = matching(position);
  const run = Math.max(0, samples.findIndex((own) => own.length > 0));
  const sample = samples[run][0] ?? 0;
  const problem = index.problems[position];
  const hacked = problem.runs[run].hacked.find(([other, turn]) => other === sample && inRange(turn));
  const turn = hitTurns(position, run, sample)[0] ?? (filters.outcome === "hacked" && hacked ? hacked[1] : filters.from);
  return {
    run, turn: Math.min(turn, problem.runs[run].levels[sample].length - 1),
    samples: problem.runs.map(({ levels }, other) => samples[other][0] ?? Math.min(sample, levels.length - 1)),
  };
}

function drawProblem() {
  const problem = index.problems[chosen.problem];
  const question = pieces[0].question;
  const difficulty = problem.difficulty ? ` (${problem.difficulty})` : "";
  byId("problem").replaceChildren(
    make("h2", { id: "problem-title", tabindex: "-1" }, `${problem.id}${difficulty}`),
    foldedText("Question", "the question", question, question.length < 600),
    make("div", { id: "tables" }),
    make("div", { class: "views" },
      make("div", { role: "group", "aria-label": "What to show of each turn" },
        ...VIEWS.map(([name, text]) => make("button", { type: "button", "data-view": name,
          onclick: () => setView(name) }, text))),
      index.runs.length > 1 ? make("div", { role: "group", "aria-label": "Which runs to show" },
        ...[[-1, "Side by side"], ...index.runs.map((name, run) => [run, `Only ${name}`])].map(([run, text]) => make(
          "button", { type: "button", "data-only": run, onclick: () => setOnly(run) }, text))) : null),
    make("div", { id: "trajectory" }));
  drawTables();
  drawTrajectories();
}

function drawTables() {
  if (!pieces) return;
  for (const button of document.querySelectorAll("[data-only]")) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.only) === chosen.only));
  }
  byId("tables").className = "columns";
  byId("tables").replaceChildren(...shownRuns().map((run) => make("div", {},
    index.runs.length > 1 ? make("h3", {}, index.runs[run]) : null,
    drawOpening(run), make("div", { class: "scroller" }, drawTable(run)))));
}

// The system prompt and the first message, as the chosen sample was sent them.
function drawOpening(run) {
  const { openings, texts } = pieces[run];
  const messages = openings.length === 1 ? openings[0] : openings[chosen.samples[run]];
  if (messages.length === 0) return null;
  const recipient = openings.length === 1 ? "all samples" : `sample ${chosen.samples[run]}`;
  return make("details", {}, make("summary", {}, `First messages, as sent to ${recipient}`),
    ...messages.flatMap(([role, text]) => [
      make("p", { class: "facts" }, role === "system" ? "System prompt" : "First message"),
      textBlock(role === "system" ? "the system prompt" : "the first message", texts[text])]));
}

function drawTable(run) {
  const { levels, hacked } = index.problems[chosen.problem].runs[run];
  const events = new Set(hacked.map(String));
  const samples = pieces[run].samples;
  const most = Math.max(...samples.map((sample) => sample.length));
  const narrowed = filtersNarrow();
  const head = make("tr", {}, make("th", { scope: "col" }, "sample / turn"),
    ...Array.from({ length: most }, (_, turn) => make("th", { scope: "col", "aria-label": `turn ${turn}` }, String(turn))));
  const rows = samples.map((entries, sample) => {
    const match = narrowed && matches(chosen.problem, run, sample);
    const turnsWithHit = hits === null ? [] : hitTurns(chosen.problem, run, sample);
    const row = make("tr", { class: `${match ? "match" : ""} ${sample === chosen.samples[run] ? "chosen" : ""}` },
      make("th", { scope: "row" }, `${sample}${match ? " \u2022" : ""}`));
    entries.forEach((entry, turn) => row.append(make("td", {}, drawCell({
      run, sample, turn, share: entry.rate, event: events.has(`${sample},${turn}`), hit: turnsWithHit.includes(turn),
      outside: levels[sample].length > 1 && !inRange(turn),
    }))));
    return row;
  });
  return make("table", { class: "grid", "aria-label": `Share of hidden tests passed, per cent: ${index.runs[run]}` },
    make("thead", {}, head), make("tbody", {}, ...rows));
}

function drawCell({ run, sample, turn, share, event, hit, outside }) {
  const current = run === chosen.run && sample === chosen.samples[run] && turn === chosen.turn;
  const text = Math.floor(100 * share);
  const button = make("button", {
    type: "button", class: [share === 1 ? "solved" : "", event ? "hacked" : "", outside ? "outside" : ""].join(" "),
    "data-cell": `${run},${sample},${turn}`, tabindex: current ? 0 : -1, "aria-pressed": String(current),
    "aria-label": `sample ${sample}, turn ${turn}: ${text} % of hidden tests${event ? ", hacking event" : ""}${
      hit ? ", has the text searched for" : ""}`,
    onclick: () => {
      choose(run, sample, turn);
      reveal();
    },
  }, (share === 1 ? "\u2713" : String(text)) + (event ? " H" : "") + (hit ? "*" : ""));
  button.style.setProperty("--share", share);
  return button;
}

// Choose a turn of the open problem; the table keeps the focus where it had it.
function choose(run, sample, turn) {
  const other = chosen.samples[run] !== sample;
  const focused = byId("tables").contains(document.activeElement);
  chosen.run = run;
  chosen.samples[run] = sample;
  chosen.turn = turn;
  drawTables();
  if (focused) document.querySelector(`[data-cell="${run},${sample},${turn}"]`)?.focus({ preventScroll: true });
  if (other) drawTrajectories();
  for (const section of byId("trajectory").querySelectorAll(".turn")) {
    section.classList.toggle("chosen", section.id === idOf(run, turn));
  }
  remember();
}

// Bring the chosen turn into view, below the bar that stays at the top.
function reveal() {
  const section = byId(idOf(chosen.run, chosen.turn));
  if (!section) return;
  section.style.setProperty("scroll-margin-top", `${document.querySelector(".views").offsetHeight}px`);
  section.scrollIntoView();
}

// Go to another turn (0, 1) or sample (1, 0) of the chosen run, if there is one.
function move(samples, turnsOn) {
  if (!pieces) return false;
  const [sample, turn] = [chosen.samples[chosen.run] + samples, chosen.turn + turnsOn];
  if (!pieces[chosen.run].samples[sample]?.[turn]) return false;
  choose(chosen.run, sample, turn);
  return true;
}

function setView(view) {
  chosen.view = view;
  if (!pieces) return;
  drawTrajectories();
  remember();
}

function setOnly(run) {
  chosen.only = run;
  if (run >= 0) setRun(run);
  else redrawProblem();
}

// Make another run the one that the keys and the address name.
function setRun(run) {
  chosen.run = run;
  if (chosen.only >= 0) chosen.only = run;
  chosen.turn = Math.min(chosen.turn, pieces[run].samples[chosen.samples[run]].length - 1);
  redrawProblem();
}

function redrawProblem() {
  drawTables();
  drawTrajectories();
  remember();
}
