// Curves of a run over its steps, as SVG. All figures show the values of one step: of the last, or of the one that the
// pointer is at. Dashes, names and numbers say what colours say.

const SIZE = { width: 420, height: 196, left: 52, right: 10, top: 8, bottom: 162 };

const shortNumber = (value) => (value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(1)
  : value.toLocaleString("en", { maximumSignificantDigits: Math.abs(value) < 1000 ? 3 : 6 }));

function drawCurves(figures) {
  const steps = [...new Set(figures.flatMap(({ curves }) => curves.flatMap(({ points }) => points.map(([step]) => step))))];
  steps.sort((one, other) => one - other);
  const showers = [];
  const showAll = (step) => showers.forEach((show) => show(step));
  byId("figures").replaceChildren(...figures.map((figure) => drawFigure(figure, steps, showers, showAll)));
  showAll(null);
}

// The values of all curves, as a range with whole numbers of nice steps: [lowest, highest, step]. It has 0 unless the
// values are far from it.
function rangeOf(curves, stacked) {
  const values = curves.flat().map(([, value]) => value);
  let [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  if (low > 0 && (stacked || low < 2 * (high - low))) low = 0;
  if (high < 0 && -high < 2 * (high - low)) high = 0;
  if (low === high) [low, high] = [Math.min(0, low), Math.max(0, high) || (low < 0 ? 0 : 1)];
  const step = niceSize((high - low) / 4);
  return [Math.floor(low / step + 1e-3) * step, Math.ceil(high / step - 1e-3) * step, step];
}

// Curves on top of each other: the points that are drawn, [step, sum up to this curve, sum below it].
function stack(curves) {
  const sums = new Map();
  return curves.map((curve) => ({ ...curve, drawn: curve.points.map(([step, value]) => {
    const below = sums.get(step) ?? 0;
    sums.set(step, below + value);
    return [step, below + value, below];
  }) }));
}

function drawFigure({ title, unit, stacked, curves: series }, steps, showers, showAll) {
  const curves = stacked ? stack(series) : series.map((curve) => ({ ...curve, drawn: curve.points }));
  const { width, height, left, right, top, bottom } = SIZE;
  const [first, last] = [steps[0], steps.at(-1)];
  const [low, high, tick] = rangeOf(curves.map(({ drawn }) => drawn), stacked);
  const x = (step) => left + ((step - first + 0.5) / (last - first + 1)) * (width - left - right);
  const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
  const nodes = [];
  for (let line = 0; line <= Math.round((high - low) / tick); line++) {
    const value = low + line * tick;
    nodes.push(makeSvg("path", { d: `M${left} ${y(value)}H${width - right}`, class: "grid-line" }),
      label(left - 5, y(value) + 4, shortNumber(Math.abs(value) < tick / 1e6 ? 0 : value), "end"));
  }
  const every = niceSize(Math.max(1, (last - first) / 6));
  for (let step = Math.ceil(first / every) * every; step <= last; step += every) {
    nodes.push(label(x(step), bottom + 15, step.toLocaleString("en")));
  }
  nodes.push(label((left + width - right) / 2, height - 5, "step"));
  const half = Math.max(0.4, ((last - first < 60 ? 0.45 : 0.5) * (width - left - right)) / (last - first + 1));
  const bar = ([step, value, below]) => `M${(x(step) - half).toFixed(1)} ${y(below).toFixed(1)}V${y(value).toFixed(1)}h${2 * half}V${y(below).toFixed(1)}Z`;
  const rows = curves.map(({ name, points, drawn }, slot) => {
    nodes.push(makeSvg("path", stacked ? { class: `area series-${slot}`, d: drawn.map(bar).join("") } : { class: `line series-${slot}${points.length > 150 ? " dense" : ""}`,
      d: `M${drawn.map(([step, value]) => `${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}` }));
    if (!stacked && points.length <= 40) {
      for (const [step, value] of points) nodes.push(makeSvg("circle", { class: `dot series-${slot}`, cx: x(step), cy: y(value), r: 2.4 }));
    }
    const number = make("b");
    const swatch = makeSvg("svg", { viewBox: "0 0 18 8", "aria-hidden": "true" }, stacked
      ? makeSvg("rect", { width: 18, height: 8, class: `area series-${slot}` })
      : makeSvg("path", { d: "M0 4H18", class: `line series-${slot}` }));
    return { points: new Map(points), end: points.at(-1), number, row: make("li", {}, swatch, ` ${name} `, number) };
  });
  const cursor = makeSvg("path", { class: "cursor", visibility: "hidden" });
  const stepRow = make("li");
  // The values at a step; null: each curve's last one.
  showers.push((step) => {
    cursor.setAttribute("visibility", step === null ? "hidden" : "visible");
    if (step !== null) cursor.setAttribute("d", `M${x(step)} ${top}V${bottom}`);
    stepRow.textContent = step === null ? "last" : `step ${step.toLocaleString("en")}`;
    for (const { points, end, number } of rows) {
      const value = step === null ? end[1] : points.get(step);
      number.textContent = value === undefined ? "-" : shortNumber(value);
    }
  });
  const words = curves.map(({ name, points }) => `${name}: ${shortNumber(points[0][1])} at step ${points[0][0]},`
    + ` ${shortNumber(points.at(-1)[1])} at step ${points.at(-1)[0]}`).join("; ");
  const svg = makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}, ${unit}. ${words}`,
    onpointermove: (event) => {
      const box = svg.getBoundingClientRect();
      const pointerStep = first - 0.5 + ((((event.clientX - box.left) / box.width) * width - left) / (width - left - right)) * (last - first + 1);
      showAll(steps.reduce((best, step) => (Math.abs(step - pointerStep) < Math.abs(best - pointerStep) ? step : best)));
    },
    onpointerleave: () => showAll(null) }, ...nodes, cursor);
  return make("figure", {}, make("figcaption", {}, title, make("span", { class: "unit" }, `, ${unit}`)), svg,
    make("ul", { class: "values" }, stepRow, ...rows.map(({ row }) => row)));
}
