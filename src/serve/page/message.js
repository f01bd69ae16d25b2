/* Messages as elements. A message's element is made once and updated in place; `act` has what its buttons do (chat.js). */

const drawn = new Map(); // id of a message: its element

/* "‹ 2/3 ›" between the branches that begin at a message. */
function branchSwitch(conversation, node) {
  const ids = siblings(conversation, node), i = ids.indexOf(node.id);
  if (ids.length < 2) return null;
  const go = (step) => () => act.switchTo(conversation.nodes[ids[i + step]], step);
  return make("span", { class: "switch", role: "group", "aria-label": `Branch ${i + 1} of ${ids.length}` },
    tool("left", "Previous branch", go(-1), { disabled: i === 0, "data-step": "-1" }), make("span", {}, `${i + 1}/${ids.length}`),
    tool("right", "Next branch", go(1), { disabled: i === ids.length - 1, "data-step": "1" }));
}

/* "41.3 tokens/s", ... below an answer. */
function statsOf(conversation, node) {
  const s = node.stats ?? {}, parts = [];
  const wait = s.first < 1 ? `${Math.round(s.first * 1000)} ms` : `${s.first?.toFixed(1)} s`;
  if (s.rate) parts.push([`${s.rate < 10 ? s.rate.toFixed(1) : grouped(Math.round(s.rate))} tokens/s`, `From the first token, which came after ${wait}, to the last`]);
  if (s.tokens) parts.push([`${s.about ? "about " : ""}${grouped(s.tokens)} token${s.tokens === 1 ? "" : "s"}`, "Length of the answer"]);
  if (s.prompt !== undefined) {
    parts.push([`${isFork(conversation, node) ? "forked: " : ""}${grouped(s.cached)} of ${grouped(s.prompt)} tokens cached`,
      "Tokens of the prompt whose state the server still had: they were not read again"]);
  }
  if (node.state === "stopped") parts.push(["stopped", "You stopped this answer"]);
  if (node.state === "cut") parts.push(["cut at the token limit", "Max tokens or the end of the model's context"]);
  return make("span", { class: "stats" }, ...parts.map(([text, title]) => make("span", { title }, text)));
}

function actionsOf(conversation, node) {
  if (node.state === "writing") return [];
  const copy = tool("copy", "Copy", (event) => copyText(splitThinking(node).content, event.currentTarget));
  if (node.role === "user") {
    return [copy, tool("edit", "Edit and send as a new branch", () => act.edit(node), { "data-act": "edit" }),
      tool("branch", "Answer this message again, as a new branch", () => act.answerAgain(node), { "data-act": "branch" })];
  }
  if (node.role === "tool") return [copy];
  return [copy, tool("again", "Answer again", () => act.regenerate(node), { "data-act": "again" }),
    tool("branch", "Go on from here in a new branch", () => act.branch(node), { "data-act": "branch" })];
}

function foot(conversation, node) {
  return make("div", { class: "foot" }, branchSwitch(conversation, node), make("span", { class: "actions" }, ...actionsOf(conversation, node)),
    node.role === "assistant" ? statsOf(conversation, node) : null);
}

function editForm(node) {
  const area = make("textarea", { "aria-label": "Edit the message", rows: "1" });
  area.value = node.content;
  const form = make("form", { class: "edit", onsubmit: (event) => { event.preventDefault(); act.sendEdit(node, area.value); } }, area,
    make("div", { class: "row" }, make("small", {}, "Sent as a new branch; this one stays."),
      make("button", { type: "button", onclick: () => act.endEdit() }, "Cancel"), make("button", { type: "submit", class: "primary" }, "Send")));
  area.addEventListener("input", () => grow(area));
  area.addEventListener("keydown", (event) => {
    if (isSendKey(event)) { event.preventDefault(); form.requestSubmit(); }
    if (event.key === "Escape") { event.stopPropagation(); act.endEdit(); }
  });
  requestAnimationFrame(() => { grow(area); area.focus(); area.setSelectionRange(area.value.length, area.value.length); });
  return form;
}

