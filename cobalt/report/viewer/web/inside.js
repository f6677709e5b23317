// The search inside programs. The pieces are decoded one after another, so that the page stays usable, and a search
// that was cancelled leaves the list as it was.

let searching = null; // the running search

async function searchInside(text) {
  searching = null;
  if (text === "") {
    hits = null;
    filters.inside = "";
    showSearch("");
    refresh();
    if (pieces) drawTrajectories(); // without marks
    return;
  }
  const search = {};
  searching = search;
  const newHits = new Map();
  const all = index.runs.length * index.problems.length;
  const pattern = patternOf(text);
  byId("inside-progress").max = all;
  for (let done = 0; done < all; done++) {
    const [run, position] = [Math.floor(done / index.problems.length), done % index.problems.length];
    showSearch(`${done} of ${all} pieces read, programs found in ${count(newHits.size, "problem")}`, done);
    let piece;
    try {
      piece = await decode(`piece-${run}-${position}`);
    } catch (error) {
      if (searching !== search) return;
      searching = null;
      showSearch("The search stopped.");
      alertDamage(position, error);
      return;
    }
    if (searching !== search) return; // cancelled, or another search began
    for (const hit of hitsOf(piece, run, pattern)) {
      if (!newHits.has(position)) newHits.set(position, new Set());
      newHits.get(position).add(hit);
    }
  }
  searching = null;
  hits = newHits;
  filters.inside = text;
  showSearch(`Programs with this text in ${count(newHits.size, "problem")}`);
  refresh();
  if (pieces) drawTrajectories();
}

// What finds the text as it is, in capitals or not.
function patternOf(text, flags = "i") {
  return new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), flags);
}

// "run,sample,turn" of the programs of a piece that have the text.
function hitsOf(piece, run, pattern) {
  const has = piece.texts.map((text) => pattern.test(text));
  return piece.samples.flatMap((entries, sample) => entries.flatMap(({ program }, turn) => (
    program !== null && has[program] ? [`${run},${sample},${turn}`] : [])));
}

function cancelSearch() {
  searching = null;
  byId("inside").value = filters.inside;
  showSearch("Cancelled.");
}

function showSearch(text, done) {
  byId("inside-progress").hidden = searching === null;
  byId("inside-button").textContent = searching === null ? "Search" : "Cancel";
  if (done !== undefined) byId("inside-progress").value = done;
  byId("inside-status").textContent = text;
}
