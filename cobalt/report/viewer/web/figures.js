// Three plots of the trajectories that match the filters, as SVG: Pass@1 by turn, verdicts, tokens. The second run has
// dashes, square marks and hatched bars, so that colours are not needed.

const WIDTH = 320;
const HEIGHT = 190;
const LEFT = 34;
const BOTTOM = 160;
const TOP = 12;
const BINS = 12;

function drawFigures(problems) {
  const trajectories = problems.reduce((sum, [, samples]) => sum + samples.flat().length, 0);
  byId("figures-title").textContent = "Figures of the "
    + `${count(trajectories, "trajectory", "trajectories")} that match`;
  const runs = index.runs.map((_, run) => run).filter((run) => filters.run < 0 || filters.run === run);
  const figures = trajectories === 0 ? []
    : [drawKey(runs), drawCurve(problems, runs), drawVerdicts(problems, runs), drawTokens(problems, runs)];
  byId("figures").replaceChildren(...figures.filter((figure) => figure !== null));
}

function drawKey(runs) {
  if (index.runs.length === 1) return null;
  return make("p", { class: "key" }, ...runs.flatMap((run) => [
    makeSvg("svg", { viewBox: "0 0 40 12", class: "swatch", "aria-hidden": "true" }, hatching(`key-${run}`),
      makeSvg("rect", { x: 0, y: 1, width: 14, height: 10, class: `bar run-${run}`, ...fillOf(run, `key-${run}`) }),
      makeSvg("path", { d: "M18 6H40", class: `curve run-${run}` }), mark(29, 6, run)),
    make("span", {}, index.runs[run])]));
}

