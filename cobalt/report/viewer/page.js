"use strict";
// The viewer. Every text of the run becomes a text node, never markup. `index` and `piece-N` are data blocks: base64
// of zlib streams of JSON (see page.py); a problem's piece is decoded when the problem is opened.

const byId = (id) => document.getElementById(id);
const FILTERS = [
  ["all", "anything (all problems)", () => true],
  ["solved", "solved at the last turn", (levels) => levels.endsWith("S")],
  ["unsolved", "not solved at the last turn", (levels) => !levels.endsWith("S")],
  ["repaired", "repaired (wrong, last right)", (levels) => /^[^S].*S$/.test(levels)],
  ["regressed", "regressed (right, later wrong)", (levels) => /S[^S]/.test(levels)],
  ["hacked", "hacked (has a hacking event)", (levels, hacked) => hacked],
];
const VIEWS = [["changes", "Changes"], ["programs", "Programs"], ["responses", "Responses"]];
const SIGNS = { passed: "\u2713", wrong_answer: "\u00d7", not_run: "-", time_limit: "L", wall_limit: "L",
  memory_limit: "L", output_limit: "L" };
const CONTEXT = 3; // unchanged lines shown around a change
const MAX_CELLS = 4e6; // of the table that compares two programs

let index; // {kinds, problems}
let shown = []; // positions of the problems that the list shows
let piece = null; // the open problem's trajectories
const chosen = { problem: -1, sample: 0, turn: 0, view: "changes" };

// An element with attributes and children; strings become text nodes.
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") node.addEventListener("click", value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function alertUser(text) {
  byId("alert").textContent = text;
  byId("alert").hidden = false;
}

// The data block with this id, once the browser has read all of it; null in a page that was cut short.
function whenRead(id) {
  return new Promise((resolve) => {
    const observer = new MutationObserver(check);
    function check() {
      const block = byId(id);
      const all = document.readyState !== "loading";
      if (!all && !block?.nextElementSibling) return;
      observer.disconnect();
      resolve(block);
    }
    observer.observe(document.body, { childList: true });
    document.addEventListener("DOMContentLoaded", check);
    check();
  });
}

