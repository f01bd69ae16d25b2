/* The behaviour of the page: answers that are being written (`runs`), the actions of its buttons (`act`), keys, the start. */

const runs = new Map(); // id of a conversation: { conversation, node, controller }
let modelName = "", contextLength = 0;

function keep(conversation) {
  if (!store.save(conversation)) toast("The browser keeps no more conversations: delete some.");
}

/* Adds a part of an answer to its message. */
function addPart(node, delta, choice) {
  if (delta.content) node.content += delta.content;
  if (delta.reasoning_content) node.reasoning = (node.reasoning ?? "") + delta.reasoning_content;
  for (const part of delta.tool_calls ?? []) {
    node.calls ??= [];
    const call = (node.calls[part.index] ??= { id: "", name: "", arguments: "" });
    call.id ||= part.id ?? "";
    call.name ||= part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
  if (choice.finish_reason) node.state = choice.finish_reason === "length" ? "cut" : "done";
}

/* Times of an answer: until its first part, of its thinking, and tokens a second. */
function stopwatch(node) {
  const start = performance.now();
  let first = 0, last = 0, parts = 0, thought = 0;
  node.stats = {};
  return {
    part(delta) {
      if (!delta.content && !delta.reasoning_content && !delta.tool_calls) return;
      last = performance.now();
      first ||= last;
      parts++;
      if (delta.reasoning_content) thought = last;
      node.stats.first = (first - start) / 1000;
      if (thought) node.stats.thought = (thought - first) / 1000;
      if (last - first > 300) node.stats.rate = (parts - 1) / ((last - first) / 1000);
    },
    end(usage) {
      const tokens = usage?.completion_tokens ?? parts;
      Object.assign(node.stats, usage
        ? { tokens, prompt: usage.prompt_tokens, cached: usage.prompt_tokens_details?.cached_tokens ?? 0 } : { tokens, about: true });
      delete node.stats.rate;
      if (tokens > 1 && last > first && parts > tokens / 4) node.stats.rate = (tokens - 1) / ((last - first) / 1000);
    },
  };
}

/* Draws an answer at most once a frame. */
function drawLater(run) {
  if (run.isDue || store.current !== run.conversation) return;
  run.isDue = true;
  requestAnimationFrame(() => {
    run.isDue = false;
    const element = drawn.get(run.node.id);
    if (store.current !== run.conversation || !element) return;
    drawAnswer(run.conversation, run.node, element);
    follow();
  });
}

/* Writes the answer `node`, a message without content yet. */
async function write(conversation, node, fields) {
  const run = { conversation, node, controller: new AbortController() }, watch = stopwatch(node);
  runs.set(conversation.id, run);
  Object.assign(node, { state: "writing", content: "", problem: null });
  delete node.reasoning;
  delete node.calls;
  draw();
  announce("Answering");
  const saving = setInterval(() => keep(conversation), 3000);
  try {
    const body = { ...(modelName ? { model: modelName } : {}), messages: messagesTo(conversation, conversation.nodes[node.parent]), ...fields };
    watch.end(await streamAnswer(body, run.controller.signal, (delta, choice) => {
      addPart(node, delta, choice);
      watch.part(delta);
      drawLater(run);
    }));
    if (node.state === "writing") node.state = "done";
    announce(`Answer complete, ${node.stats.tokens} tokens`);
  } catch (error) {
    watch.end(null);
    node.state = error.name === "AbortError" ? "stopped" : "failed";
    if (node.state === "failed") node.problem = error instanceof Problem ? error.message : `The page failed: ${error.message}`;
    announce(node.problem ?? "Stopped");
    if (error.status === 401) askAndRetry(conversation, node, error.message);
  } finally {
    clearInterval(saving);
    runs.delete(conversation.id);
    keep(conversation);
    draw();
  }
}

async function askAndRetry(conversation, node, sentence) {
  if (!await askForKey(sentence)) return;
  connect();
  if (store.current === conversation && conversation.nodes[node.id] && node.state === "failed") act.retry(node);
}

/* Adds an answer below a message and writes it. */
function answer(conversation, parent) {
  const fields = checkedSampling();
  if (!fields) return showSettings(true);
  if (runs.has(conversation.id)) return undefined;
  Object.assign(view, { branchAt: null, editing: null, sticks: true });
  return write(conversation, addNode(conversation, parent, "assistant", { state: "writing" }), fields);
}

const act = {
  open(conversation) {
    Object.assign(view, { branchAt: null, editing: null, sticks: true });
    store.current = conversation;
    drawn.clear();
    at("messages").replaceChildren();
    at("system").value = conversation.system;
    history.replaceState(null, "", conversation.order.length ? `#${conversation.id}` : location.pathname);
    draw();
    if (isNarrow()) showSide(false);
    else at("input").focus();
  },

  create() {
    act.open(store.create());
    at("input").focus();
  },

  send(text) {
    const conversation = store.current, parent = view.branchAt ?? shownPath(conversation).at(-1) ?? null;
    if (!text.trim() || runs.has(conversation.id)) return;
    if (!checkedSampling()) { showSettings(true); return; }
    const message = addNode(conversation, parent, "user", { content: text.trim() });
    at("input").value = "";
    grow(at("input"));
    if (!isNarrow()) at("input").focus();
    history.replaceState(null, "", `#${conversation.id}`);
    answer(conversation, message);
  },

  halt() {
    runs.get(store.current.id)?.controller.abort();
  },

  regenerate(node) {
    answer(store.current, store.current.nodes[node.parent]);
  },

  answerAgain(node) {
    answer(store.current, node);
  },

  /* The same message again: the failed answer is replaced, not kept as a branch. */
  retry(node) {
    const fields = checkedSampling();
    if (!fields) showSettings(true);
    else if (!runs.has(store.current.id)) write(store.current, node, fields);
  },

  edit(node) {
    view.editing = node;
    view.branchAt = null;
    view.sticks = false;
    draw();
  },

  endEdit() {
    const node = view.editing;
    view.editing = null;
    draw();
    if (node) drawn.get(node.id)?.querySelector('[data-act="edit"]')?.focus();
  },

  sendEdit(node, text) {
    const conversation = store.current;
    if (!text.trim() || runs.has(conversation.id)) return;
    if (!checkedSampling()) { showSettings(true); return; }
    view.editing = null;
    answer(conversation, addNode(conversation, node.parent ? conversation.nodes[node.parent] : null, "user", { content: text.trim() }));
    at("input").focus();
  },

  /* The next message follows `node`, beside those that follow it now. */
  branch(node) {
    view.branchAt = node.children.length > 0 ? node : null;
    view.sticks = true;
    draw();
    at("input").focus();
  },

  endBranch() {
    view.branchAt = null;
    draw();
    at("input").focus();
  },

  switchTo(node, step) {
    choose(store.current, node);
    view.branchAt = null;
    view.sticks = false;
    keep(store.current);
    draw();
    const buttons = drawn.get(node.id)?.querySelectorAll(".switch button") ?? [];
    ([...buttons].find((button) => button.dataset.step === String(step) && !button.disabled) ?? buttons[step > 0 ? 0 : 1])?.focus();
  },

  sendResults(node, texts) {
    let last = node;
    node.calls.forEach((call, i) => {
      last = addNode(store.current, last, "tool", { content: texts[i], call: call.id, name: call.name });
    });
    answer(store.current, last);
  },

  rename(conversation) {
    renameInList(conversation, (title) => {
      if (title !== null && title.trim()) Object.assign(conversation, { title: title.trim(), named: true });
      keep(conversation);
      draw();
      at("list").querySelector(`li[data-id="${CSS.escape(conversation.id)}"] .entry`)?.focus();
    });
  },

  remove(conversation) {
    runs.get(conversation.id)?.controller.abort();
    store.remove(conversation);
    if (store.current === conversation) act.create();
    draw();
    toast(`Deleted “${shortTitle(titleOf(conversation))}”.`, "Undo", () => { store.restore(conversation); act.open(conversation); });
  },

  setSystem(text) {
    store.current.system = text;
    keep(store.current);
  },
};

function showModel(kind, text) {
  at("model").dataset.kind = kind;
  at("model").querySelector("span").textContent = text;
}

/* Asks which model there is, again until the server answers. */
let connecting = 0;
async function connect() {
  clearTimeout(connecting);
  try {
    await ask("/health");
    const [model] = (await (await ask("/v1/models")).json()).data;
    modelName = model.id;
    contextLength = model.max_model_len ?? 0;
    showModel("live", modelName);
    drawWelcome(modelName, contextLength);
  } catch (error) {
    showModel(error.status === 503 ? "waiting" : "bad", { 401: "needs an API key", 503: "loading the model" }[error.status] ?? "no server");
    if (error.status === 401) { if (await askForKey(error.message)) connect(); }
    else connecting = setTimeout(connect, 1500);
  }
}

function onKey(event) {
  if (at("key-dialog").open) return;
  if (event.key === "Escape") {
    if (runs.has(store.current.id)) act.halt();
    else if (view.editing) act.endEdit();
    else if (document.body.classList.contains("side-shown")) showSide(false);
    else if (!at("settings").hidden) showSettings(false);
    else if (view.branchAt) act.endBranch();
  } else if (event.altKey && event.code === "KeyN" && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    act.create();
  } else if (event.key === "ArrowUp" && event.target === at("input") && !at("input").value && !runs.has(store.current.id)) {
    const last = shownPath(store.current).findLast((node) => node.role === "user");
    if (last) { event.preventDefault(); act.edit(last); }
  }
}

function watchPage() {
  const input = at("input");
  input.addEventListener("input", () => { grow(input); drawComposer(); });
  input.addEventListener("keydown", (event) => { if (isSendKey(event)) { event.preventDefault(); act.send(input.value); } });
  at("composer").addEventListener("submit", (event) => { event.preventDefault(); act.send(input.value); });
  at("halt").addEventListener("click", () => { act.halt(); input.focus(); });
  at("new").addEventListener("click", act.create);
  at("branching-end").addEventListener("click", act.endBranch);
  at("side-open").addEventListener("click", () => showSide(true));
  at("side-close").addEventListener("click", () => showSide(false));
  at("shade").addEventListener("click", () => { showSide(false); if (!at("settings").hidden) showSettings(false); });
  at("messages").addEventListener("click", (event) => {
    const button = event.target.closest('[data-copy="code"]');
    if (button) copyText(button.closest(".code").querySelector("code").textContent, button);
  });
  document.addEventListener("keydown", onKey);
  matchMedia("(max-width: 860px)").addEventListener("change", () => showSide(false));
  addEventListener("pagehide", () => { for (const run of runs.values()) store.save(run.conversation); });
  addEventListener("storage", (event) => { // another tab has changed a conversation
    if (runs.size > 0 || (event.key && !event.key.startsWith(PREFIX))) return;
    const { id } = store.current;
    store.load();
    const again = store.conversations.find((one) => one.id === id);
    if (again) act.open(again);
    else draw();
  });
}

function start() {
  const token = new URLSearchParams(location.search).get("token"); // as links with a key have it
  if (token) { apiKey.set(token, false); history.replaceState(null, "", location.pathname + location.hash); }
  store.load();
  loadSettings();
  watchSettings();
  watchScrolling();
  watchPage();
  drawWelcome("", 0);
  act.open(store.conversations.find((one) => `#${one.id}` === location.hash) ?? store.create());
  showSide(false);
  connect();
}

start();
