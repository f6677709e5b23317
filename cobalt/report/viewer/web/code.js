// Programs with colours and line numbers. highlight.js splits a program into tokens; it makes no markup here: its
// emitter is the class below, and tokens become text nodes.

const MAX_HIGHLIGHTED = 40000; // characters; longer programs are shown without colours
// Scopes of highlight.js's Python grammar by class of the style sheet.
const SCOPES = new Map(Object.entries({
  keyword: "keyword", literal: "keyword", built_in: "name", title: "name", type: "name", meta: "name", number: "number",
  string: "string", comment: "comment",
}));

// Collects [text, class] instead of markup; the methods are those that highlight.js calls.
class Tokens {
  constructor() {
    this.tokens = [];
    this.scopes = [];
  }

  addText(text) {
    const scope = this.scopes.at(-1) ?? "";
    if (text !== "") this.tokens.push([text, SCOPES.get(scope.split(".")[0])]);
  }

  openNode(scope) {
    this.scopes.push(scope);
  }

  closeNode() {
    this.scopes.pop();
  }

  startScope(scope) {
    this.openNode(scope);
  }

  endScope() {
    this.closeNode();
  }

  __addSublanguage(emitter) {
    this.tokens.push(...emitter.tokens);
  }

  finalize() {}

  toHTML() {
    return "";
  }
}

hljs.configure({ __emitter: Tokens });

// The program's lines, each a list of [text, class or undefined].
function tokensByLine(program) {
  let tokens = [[program, undefined]];
  if (program.length <= MAX_HIGHLIGHTED) {
    const highlighted = hljs.highlight(program, { language: "python", ignoreIllegals: true })._emitter.tokens;
    if (highlighted.map(([text]) => text).join("") === program) tokens = highlighted;
  }
  const lines = [[]];
  for (const [text, name] of tokens) {
    text.split("\n").forEach((part, lineIndex) => {
      if (lineIndex > 0) lines.push([]);
      if (part !== "") lines.at(-1).push([part, name]);
    });
  }
  return lines;
}

// The nodes of one line. `marks` are [start, end, tag] in order, without overlap; such a part becomes an element.
function drawLine(tokens, marks = []) {
  const nodes = [];
  const queue = [...marks];
  let offset = 0;
  let open = null;
  for (const [text, name] of tokens) {
    let remaining = text;
    while (remaining !== "") {
      while (queue.length > 0 && queue[0][1] <= offset) {
        queue.shift();
        open = null;
      }
      const [start, end, tag] = queue[0] ?? [Infinity, Infinity, ""];
      const within = offset >= start;
      const part = remaining.slice(0, (within ? end : start) - offset);
      const node = name ? make("span", { class: `code-${name}` }, part) : part;
      if (within) {
        if (open === null) nodes.push(open = make(tag));
        open.append(node);
      } else nodes.push(node);
      offset += part.length;
      remaining = remaining.slice(part.length);
    }
  }
  return nodes;
}

// Where a line has the text that is searched for inside programs.
function hitMarks(tokens) {
  if (filters.inside === "") return [];
  const line = tokens.map(([text]) => text).join("");
  return [...line.matchAll(patternOf(filters.inside, "gi"))].map((hit) => (
    [hit.index, hit.index + hit[0].length, "mark"]));
}

function drawProgram(program) {
  return make("pre", { class: "code" }, ...tokensByLine(program).map((tokens, lineIndex) => (
    make("span", { class: "line", "data-number": lineIndex + 1 }, ...drawLine(tokens, hitMarks(tokens))))));
}