async function decode(id) {
  const block = await whenRead(id);
  if (!block) throw new Error("the data block is missing");
  const bytes = Uint8Array.from(atob(block.textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// ---- the list of problems

function matches(problem, sample) {
  const [, , test] = FILTERS.find(([name]) => name === byId("filter").value);
  return test(problem.levels[sample], problem.hacked.some((place) => place[0] === sample));
}

function solvedAt(problem, end) {
  return problem.levels.filter((levels) => levels.at(end) === "S").length;
}

function listProblems() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  shown = [];
  let trajectories = 0;
  index.problems.forEach((problem, position) => {
    const text = `${problem.id} ${problem.difficulty} ${problem.opening}`.toLowerCase();
    const samples = problem.levels.filter((_, sample) => matches(problem, sample)).length;
    if (samples === 0 || !words.every((word) => text.includes(word))) return;
    shown.push(position);
    trajectories += samples;
  });
  byId("count").textContent =
    `${shown.length} of ${index.problems.length} problems, ${trajectories} trajectories that match`;
  byId("problems").replaceChildren(...shown.map((position) => {
    const problem = index.problems[position];
    const [first, last, all] = [solvedAt(problem, 0), solvedAt(problem, -1), problem.levels.length];
    const hacked = problem.hacked.length ? `, ${problem.hacked.length} H` : "";
    return make("li", {}, make("button", {
      type: "button", "data-position": position, onclick: () => openProblem(position),
      "aria-current": position === chosen.problem ? "true" : undefined,
      title: `solved at the first turn by ${first}, at the last by ${last} of ${all} samples`,
    },
    make("span", { class: "id" }, String(problem.id)),
    make("span", {}, `${first}\u2192${last}/${all}${hacked}`),
    make("span", { class: "opening" }, problem.opening)));
  }));
  drawGrid();
}

// Bring an entry of the list into its view; scrollIntoView would move the whole page, too.
function scrollList(button) {
  const [list, entry] = [byId("problems").getBoundingClientRect(), button.getBoundingClientRect()];
  if (entry.top < list.top) byId("problems").scrollTop += entry.top - list.top;
  else if (entry.bottom > list.bottom) byId("problems").scrollTop += entry.bottom - list.bottom;
}

function step(by) {
  if (shown.length === 0) return;
  const place = shown.indexOf(chosen.problem);
  const next = place < 0 ? 0 : Math.min(shown.length - 1, Math.max(0, place + by));
  openProblem(shown[next]);
}

// ---- one problem

async function openProblem(position, sample, turn) {
  const problem = index.problems[position];
  byId("alert").hidden = true;
  chosen.problem = position;
  const first = problem.levels.findIndex((_, candidate) => matches(problem, candidate));
  chosen.sample = sample ?? Math.max(0, first);
  const hacked = problem.hacked.find((place) => place[0] === chosen.sample);
  chosen.turn = turn ?? (byId("filter").value === "hacked" && hacked ? hacked[1] : 0);
  for (const button of byId("problems").querySelectorAll("button")) {
    if (Number(button.dataset.position) !== position) button.removeAttribute("aria-current");
    else {
      button.setAttribute("aria-current", "true");
      scrollList(button);
    }
  }
  piece = null;
  let loaded;
  try {
    loaded = await decode(`piece-${position}`);
  } catch (error) {
    alertUser(`The data of problem ${problem.id} cannot be read (${error.message}): the page was cut short or changed; make it again.`);
    return;
  }
  if (chosen.problem !== position) return; // another problem was opened meanwhile
  piece = loaded;
  drawProblem(problem);
  remember();
}

function drawProblem(problem) {
  const difficulty = problem.difficulty ? ` (${problem.difficulty})` : "";
  byId("main").replaceChildren(
    make("h2", {}, `${problem.id}${difficulty}`),
    make("details", { open: piece.question.length < 600 }, make("summary", {}, "Question"),
      make("pre", {}, piece.question)),
    make("div", { class: "scroller", id: "grid" }),
    make("div", { class: "views", role: "group", "aria-label": "What to show of each turn" },
      ...VIEWS.map(([name, label]) => make("button", { type: "button", "data-view": name,
        onclick: () => setView(name) }, label))),
    make("div", { id: "trajectory" }));
  drawGrid();
  drawTrajectory();
}

function drawGrid() {
  if (!piece || !byId("grid")) return;
  const problem = index.problems[chosen.problem];
  const hacked = new Set(problem.hacked.map(String));
  const turns = Math.max(...piece.samples.map((sample) => sample.length));
  const head = make("tr", {}, make("th", { scope: "col" }, "sample"),
    ...Array.from({ length: turns }, (_, turn) => make("th", { scope: "col" }, `turn ${turn}`)));
  const rows = piece.samples.map((entries, sample) => make("tr", {
    class: [matches(problem, sample) && byId("filter").value !== "all" ? "match" : "",
      sample === chosen.sample ? "chosen" : ""].join(" "),
  }, make("th", { scope: "row" }, String(sample)), ...entries.map((entry, turn) => {
    const here = sample === chosen.sample && turn === chosen.turn;
    const event = hacked.has(`${sample},${turn}`);
    const percent = Math.floor(100 * entry.rate);
    const button = make("button", {
      type: "button", class: (entry.rate === 1 ? "solved" : "") + (event ? " hacked" : ""),
      "data-place": `${sample},${turn}`, tabindex: here ? 0 : -1, "aria-pressed": String(here),
      "aria-label": `sample ${sample}, turn ${turn}: ${percent} % of hidden tests${event ? ", hacking event" : ""}`,
      onclick: () => {
        choose(sample, turn);
        byId(`turn-${turn}`).scrollIntoView();
      },
    }, (entry.rate === 1 ? "\u2713" : String(percent)) + (event ? " H" : ""));
    button.style.setProperty("--share", entry.rate);
    return make("td", {}, button);
  })));
  byId("grid").replaceChildren(make("table", { class: "grid", "aria-label": "Share of hidden tests passed, per cent" },
    make("thead", {}, head), make("tbody", {}, ...rows)));
}

function choose(sample, turn) {
  const other = sample !== chosen.sample;
  Object.assign(chosen, { sample, turn });
  drawGrid();
  byId("grid").querySelector(`[data-place="${sample},${turn}"]`).focus({ preventScroll: true });
  if (other) drawTrajectory();
  for (const section of byId("trajectory").querySelectorAll(".turn")) {
    section.classList.toggle("chosen", section.id === `turn-${turn}`);
  }
  remember();
}

function setView(view) {
  chosen.view = view;
  drawTrajectory();
}

// ---- one trajectory

function drawTrajectory() {
  for (const button of document.querySelectorAll("[data-view]")) {
    button.setAttribute("aria-pressed", String(button.dataset.view === chosen.view));
  }
  const entries = piece.samples[chosen.sample];
  byId("trajectory").replaceChildren(
    make("h2", {}, `Sample ${chosen.sample}`), ...entries.map((_, turn) => drawTurn(entries, turn)));
}

function drawTurn(entries, turn) {
  const entry = entries[turn];
  const section = make("section", {
    class: turn === chosen.turn ? "turn chosen" : "turn", id: `turn-${turn}`, "aria-labelledby": `turn-title-${turn}`,
  });
  const badges = [];
  if (entry.hacked) badges.push(`hacking event: ${entry.hacked}`);
  if (turn > 0 && entries[turn - 1].rate === 1 && entry.rate < 1) badges.push("regressed");
  if (turn > 0 && entries[turn - 1].rate < 1 && entry.rate === 1) badges.push("solved here");
  section.append(
    make("h3", { id: `turn-title-${turn}` }, `Turn ${turn} `,
      ...badges.flatMap((text) => [make("span", { class: "badge" }, text), " "])),
    make("p", { class: "facts" }, factsOf(entry)));
  const details = make("div");
  if (entry.public) section.append(drawTests("public", entry, details));
  if (entry.hidden) section.append(drawTests("hidden", entry, details));
  section.append(details);
  if (entry.error) section.append(make("p", {}, `Error of the engine: ${entry.error}`));
  section.append(drawBody(entries, turn));
  if (entry.feedback !== undefined) {
    section.append(make("details", { open: true }, make("summary", {}, "Feedback to the model"),
      make("pre", {}, piece.texts[entry.feedback])));
  }
  return section;
}

function factsOf(entry) {
  const facts = [`${Math.floor(100 * entry.rate)} % of hidden tests passed`];
  if (entry.tokens !== undefined) facts.push(`${entry.tokens} tokens`);
  if (entry.finish === "length") facts.push("cut off at the token limit");
  else if (entry.finish && entry.finish !== "stop") facts.push(`finish: ${entry.finish}`);
  if (typeof entry.cost === "number") facts.push(`$${entry.cost.toFixed(4)}`);
  if (entry.seconds !== undefined) facts.push(`public tests ran ${entry.seconds} s`);
  return facts.join(" \u00b7 ");
}

function drawTests(suite, entry, details) {
  const row = make("div", { class: "tests" }, make("span", {}, suite));
  [...entry[suite]].forEach((digit, test) => {
    const kind = index.kinds[Number(digit)];
    const words = kind.replaceAll("_", " ");
    const button = make("button", {
      type: "button", class: kind === "passed" ? "" : "failed", title: words, "aria-expanded": "false",
      "aria-label": `${suite} test ${test}: ${words}`,
    }, `${test} ${SIGNS[kind] ?? "!"}`);
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-expanded") === "true";
      for (const other of row.parentNode.querySelectorAll(".tests button")) {
        other.setAttribute("aria-expanded", "false");
      }
      button.setAttribute("aria-expanded", String(!open));
      details.replaceChildren(...(open ? [] : [drawTest(suite, test, words, entry)]));
    });
    row.append(button);
  });
  return row;
}

