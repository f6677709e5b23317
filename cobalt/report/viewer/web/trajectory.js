// The turns of the chosen trajectories: one column for each run that is shown.

const SIGNS = { passed: "\u2713", wrong_answer: "\u00d7", not_run: "-", time_limit: "L", wall_limit: "L",
  memory_limit: "L", output_limit: "L" };

const idOf = (run, turn) => `turn-${run}-${turn}`;
const shownRuns = () => (chosen.only >= 0 ? [chosen.only] : index.runs.map((_, run) => run));

function drawTrajectories() {
  for (const button of document.querySelectorAll("[data-view]")) {
    button.setAttribute("aria-pressed", String(button.dataset.view === chosen.view));
  }
  const runs = shownRuns();
  const length = Math.max(...runs.map((run) => pieces[run].samples[chosen.samples[run]].length));
  const rows = [...Array(length).keys()].map((turn) => make("div", { class: "columns" }, ...runs.map((run) => {
    const entries = pieces[run].samples[chosen.samples[run]];
    return turn < entries.length ? drawTurn(run, entries, turn) : make("div");
  })));
  const heads = runs.map((run) => make("h2", {},
    `${index.runs.length > 1 ? `${index.runs[run]}, sample` : "Sample"} ${chosen.samples[run]}`));
  byId("trajectory").replaceChildren(make("div", { class: "columns" }, ...heads), ...rows);
}

function drawTurn(run, entries, turn) {
  const entry = entries[turn];
  const name = index.runs.length > 1 ? `${index.runs[run]}, turn ${turn}` : `Turn ${turn}`;
  const section = make("section", {
    class: `turn${isChosen(run, turn) ? " chosen" : ""}`, id: idOf(run, turn), "aria-labelledby": `title-${run}-${turn}`,
  });
  const badges = [];
  if (entry.hacked) badges.push(`hacking event: ${entry.hacked}`);
  if (turn > 0 && entries[turn - 1].rate === 1 && entry.rate < 1) badges.push("regressed");
  if (turn > 0 && entries[turn - 1].rate < 1 && entry.rate === 1) badges.push("solved here");
  section.append(
    make("div", { class: "head" },
      make("h3", { id: `title-${run}-${turn}`, tabindex: "-1" }, `${name} `,
        ...badges.flatMap((text) => [make("span", { class: "badge" }, text), " "])),
      make("button", { type: "button", class: "copy", "aria-label": `Copy the link to ${name}`,
        onclick: (event) => copyLink(run, turn, event.currentTarget) }, "Copy link")),
    make("p", { class: "facts" }, factsOf(entry)));
  const details = make("div");
  for (const suite of ["public", "hidden"]) {
    if (entry[suite]) section.append(drawTests(suite, entry, details, run));
  }
  section.append(details);
  if (entry.error) section.append(make("p", {}, `Error of the engine: ${entry.error}`));
  section.append(...drawBody(pieces[run], entries, turn));
  if (entry.feedback !== undefined) {
    section.append(foldedText("Feedback to the model, as sent", "the feedback", pieces[run].texts[entry.feedback], true));
  }
  return section;
}

const isChosen = (run, turn) => turn === chosen.turn && run === chosen.run;

function copyLink(run, turn, button) {
  const address = location.href.split("#")[0] + addressOf(run, chosen.samples[run], turn);
  copyText("the link", address, button);
}

function factsOf(entry) {
  const facts = [`${Math.floor(100 * entry.rate)} % of hidden tests passed`];
  if (entry.tokens !== undefined) facts.push(count(entry.tokens, "token"));
  if (entry.finish === "length") facts.push("cut off at the token limit");
  else if (entry.finish && entry.finish !== "stop") facts.push(`finish: ${entry.finish}`);
  if (typeof entry.cost === "number") facts.push(`$${entry.cost.toFixed(4)}`);
  if (entry.seconds !== undefined) facts.push(`public tests ran ${entry.seconds} s`);
  return facts.join(" \u00b7 ");
}

function drawTests(suite, entry, details, run) {
  const row = make("div", { class: "tests", role: "group", "aria-label": `${suite} tests` }, make("span", {}, suite));
  [...entry[suite]].forEach((digit, test) => {
    const kind = index.kinds[Number(digit)];
    const words = kind.replaceAll("_", " ");
    const button = make("button", {
      type: "button", class: kind === "passed" ? "passed" : "failed", title: words, "aria-expanded": "false",
      "aria-label": `${suite} test ${test}: ${words}`,
    }, `${test} ${SIGNS[kind] ?? "!"}`);
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-expanded") === "true";
      for (const other of row.parentNode.querySelectorAll(".tests button")) {
        other.setAttribute("aria-expanded", "false");
      }
      button.setAttribute("aria-expanded", String(!open));
      details.replaceChildren(...(open ? [] : [drawTest(suite, test, words, entry, pieces[run])]));
    });
    row.append(button);
  });
  return row;
}

function drawTest(suite, test, words, entry, piece) {
  const [input, output] = piece[suite][test] ?? ["", ""];
  const time = suite === "public" && entry.cpu ? `, ${entry.cpu[test]} s of CPU time` : "";
  const message = suite === "public" ? piece.texts[entry.messages[test]] : "";
  return make("div", { class: "test" },
    make("p", {}, `${suite} test ${test}: ${words}${time}`),
    make("p", {}, "Input"), textBlock("the input", input),
    make("p", {}, suite === "public" && piece.impossible.includes(test)
      ? "Expected output, made wrong on purpose" : "Expected output"), textBlock("the expected output", output),
    ...(message ? [make("p", {}, "Feedback of the judge"), textBlock("the judge's feedback", message)] : []));
}

function drawBody(piece, entries, turn) {
  const { program, response, thinking } = entries[turn];
  const note = (text) => [make("p", { class: "facts" }, text)];
  if (chosen.view === "responses") {
    const [before, answer] = [piece.texts[thinking], piece.texts[response]];
    return [
      before === undefined ? null
        : foldedText(`Thinking (${count(before.length, "character")})`, "the thinking", before),
      textBlock("the response", answer),
    ].filter(Boolean);
  }
  if (program === null) return note("There is no program in this response.");
  const text = piece.texts[program];
  const before = turn > 0 ? entries[turn - 1].program : null;
  if (chosen.view === "changes" && before === program) return note(`The same program as at turn ${turn - 1}.`);
  const code = chosen.view === "programs" || before === null ? drawProgram(text) : drawChanges(piece.texts[before], text);
  return [make("div", { class: "block" }, copyButton("the program", text), code)];
}
