// The rollouts of a step: prompts, their samples sorted by reward, and of each sample its responses, parts and feedback.

const mean = (numbers) => numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
const signed = (value) => `${value < 0 ? "\u2212" : "+"}${Math.abs(value).toFixed(2)}`;
const reward = (value) => value.toFixed(3).replace("-", "\u2212");

// A box that is filled when it is opened first.
function lazyDetails(attributes, summary, fill) {
  return make("details", { ...attributes, ontoggle: ({ target }) => {
    if (target.open && target.childElementCount === 1) target.append(...fill());
  } }, make("summary", {}, ...summary));
}

function drawGroups(groups, order) {
  const sorted = groups.map(({ samples, ...group }) => (
    { ...group, samples: [...samples].sort((one, other) => order * (one.reward - other.reward)), mean: mean(samples.map((sample) => sample.reward)) }));
  sorted.sort((one, other) => order * (one.mean - other.mean));
  byId("groups").replaceChildren(...sorted.map((group) => {
    const rewards = group.samples.map((sample) => sample.reward);
    const [low, high] = [Math.min(...rewards), Math.max(...rewards)];
    const solved = group.samples.filter(({ parts }) => parts.acc === 1).length;
    return lazyDetails({ class: "group" }, [make("b", {}, `problem ${group.problem || "without id"}`),
      make("span", {}, `mean reward ${reward(group.mean)}`),
      make("span", {}, low === high ? "all equal: GRPO learns nothing" : `${reward(low)} to ${reward(high)}`),
      make("span", solved > 0 ? { class: "solved-sample" } : {}, `${solved} of ${group.samples.length} solved`)],
    () => [foldedText("Prompt", "the prompt", group.prompt), ...group.samples.map(drawSample)]);
  }));
}

function drawSample(sample) {
  const { parts, rows } = sample;
  const advantages = rows.map((row) => row.advantage).filter((value) => value !== null);
  const turns = parts.turns > 1 ? `${parts.turns} turns` : "";
  const facts = [`reward ${reward(sample.reward)}`, advantages.length > 0 ? `advantage ${signed(mean(advantages))}` : "",
    parts.acc === 1 ? "" : verdictsOf(parts), turns, count(rows.reduce((sum, row) => sum + row.tokens, 0), "token")];
  return lazyDetails({ class: "sample" }, [parts.acc === 1 ? make("span", { class: "solved-sample" }, "\u2713 solved") : null,
    ...facts.filter(Boolean).map((fact) => make("span", {}, fact))].filter(Boolean), () => [
    make("p", { class: "parts" }, Object.entries(parts).filter(([name]) => !/seconds|^verdict_/.test(name))
      .map(([name, value]) => `${name} ${shortNumber(value)}`).join(", ")),
    ...rows.flatMap((row, turn) => [
      row.prompt === null ? null : foldedText(`Prompt of row ${turn + 1}`, "the prompt", row.prompt),
      rows.length > 1 && row.advantage !== null ? make("p", { class: "parts" }, `row ${turn + 1}: advantage ${signed(row.advantage)}`) : null,
      textBlock("the response", row.text)]).filter(Boolean),
    ...(sample.feedback ? [make("p", { class: "parts" }, "Feedback of the judge on the first test that failed"),
      textBlock("the feedback", sample.feedback)] : []),
  ]);
}

// The verdicts of the tests in words: "33 % passed, 67 % wrong answer".
function verdictsOf(parts) {
  const shares = Object.entries(parts).filter(([name]) => name.startsWith("verdict_"));
  if (shares.length === 0) return "no program";
  return shares.map(([name, share]) => `${Math.round(100 * share)} % ${name.slice(8).replaceAll("_", " ")}`).join(", ");
}