// A plot with a heading, a note, and a sentence with its values for those who do not see it.
function plot(name, title, note, description, ...children) {
  return make("figure", { id: `figure-${name}` }, make("figcaption", {}, title),
    makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}. ${description}` },
      hatching(name), ...children), make("p", { class: "note" }, note));
}

function hatching(name) {
  return makeSvg("defs", {}, makeSvg("pattern",
    { id: `hatch-${name}`, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    makeSvg("rect", { width: 5, height: 5, class: "hatch-ground" }), makeSvg("rect", { width: 2.5, height: 5, class: "hatch" })));
}

const fillOf = (run, name) => (run === 0 ? {} : { fill: `url(#hatch-${name})` });

function mark(x, y, run) {
  return run === 0 ? makeSvg("circle", { cx: x, cy: y, r: 3.2, class: "mark run-0" })
    : makeSvg("rect", { x: x - 3, y: y - 3, width: 6, height: 6, class: "mark run-1" });
}

// A scale in per cent for shares up to `most`: its largest share, and its lines with numbers.
function scale(most) {
  const step = niceSize(Math.max(1, 20 * most));
  const lines = Math.max(1, Math.ceil((100 * most) / step));
  const nodes = [...Array(lines + 1).keys()].flatMap((line) => {
    const y = BOTTOM - (line / lines) * (BOTTOM - TOP);
    return [makeSvg("path", { d: `M${LEFT} ${y}H${WIDTH - 4}`, class: "grid-line" }),
      label(LEFT - 4, y + 3.5, String(line * step), "end")];
  });
  return [(lines * step) / 100, nodes];
}

// Pass@1 at a turn: the mean over problems of the share of their samples that are solved; null without such a turn.
function passAt(problems, run, turn) {
  const shares = [];
  for (const [position, samples] of problems) {
    const levels = samples[run].map((sample) => index.problems[position].runs[run].levels[sample][turn]).filter(Boolean);
    if (levels.length > 0) shares.push(levels.filter((level) => level === "S").length / levels.length);
  }
  return shares.length === 0 ? null : shares.reduce((sum, share) => sum + share, 0) / shares.length;
}

function drawCurve(problems, runs) {
  const range = [...Array(filters.to - filters.from + 1).keys()].map((step) => filters.from + step);
  const curves = runs.map((run) => range.map((turn) => passAt(problems, run, turn)));
  const [top, lines] = scale(Math.max(...curves.flat()));
  const x = (step) => (range.length === 1 ? (LEFT + WIDTH) / 2 : LEFT + 10 + (step * (WIDTH - LEFT - 24)) / (range.length - 1));
  const y = (share) => BOTTOM - (share / top) * (BOTTOM - TOP);
  const children = [...lines, ...range.map((turn, step) => label(x(step), BOTTOM + 14, String(turn))), label((LEFT + WIDTH) / 2, HEIGHT - 3, "turn")];
  const words = [];
  curves.forEach((curve, slot) => {
    const run = runs[slot];
    const points = curve.flatMap((share, step) => (share === null ? [] : [[x(step), y(share), share, step]]));
    if (points.length === 0) return;
    children.push(makeSvg("path", { class: `curve run-${run}`, fill: "none",
      d: `M${points.map(([px, py]) => `${px.toFixed(1)} ${py.toFixed(1)}`).join("L")}` }));
    for (const [px, py, share, step] of points) {
      const point = mark(px, py, run);
      point.append(makeSvg("title", {}, `${index.runs[run]}, turn ${range[step]}: ${percent(share)}`));
      children.push(point);
    }
    words.push(`${index.runs[run]}: ${points.map(([, , share]) => percent(share)).join(", ")}`);
  });
  return plot("curve", "Pass@1 on hidden tests by turn, %", "The mean over problems.", words.join("; "), ...children);
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

// Numbers of the turns in range of the trajectories that match, one call for each.
function eachTurn(problems, run, visit) {
  for (const [position, samples] of problems) {
    const figures = index.problems[position].runs[run];
    for (const sample of samples[run]) {
      const last = Math.min(filters.to, figures.levels[sample].length - 1);
      for (let turn = filters.from; turn <= last; turn++) visit(figures, sample, turn);
    }
  }
}

function drawVerdicts(problems, runs) {
  const totals = runs.map((run) => {
    const programs = index.kinds.map(() => 0);
    let all = 0;
    eachTurn(problems, run, (figures, sample, turn) => {
      const kinds = figures.kinds[sample][turn];
      all++;
      if (kinds === 1) programs[0]++; // nothing but passed tests
      for (let kind = 1; kind < programs.length; kind++) if (kinds & (1 << kind)) programs[kind]++;
    });
    return programs.map((number) => (all === 0 ? 0 : number / all));
  });
  const rows = index.kinds.map((kind, kindIndex) => [kindIndex === 0 ? "all tests passed" : kind.replaceAll("_", " "),
    totals.map((shares) => shares[kindIndex])]).filter(([, shares]) => shares.some((share) => share > 0));
  const step = Math.min(34, (HEIGHT - 8) / Math.max(1, rows.length));
  const children = [];
  rows.forEach(([name, shares], row) => {
    children.push(label(110, 4 + (row + 0.5) * step + 3.5, name, "end"));
    const thick = (step - 4) / shares.length;
    shares.forEach((share, slot) => {
      const y = 6 + row * step + slot * thick;
      const bar = makeSvg("rect", { x: 116, y, width: Math.max(1, share * 150), height: Math.max(2, thick - 1),
        class: `bar run-${runs[slot]}`, ...fillOf(runs[slot], "verdicts") },
      makeSvg("title", {}, `${index.runs[runs[slot]]}, ${name}: ${percent(share)}`));
      children.push(bar, makeSvg("text", { x: 120 + share * 150, y: y + thick / 2 + 3, class: "small" }, percent(share)));
    });
  });
  const words = rows.map(([name, shares]) => `${name}: ${shares.map(percent).join(" and ")}`).join("; ");
  return plot("verdicts", "Verdicts, % of programs", "A program counts once for each kind among its tests.", words, ...children);
}

function drawTokens(problems, runs) {
  const counts = runs.map((run) => {
    const own = [];
    eachTurn(problems, run, (figures, sample, turn) => {
      const tokens = figures.tokens?.[sample][turn] ?? null;
      if (tokens !== null) own.push(tokens);
    });
    return own.sort((one, other) => one - other);
  });
  if (counts.every((own) => own.length === 0)) return null;
  const most = counts.reduce((top, own) => Math.max(top, own.at(-1) ?? 0), 1);
  const size = niceSize(Math.max(1, most / BINS));
  const bins = Math.floor(most / size) + 1;
  const shares = counts.map((own) => {
    const bars = Array(bins).fill(0);
    for (const tokens of own) bars[Math.floor(tokens / size)] += 1 / own.length;
    return bars;
  });
  const [top, children] = scale(Math.max(...shares.flat()));
  const width = (WIDTH - LEFT - 6) / bins;
  shares.forEach((bars, slot) => bars.forEach((share, bin) => {
    const height = (share / top) * (BOTTOM - TOP);
    const thick = (width - 2) / shares.length;
    if (share > 0) children.push(makeSvg("rect", { x: LEFT + bin * width + 1 + slot * thick, y: BOTTOM - height, width: thick, height,
      class: `bar run-${runs[slot]}`, ...fillOf(runs[slot], "tokens") },
    makeSvg("title", {}, `${index.runs[runs[slot]]}, ${bin * size} to ${(bin + 1) * size - 1} tokens: ${percent(share)}`)));
  }));
  const every = Math.ceil(bins / 6);
  for (let bin = 0; bin <= bins; bin += every) {
    children.push(label(LEFT + bin * width, BOTTOM + 14, (bin * size).toLocaleString("en"), bin === bins ? "end" : "middle"));
  }
  const words = counts.map((own, slot) => (own.length === 0 ? "" : `${index.runs.length > 1 ? `${index.runs[runs[slot]]}: ` : ""}`
    + `median ${own[Math.floor(own.length / 2)].toLocaleString("en")}, most ${own.at(-1).toLocaleString("en")}`)).filter(Boolean).join("; ");
  return plot("tokens", "Generated tokens, % of responses", `${words}.`, words, ...children);
}