/* Arguments as they are read best: indented if they are JSON. */
function argumentsOf(call) {
  try {
    return { text: JSON.stringify(JSON.parse(call.arguments), null, 2), language: "json" };
  } catch {
    return { text: call.arguments, language: "" };
  }
}

function callElement(call) {
  const { text, language } = argumentsOf(call);
  return make("div", { class: "call" }, make("p", {}, "Tool call ", make("code", {}, call.name)),
    make("pre", { tabindex: "0" }, make("code", {}, ...highlight(text, language))));
}

/* The page runs no tools: their results are written by hand. */
function resultsForm(node) {
  const areas = node.calls.map((call) => make("textarea", { rows: "2", "aria-label": `Result of ${call.name}`, placeholder: `Result of ${call.name}` }));
  return make("form", { class: "results", onsubmit: (event) => { event.preventDefault(); act.sendResults(node, areas.map((area) => area.value)); } },
    ...areas, make("div", { class: "row" }, make("small", {}, "This page runs no tools. Write what the tool answers."),
      make("button", { type: "submit" }, "Send result")));
}

function problemElement(node) {
  return make("div", { class: "problem", role: "alert" }, make("span", {}, node.problem),
    make("button", { type: "button", "data-act": "retry", onclick: () => act.retry(node) }, "Retry"));
}

/* The parts of an answer that stay while it is written. */
function answerParts() {
  const summary = make("summary", {}), thought = make("div", { class: "md" });
  const parts = { summary, thought, thinking: make("details", { class: "thinking" }, summary, thought),
    text: make("div", { class: "md" }), waiting: make("p", { class: "waiting", "aria-hidden": "true" }, make("i"), make("i"), make("i")),
    rest: make("div", {}) };
  return parts;
}

function drawAnswer(conversation, node, element) {
  if (!element.parts) {
    element.parts = answerParts();
    const { thinking, text, waiting, rest } = element.parts;
    element.append(thinking, text, waiting, rest);
  }
  const { parts } = element, { thinking, content, isThinking } = splitThinking(node), isWriting = node.state === "writing";
  parts.thinking.hidden = !thinking;
  if (thinking) {
    parts.summary.textContent = isWriting && isThinking ? "Thinking" : node.stats?.thought ? `Thought for ${node.stats.thought.toFixed(1)} s` : "Thought";
    parts.thinking.classList.toggle("busy", isWriting && isThinking);
    showMarkdown(parts.thought, thinking, isWriting && isThinking);
  }
  showMarkdown(parts.text, content, isWriting);
  parts.waiting.hidden = !isWriting || Boolean(content) || Boolean(node.calls?.length) || (isThinking && Boolean(thinking));
  element.setAttribute("aria-busy", String(isWriting));
  const isLast = node.children.length === 0;
  const key = JSON.stringify([node.calls, isLast, node.state, node.problem, node.stats, siblings(conversation, node)]);
  if (parts.key === key) return; // what has the focus keeps it
  parts.key = key;
  parts.rest.replaceChildren(...(node.calls ?? []).map(callElement), node.calls?.length && isLast && node.state === "done" ? resultsForm(node) : "",
    node.problem ? problemElement(node) : "", foot(conversation, node));
}

function drawMessage(conversation, node, isEdited) {
  const isNew = !drawn.has(node.id), label = { user: "You", assistant: "Answer", tool: "Tool result" }[node.role];
  const element = drawn.get(node.id) ?? make("article", { class: `message ${node.role}`, "data-id": node.id, "aria-label": label });
  drawn.set(node.id, element);
  const key = JSON.stringify([isEdited, siblings(conversation, node)]);
  if (isNew) element.classList.add("fresh");
  if (node.role === "assistant") drawAnswer(conversation, node, element);
  if (node.role === "assistant" || element.key === key) return element;
  element.key = key;
  if (isEdited) element.replaceChildren(editForm(node));
  else if (node.role === "tool") element.replaceChildren(make("p", { class: "tool-name" }, "Result of ", make("code", {}, node.name)), make("pre", {}, node.content), foot(conversation, node));
  else element.replaceChildren(make("div", { class: "bubble" }, node.content), foot(conversation, node));
  return element;
}
