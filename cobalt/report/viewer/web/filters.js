// Which problems and trajectories the list shows, and in which order. A trajectory is a sample of a run. Everything
// looks at the turns from `filters.from` to `filters.to` only.

const OUTCOMES = [
  ["all", "any", () => true],
  ["solved", "solved at the last turn", (levels) => levels.endsWith("S")],
  ["unsolved", "not solved at the last turn", (levels) => !levels.endsWith("S")],
  ["repaired", "repaired (first wrong, last right)", (levels) => /^[^S].*S$/.test(levels)],
  ["regressed", "regressed (right, later wrong)", (levels) => /S[^S]/.test(levels)],
  ["hacked", "hacked (has a hacking event)", (levels, hacked) => hacked],
];
// Difficulties of data sets, easy first; others follow in alphabetical order.
const GRADES = ["easy", "introductory", "medium", "interview", "medium_hard", "hard", "competition", "very_hard"];
const collator = new Intl.Collator("en", { numeric: true });

function difficulties() {
  return [...new Set(index.problems.map((problem) => problem.difficulty))].filter(Boolean).sort(byDifficulty);
}

function byDifficulty(one, other) {
  const [a, b] = [one, other].map((text) => GRADES.indexOf(text.toLowerCase().replace(" ", "_")) + 1 || 99);
  return a - b || collator.compare(one, other);
}

const inRange = (turn) => filters.from <= turn && turn <= filters.to;
const rangeOf = (turns) => turns.slice(filters.from, filters.to + 1);

function matches(position, run, sample) {
  if (filters.run >= 0 && filters.run !== run) return false;
  const figures = index.problems[position].runs[run];
  const levels = rangeOf(figures.levels[sample]);
  if (levels === "") return false;
  const [, , test] = OUTCOMES.find(([name]) => name === filters.outcome);
  if (!test(levels, figures.hacked.some(([other, turn]) => other === sample && inRange(turn)))) return false;
  const kind = index.kinds.indexOf(filters.verdict);
  if (kind >= 0 && !rangeOf(figures.kinds[sample]).some((kinds) => kinds & (1 << kind))) return false;
  return hits === null || hitTurns(position, run, sample).length > 0;
}

// The turns in range whose programs have the text that is searched for.
function hitTurns(position, run, sample) {
  const turnsOf = index.problems[position].runs[run].levels[sample].length;
  return [...Array(turnsOf).keys()].filter((turn) => inRange(turn)
    && hits?.get(position)?.has(`${run},${sample},${turn}`));
}

// The samples of a problem that match, by run.
function matching(position) {
  return index.problems[position].runs.map(({ levels }, run) => (
    [...levels.keys()].filter((sample) => matches(position, run, sample))));
}

// The problems that the list shows, in order, as [position, samples that match by run].
function listed() {
  const words = filters.search.toLowerCase().split(/\s+/).filter(Boolean);
  const problems = [];
  index.problems.forEach((problem, position) => {
    if (filters.difficulty !== "any" && problem.difficulty !== filters.difficulty) return;
    const text = `${problem.id} ${problem.difficulty} ${problem.opening}`.toLowerCase();
    if (!words.every((word) => text.includes(word))) return;
    const samples = matching(position);
    if (samples.some((own) => own.length > 0)) problems.push([position, samples]);
  });
  const [, , compare] = sorts().find(([name]) => name === filters.sort);
  const sign = filters.descending ? -1 : 1;
  return problems.sort(([one], [other]) => (
    sign * compare(index.problems[one], index.problems[other]) || one - other));
}

// How many samples of a run solve the problem at the first (0) or last (-1) turn in range.
function solvedAt(figures, end) {
  return figures.levels.filter((levels) => rangeOf(levels).at(end) === "S").length;
}

// The share of samples that solve it, over the run that is filtered by or else all runs.
function shareAt(problem, end) {
  const runs = filters.run >= 0 ? [problem.runs[filters.run]] : problem.runs;
  return runs.reduce((sum, figures) => sum + solvedAt(figures, end) / figures.levels.length, 0) / runs.length;
}

function sorts() {
  const by = (value) => (one, other) => value(one) - value(other);
  const ahead = (problem) => {
    const [first, second] = problem.runs.map((figures) => solvedAt(figures, -1) / figures.levels.length);
    return second - first;
  };
  const all = [
    ["file", "order of the file", () => 0],
    ["id", "id", (one, other) => collator.compare(one.id, other.id)],
    ["difficulty", "difficulty", (one, other) => byDifficulty(one.difficulty, other.difficulty)],
    ["first", "pass rate at the first turn", by((problem) => shareAt(problem, 0))],
    ["last", "pass rate at the last turn", by((problem) => shareAt(problem, -1))],
    ["gain", "gain from first to last turn", by((problem) => shareAt(problem, -1) - shareAt(problem, 0))],
  ];
  if (index.runs.length > 1) {
    all.push(["ahead", `pass rate of ${index.runs[1]} minus ${index.runs[0]}`, by(ahead)]);
  }
  return all;
}
