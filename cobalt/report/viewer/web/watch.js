// Reads the state of the run, from the page or from its server every few seconds, and shows what is new.

const REFRESH = 5000; // milliseconds
const served = byId("index") === null;
let [state, text, shownStep, groups] = [null, "", null, []];

async function read(name) {
  if (!served) return decode(name);
  const response = await fetch(name, { cache: "no-store" });
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

function ago(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

function drawAge() {
  if (!state.changed) return;
  const at = new Date(1000 * state.changed);
  byId("age").textContent = served ? `last written ${ago(Date.now() / 1000 - state.changed)} ago` : `last written ${at.toLocaleString()}`;
}

function drawState() {
  const status = state.finished ? "finished" : state.failure ? `stopped: ${state.failure}` : state.phase || "no phase yet";
  byId("facts").textContent = [`${state.kind} training`, state.made_of, status].filter(Boolean).join(" \u00b7 ");
  byId("curves-note").textContent = state.figures.length === 0 ? "No step is finished yet." : "";
  drawCurves(state.figures);
  const none = state.kind === "offline" ? "Offline training has no rollouts: nothing is sampled."
    : "No rollouts were recorded (--rollout_every of cobalt train).";
  byId("rollouts-note").textContent = state.recorded.length === 0 ? none
    : "Prompts of the step with all their samples; the advantage is the mean over the tokens that the policy wrote.";
  byId("controls").hidden = state.recorded.length === 0;
}

// Show the rollouts of a step; without one, of the last. Who looks at an earlier one stays there.
async function drawRollouts(chosen) {
  const followed = shownStep === null || shownStep === Number(byId("step").options[0]?.value) || !state.recorded.includes(shownStep);
  const step = chosen ?? (followed ? state.recorded.at(-1) : shownStep);
  byId("step").replaceChildren(...[...state.recorded].reverse().map((value) => make("option", { value }, String(value))));
  if (step === undefined) {
    shownStep = null;
    return byId("groups").replaceChildren();
  }
  byId("step").value = String(step);
  if (step === shownStep) return undefined;
  groups = await read(`rollouts-${step}`);
  shownStep = step;
  return drawGroups(groups, Number(byId("order").value));
}

async function refresh(chosen) {
  try {
    const now = await read("index");
    if (JSON.stringify(now) !== text) {
      [state, text] = [now, JSON.stringify(now)];
      drawState();
    }
    drawAge();
    await drawRollouts(chosen);
    byId("alert").hidden = true;
  } catch (error) {
    alertUser(served ? `The page is not up to date: ${error.message}` : `The page was cut short or changed (${error.message}): make it again.`);
  }
}

byId("step").addEventListener("change", (event) => refresh(Number(event.target.value)));
byId("order").addEventListener("change", (event) => drawGroups(groups, Number(event.target.value)));
refresh().then(() => {
  document.documentElement.dataset.ready = "yes";
  if (served) setInterval(refresh, REFRESH);
});