function drawTest(suite, test, words, entry) {
  const [input, output] = piece[suite][test] ?? ["", ""];
  const time = suite === "public" && entry.cpu ? `, ${entry.cpu[test]} s of CPU time` : "";
  const message = suite === "public" ? piece.texts[entry.messages[test]] : "";
  return make("div", { class: "test" },
    make("p", {}, `${suite} test ${test}: ${words}${time}`),
    make("p", {}, "Input"), make("pre", {}, input),
    make("p", {}, suite === "public" && piece.impossible.includes(test)
      ? "Expected output, made wrong on purpose" : "Expected output"), make("pre", {}, output),
    ...(message ? [make("p", {}, "Feedback of the judge"), make("pre", {}, message)] : []));
}

function drawBody(entries, turn) {
  const { program, response } = entries[turn];
  if (chosen.view === "responses") {
    return response === undefined
      ? make("p", { class: "facts" }, "This page was made without responses (--programs_only).")
      : make("pre", {}, piece.texts[response]);
  }
  if (program === null) return make("p", { class: "facts" }, "There is no program in this response.");
  const before = turn > 0 ? entries[turn - 1].program : null;
  if (chosen.view === "programs" || before === null) return make("pre", {}, piece.texts[program]);
  if (before === program) return make("p", { class: "facts" }, `The same program as at turn ${turn - 1}.`);
  return drawDiff(compare(piece.texts[before].split("\n"), piece.texts[program].split("\n")));
}

// ---- differences of two programs

