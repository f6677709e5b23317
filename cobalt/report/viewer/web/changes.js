// What changed between two programs: by line, and by word within lines that replace each other. jsdiff compares.

const CONTEXT = 3; // unchanged lines shown around a change
const LINES_TIMEOUT = 1000; // milliseconds; a comparison that takes longer shows all lines as replaced
const WORDS_TIMEOUT = 50;

// The lines of both as [sign, line], sign " ", "-" or "+".
function compare(before, after) {
  const parts = Diff.diffArrays(before, after, { timeout: LINES_TIMEOUT })
    ?? [{ removed: true, value: before }, { added: true, value: after }];
  return parts.flatMap(({ added, removed, value }) => value.map((line) => [added ? "+" : removed ? "-" : " ", line]));
}

// The changed parts of a line and of the line that replaces it, as marks of `drawLine`; none if little is common.
function wordMarks(before, after) {
  const parts = Diff.diffWordsWithSpace(before, after, { timeout: WORDS_TIMEOUT });
  if (!parts || !parts.some(({ added, removed, value }) => !added && !removed && /\w/.test(value))) return [[], []];
  const marks = [[], []];
  const offsets = [0, 0];
  for (const { added, removed, value } of parts) {
    if (removed) marks[0].push([offsets[0], offsets[0] + value.length, "b"]);
    if (added) marks[1].push([offsets[1], offsets[1] + value.length, "b"]);
    if (!added) offsets[0] += value.length;
    if (!removed) offsets[1] += value.length;
  }
  return marks;
}

// The marks of each line: in a run of removed lines and the added lines after it, the first belongs to the first.
function marksOf(lines) {
  const marks = lines.map(() => []);
  for (let start = 0; start < lines.length; start++) {
    if (lines[start][0] !== "-") continue;
    let middle = start;
    while (lines[middle]?.[0] === "-") middle++;
    let end = middle;
    while (lines[end]?.[0] === "+") end++;
    for (let pair = 0; pair < Math.min(middle - start, end - middle); pair++) {
      [marks[start + pair], marks[middle + pair]] = wordMarks(lines[start + pair][1], lines[middle + pair][1]);
    }
    start = Math.max(start, end - 1);
  }
  return marks;
}

function drawChanges(before, after) {
  const lines = compare(before.split("\n"), after.split("\n"));
  const [old, now] = [tokensByLine(before), tokensByLine(after)];
  const marks = marksOf(lines);
  const near = lines.map(() => false);
  lines.forEach(([sign], lineIndex) => {
    if (sign !== " ") near.fill(true, Math.max(0, lineIndex - CONTEXT), lineIndex + CONTEXT + 1);
  });
  const block = make("div", { class: "diff code" });
  let [oldNumber, newNumber, skipped] = [0, 0, 0];
  const flush = () => {
    if (skipped > 0) block.append(make("span", { class: "skipped" }, `${count(skipped, "line")} unchanged`));
    skipped = 0;
  };
  lines.forEach(([sign], lineIndex) => {
    if (sign !== "+") oldNumber++;
    if (sign !== "-") newNumber++;
    if (!near[lineIndex]) {
      skipped++;
      return;
    }
    flush();
    const tokens = sign === "-" ? old[oldNumber - 1] : now[newNumber - 1];
    const searchMarks = hitMarks(tokens);
    const numbers = { "data-number": sign === "+" ? "" : oldNumber, "data-new": sign === "-" ? "" : newNumber };
    block.append(make({ "-": "del", "+": "ins", " ": "span" }[sign], { class: "line", ...numbers }, `${sign} `,
      ...drawLine(tokens, searchMarks.length > 0 ? searchMarks : marks[lineIndex])));
  });
  flush();
  return block;
}
