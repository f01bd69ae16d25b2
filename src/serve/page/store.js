/* Conversations in localStorage, one key each. A conversation is a tree of messages: every message knows its parent, its children and
   which of them is shown. The messages shown are those from the root along the chosen children. */

const PREFIX = "carry.chat.";
const freshId = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);

const store = {
  conversations: [], // newest first
  current: null,

  load() {
    this.conversations = [];
    for (let i = 0; i < localStorage.length; i++) {
      const key = localStorage.key(i);
      if (!key.startsWith(PREFIX)) continue;
      const conversation = readConversation(localStorage.getItem(key));
      if (conversation && PREFIX + conversation.id === key) this.conversations.push(conversation);
    }
    this.sort();
  },

  sort() {
    this.conversations.sort((a, b) => b.updated - a.updated);
  },

  /* False: the browser keeps no more. */
  save(conversation) {
    if (conversation.order.length === 0) return true; // nothing to keep yet
    try {
      localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
      return true;
    } catch {
      return false;
    }
  },

  create() {
    const now = Date.now();
    return { id: freshId(), title: "", named: false, created: now, updated: now, system: "", nodes: {}, order: [], chosen: null };
  },

  remove(conversation) {
    localStorage.removeItem(PREFIX + conversation.id);
    this.conversations = this.conversations.filter((one) => one !== conversation);
  },

  restore(conversation) {
    this.conversations.push(conversation);
    this.sort();
    this.save(conversation);
  },
};

/* null: not a conversation. An answer that was being written when the page was closed counts as stopped. */
function readConversation(text) {
  try {
    const read = JSON.parse(text);
    if (typeof read.id !== "string" || typeof read.nodes !== "object" || !Array.isArray(read.order)) return null;
    for (const node of Object.values(read.nodes)) {
      if (typeof node.content !== "string" || !Array.isArray(node.children)) return null;
      if (node.state === "writing") node.state = "stopped";
    }
    if (![...read.order, ...Object.values(read.nodes).flatMap((node) => node.children)].every((id) => read.nodes[id])) return null;
    return { title: "", named: false, created: 0, updated: 0, system: "", chosen: read.order.at(-1) ?? null, ...read };
  } catch {
    return null;
  }
}

const titleOf = (conversation) => conversation.title || "New conversation";

/* The ids beside a message, itself among them: the children of its parent, or the first messages (`order`). */
const siblings = (conversation, node) => (node.parent ? conversation.nodes[node.parent].children : conversation.order);

function choose(conversation, node) {
  if (node.parent) conversation.nodes[node.parent].chosen = node.id;
  else conversation.chosen = node.id;
}

/* role: user, assistant or tool. parent: a message, or null for the first one. */
function addNode(conversation, parent, role, more = {}) {
  const node = { id: freshId(), parent: parent?.id ?? null, role, content: "", children: [], chosen: null, at: Date.now(), ...more };
  conversation.nodes[node.id] = node;
  siblings(conversation, node).push(node.id);
  choose(conversation, node);
  conversation.updated = Date.now();
  if (role === "user" && !conversation.named && !conversation.title) conversation.title = shortTitle(node.content);
  if (!store.conversations.includes(conversation)) store.conversations.push(conversation);
  store.sort();
  return node;
}

function shortTitle(text) {
  const line = text.trim().split("\n", 1)[0].replace(/\s+/g, " ");
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
}

/* From the first message to `node`. */
function pathTo(conversation, node) {
  const path = [];
  for (let one = node; one; one = one.parent ? conversation.nodes[one.parent] : null) path.unshift(one);
  return path;
}

/* The messages shown. */
function shownPath(conversation) {
  const path = [];
  for (let id = conversation.chosen; id; id = conversation.nodes[id].chosen) path.push(conversation.nodes[id]);
  return path;
}

/* True if the answer shares its beginning with another branch that was there before it. */
function isFork(conversation, node) {
  return pathTo(conversation, node).some((one) => siblings(conversation, one).indexOf(one.id) > 0);
}

/* An answer's text without a <think> block that the server left in it, and that block. */
function splitThinking(node) {
  const found = /^\s*<think>([\s\S]*?)(<\/think>|$)/.exec(node.content);
  if (!found) return { thinking: node.reasoning ?? "", content: node.content, isThinking: !node.content };
  return { thinking: (node.reasoning ?? "") + found[1].trim(), content: node.content.slice(found[0].length).trimStart(), isThinking: !found[2] };
}

/* Messages as OpenAI's interface takes them. */
function messagesTo(conversation, node) {
  const messages = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  for (const one of pathTo(conversation, node)) {
    if (one.role === "assistant" && !one.content && !one.calls?.length) continue; // an answer that failed
    const message = { role: one.role, content: one.content };
    if (one.reasoning) message.reasoning_content = one.reasoning;
    if (one.calls?.length) {
      message.tool_calls = one.calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
    }
    if (one.role === "tool") message.tool_call_id = one.call;
    messages.push(message);
  }
  return messages;
}
