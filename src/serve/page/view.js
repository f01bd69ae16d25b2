/* The page around the messages: list of conversations, header, scrolling. */

const view = { editing: null, branchAt: null, sticks: true, listKey: "" };
const isNarrow = () => matchMedia("(max-width: 860px)").matches;

function grow(area) {
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight + 2, innerHeight * 0.4)}px`;
}

const isSendKey = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229;

/* Scrolling: the end of the conversation stays in sight unless the reader has scrolled away from it. */
const isAtEnd = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < 48;

function follow() {
  if (view.sticks) at("scroll").scrollTop = at("scroll").scrollHeight;
  at("newest").hidden = isAtEnd(at("scroll"));
}

function startFollowing() {
  view.sticks = true;
  follow();
}

function watchScrolling() {
  const box = at("scroll");
  box.addEventListener("scroll", () => {
    view.sticks = isAtEnd(box);
    at("newest").hidden = view.sticks;
  }, { passive: true });
  new ResizeObserver(follow).observe(box);
  at("newest").addEventListener("click", startFollowing);
}

function dayOf(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time >= midnight) return "Today";
  if (time >= midnight - 86400000) return "Yesterday";
  return time >= midnight - 7 * 86400000 ? "This week" : "Earlier";
}

function listEntry(conversation) {
  const isCurrent = conversation === store.current, title = titleOf(conversation);
  return make("li", { "data-id": conversation.id },
    make("button", { type: "button", class: "entry", "aria-current": isCurrent ? "page" : null, title, onclick: () => act.open(conversation),
      ondblclick: () => act.rename(conversation),
      onkeydown: (event) => {
        if (event.key === "F2") act.rename(conversation);
        if (event.key === "Delete") act.remove(conversation);
      } }, make("span", {}, title), runs.has(conversation.id) ? make("i", { class: "live", title: "An answer is being written" }) : null),
    tool("edit", `Rename ${title}`, () => act.rename(conversation), { "data-act": "rename" }),
    tool("trash", `Delete ${title}`, () => act.remove(conversation), { "data-act": "delete" }));
}

function drawList() {
  const key = JSON.stringify([store.current.id, store.conversations.map((one) => [one.id, one.title, dayOf(one.updated), runs.has(one.id)])]);
  if (key === view.listKey) return;
  view.listKey = key;
  const focused = document.activeElement?.closest?.("#list li")?.dataset.id, groups = new Map();
  for (const conversation of store.conversations) {
    const day = dayOf(conversation.updated);
    if (!groups.has(day)) groups.set(day, []);
    groups.get(day).push(listEntry(conversation));
  }
  at("list").replaceChildren(...[...groups].flatMap(([day, entries]) => [make("h2", {}, day), make("ul", {}, ...entries)]));
  if (focused) at("list").querySelector(`li[data-id="${CSS.escape(focused)}"] .entry`)?.focus();
}

/* A field in place of a title in the list. */
function renameInList(conversation, done) {
  const entry = at("list").querySelector(`li[data-id="${CSS.escape(conversation.id)}"]`);
  if (!entry) return;
  const field = make("input", { type: "text", maxlength: "120", "aria-label": "Title of the conversation" });
  let isOver = false;
  const end = (title) => {
    if (isOver) return;
    isOver = true;
    view.listKey = "";
    done(title);
  };
  field.value = titleOf(conversation);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) end(field.value);
    if (event.key === "Escape") { event.stopPropagation(); end(null); }
  });
  field.addEventListener("blur", () => end(field.value));
  entry.replaceChildren(field);
  field.select();
  field.focus();
}

function drawComposer() {
  const isRunning = runs.has(store.current.id);
  at("send").hidden = isRunning;
  at("halt").hidden = !isRunning;
  at("send").disabled = !at("input").value.trim();
  at("branching").hidden = !view.branchAt;
}

function drawHeader() {
  at("title").textContent = titleOf(store.current);
  document.title = store.current.title ? `${store.current.title} · Carry` : "Carry";
}

/* Messages of the current conversation; elements of others are dropped. */
function drawMessages() {
  const conversation = store.current;
  let path = shownPath(conversation);
  if (view.branchAt) path = path.slice(0, path.indexOf(view.branchAt) + 1);
  const elements = path.map((node) => drawMessage(conversation, node, view.editing === node));
  elements.forEach((element, i) => {
    element.classList.toggle("last", i === elements.length - 1);
    if (at("messages").children[i] !== element) at("messages").insertBefore(element, at("messages").children[i] ?? null);
  });
  while (at("messages").children.length > elements.length) at("messages").lastChild.remove();
  for (const id of [...drawn.keys()]) if (!conversation.nodes[id]) drawn.delete(id);
  at("welcome").hidden = path.length > 0;
}

function draw() {
  drawList();
  drawHeader();
  drawMessages();
  drawComposer();
  follow();
}

function showSide(isShown) {
  document.body.classList.toggle("side-shown", isShown);
  at("side").inert = isNarrow() && !isShown;
  at("shade").hidden = !(isShown && isNarrow());
  if (isShown) at("new").focus();
}

const examples = ["Explain how a hash table works, with a small example in C.", "Write a haiku about a river that remembers.",
  "Compare TCP and UDP in a table."];

function drawWelcome(model, context) {
  at("welcome-model").textContent = model ? `${model}${context ? ` · ${grouped(context)} tokens of context` : ""} · ${location.host}` : "";
  at("examples").replaceChildren(...examples.map((text) => make("button", { type: "button", onclick: () => act.send(text) }, text)));
}
