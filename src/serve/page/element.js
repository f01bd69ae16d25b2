"use strict";
/* Elements. Texts become text nodes, never HTML. */

const at = (id) => document.getElementById(id);

/* make("p", { class: "note", onclick: f }, "text", element, null) */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

/* A small button with an icon; its label is read aloud and shown as a tip. */
function tool(name, label, onclick, more = {}) {
  return make("button", { type: "button", class: "tool", "aria-label": label, title: label, onclick, ...more }, icon(name));
}

/* Makes `old` look like `fresh` with as few changes as possible: nodes that stay keep their selection and scroll position.
   Attributes and children are those of `fresh` afterwards; `fresh` is used up. */
function morph(old, fresh) {
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const wanted = [...fresh.childNodes];
  wanted.forEach((node, i) => {
    const now = old.childNodes[i];
    if (!now) old.append(node);
    else if (now.nodeType === Node.TEXT_NODE && node.nodeType === Node.TEXT_NODE) {
      if (node.data.startsWith(now.data)) now.appendData(node.data.slice(now.data.length));
      else now.data = node.data;
    } else if (now.nodeType === Node.ELEMENT_NODE && now.nodeName === node.nodeName) morph(now, node);
    else now.replaceWith(node);
  });
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
}

const grouped = (number) => Number(number).toLocaleString("en-US");

/* A sentence for screen readers. */
function announce(text) {
  at("announce").textContent = text;
}

/* A sentence at the bottom of the page for some seconds, with one action. */
let toastTimer = 0;
function toast(text, label, action) {
  clearTimeout(toastTimer);
  const close = () => { at("toast").hidden = true; };
  at("toast").replaceChildren(make("span", {}, text),
    label ? make("button", { type: "button", onclick: () => { close(); action(); } }, label) : null ?? "");
  at("toast").hidden = false;
  toastTimer = setTimeout(close, 10000);
}

async function copyText(text, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text); // absent without TLS on another machine's address
  } catch {
    const area = make("textarea", { class: "offscreen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.classList.toggle("copied", done);
  announce(done ? "Copied" : "The browser does not allow copying");
  setTimeout(() => button.classList.remove("copied"), 1500);
}
