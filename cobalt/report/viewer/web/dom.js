"use strict";
// Elements. Every text of a run becomes a text node or an attribute of a fixed name, never markup.

const byId = (id) => document.getElementById(id);

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

// An element with attributes and children; strings become text nodes, and an attribute `onX` listens to the event X.
function make(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

function makeSvg(tag, attributes = {}, ...children) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function alertUser(text) {
  byId("alert").textContent = text;
  byId("alert").hidden = false;
}

// Tell those who listen to the page what a key or a button did.
function announce(text) {
  byId("status").textContent = text;
}

// A button that copies the text exactly; `name` says what the text is.
function copyButton(name, text) {
  return make("button", {
    type: "button", class: "copy", "aria-label": `Copy ${name}`,
    onclick: (event) => copyText(name, text, event.currentTarget),
  }, "Copy");
}

async function copyText(name, text, button) {
  try {
    await navigator.clipboard.writeText(text);
    announce(`Copied ${name}`);
    if (button) button.textContent = "Copied";
  } catch {
    announce("The browser does not let this page copy: select the text and copy it by hand");
    if (button) button.textContent = "Not copied";
  }
}

// A text as it is, with a button that copies it.
function textBlock(name, text) {
  return make("div", { class: "block" }, copyButton(name, text), make("pre", {}, text));
}

function foldedText(title, name, text, open = false) {
  return make("details", { open }, make("summary", {}, title), textBlock(name, text));
}

const count = (number, one, several = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : several}`;

function label(x, y, text, anchor = "middle") {
  return makeSvg("text", { x, y, "text-anchor": anchor }, text);
}

// The next number of 1, 2, 5, 10, 20 and so on, or of 0.5, 0.2, 0.1 and so on.
function niceSize(size) {
  const unit = 10 ** Math.floor(Math.log10(size));
  return [1, 2, 5, 10].map((factor) => factor * unit).find((nice) => nice >= size);
}