// The lines of both as [sign, line], sign " ", "-" or "+", by a longest common subsequence.
function compare(before, after) {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start++;
  let [endBefore, endAfter] = [before.length, after.length];
  while (endBefore > start && endAfter > start && before[endBefore - 1] === after[endAfter - 1]) {
    endBefore--;
    endAfter--;
  }
  const [old, now] = [before.slice(start, endBefore), after.slice(start, endAfter)];
  const width = now.length + 1;
  const lines = before.slice(0, start).map((line) => [" ", line]);
  let [i, j] = [0, 0];
  if ((old.length + 1) * width <= MAX_CELLS) {
    const common = new Uint32Array((old.length + 1) * width); // of old[i..] and now[j..]
    for (let row = old.length - 1; row >= 0; row--) {
      for (let column = now.length - 1; column >= 0; column--) {
        common[row * width + column] = old[row] === now[column]
          ? common[(row + 1) * width + column + 1] + 1
          : Math.max(common[(row + 1) * width + column], common[row * width + column + 1]);
      }
    }
    while (i < old.length && j < now.length) {
      if (old[i] === now[j]) {
        lines.push([" ", old[i++]]);
        j++;
      } else if (common[(i + 1) * width + j] >= common[i * width + j + 1]) lines.push(["-", old[i++]]);
      else lines.push(["+", now[j++]]);
    }
  }
  while (i < old.length) lines.push(["-", old[i++]]);
  while (j < now.length) lines.push(["+", now[j++]]);
  return lines.concat(before.slice(endBefore).map((line) => [" ", line]));
}

function drawDiff(lines) {
  const near = lines.map(() => false);
  lines.forEach(([sign], place) => {
    if (sign !== " ") near.fill(true, Math.max(0, place - CONTEXT), place + CONTEXT + 1);
  });
  const block = make("div", { class: "diff" });
  for (let place = 0; place < lines.length; place++) {
    const end = near.indexOf(true, place);
    const next = end < 0 ? lines.length : end;
    if (next > place + 1) {
      block.append(make("span", { class: "skipped" }, `${next - place} lines unchanged`));
      place = next - 1;
      continue;
    }
    const [sign, line] = lines[place];
    block.append(make({ "-": "del", "+": "ins", " ": "span" }[sign], {}, `${sign} ${line}`));
  }
  return block;
}

// ---- address and keys

function remember() {
  const address = `#problem=${chosen.problem}&sample=${chosen.sample}&turn=${chosen.turn}`;
  history.replaceState(null, "", address);
}

// Opens the problem, sample and turn that the address names; null where the page does not have them.
function openFromAddress() {
  const values = new URLSearchParams(location.hash.slice(1));
  const [position, sample, turn] = ["problem", "sample", "turn"].map((name) => Number(values.get(name) ?? 0));
  const levels = index.problems[position]?.levels;
  if (levels?.[sample]?.[turn] === undefined || !values.has("problem")) return null;
  return openProblem(position, sample, turn);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const place = event.target.dataset?.place;
  const arrow = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (place && arrow) {
    const sample = chosen.sample + arrow[0];
    const turn = chosen.turn + arrow[1];
    if (piece.samples[sample]?.[turn]) choose(sample, turn);
    event.preventDefault();
    return;
  }
  if (event.target.matches("input, select, textarea")) return;
  if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (event.key === "?") byId("help").showModal();
  else if (event.key === "/") byId("search").focus();
  else if (event.key === "v" && piece) {
    const at = VIEWS.findIndex(([name]) => name === chosen.view);
    setView(VIEWS[(at + 1) % VIEWS.length][0]);
  } else return;
  event.preventDefault();
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
  const samples = index.problems.reduce((sum, problem) => sum + problem.levels.length, 0);
  const [first, last] = [0, -1].map((end) => index.problems.reduce(
    (sum, problem) => sum + solvedAt(problem, end) / problem.levels.length, 0) / index.problems.length);
  byId("facts").textContent = `${index.problems.length} problems, ${samples} trajectories; Pass@1 on hidden tests`
    + ` ${(100 * first).toFixed(1)} % at the first turn, ${(100 * last).toFixed(1)} % at the last`;
  byId("filter").append(...FILTERS.map(([name, label]) => make("option", { value: name }, label)));
  byId("search").addEventListener("input", listProblems);
  byId("filter").addEventListener("change", listProblems);
  byId("help-button").addEventListener("click", () => byId("help").showModal());
  document.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", openFromAddress);
  listProblems();
  await (openFromAddress() ?? openProblem(0));
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start();
