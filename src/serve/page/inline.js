/* Inline Markdown to nodes: code, bold, italic, struck text, links, line breaks.

   `open` is set while the text is still written: bold and code that are not closed yet are shown as if they were, so that their
   marks do not flash. */

const deepest = 12;
const letters = /[\p{L}\p{N}]/u;

/* An address that a link may have; null: the link is shown as text. */
function safeAddress(text) {
  try {
    const address = new URL(text);
    return ["http:", "https:", "mailto:"].includes(address.protocol) ? address.href : null;
  } catch {
    return null;
  }
}

function link(address, children) {
  return make("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

/* The position behind the code span that begins at i, or -1. */
function codeEnd(text, i, ticks, dead) {
  if (dead.has(ticks)) return -1;
  for (let j = i + ticks; j < text.length; j++) {
    if (text[j] !== "`") continue;
    let run = 1;
    while (text[j + run] === "`") run++;
    if (run === ticks) return j + run;
    j += run - 1;
  }
  dead.add(ticks);
  return -1;
}

/* Where the mark that opens at i is closed; -1: nowhere. */
function closing(text, i, mark, dead) {
  if (dead.has(mark)) return -1;
  const sign = mark[0], ticksDead = new Set();
  for (let j = i + mark.length; j < text.length; j++) {
    if (text[j] === "\\") { j++; continue; }
    if (text[j] === "`") {
      let ticks = 1;
      while (text[j + ticks] === "`") ticks++;
      const end = codeEnd(text, j, ticks, ticksDead);
      j = end < 0 ? j + ticks - 1 : end - 1;
      continue;
    }
    if (text[j] !== sign) continue;
    let run = 1;
    while (text[j + run] === sign) run++;
    const after = text[j + run] ?? " ";
    const fits = mark.length === 1 ? run !== 2 : run >= mark.length;
    const closes = j > i + mark.length && !/\s/.test(text[j - 1]) && !(sign === "_" && letters.test(after));
    if (fits && closes) return j + run - mark.length;
    j += run - 1;
  }
  dead.add(mark);
  return -1;
}

/* [text](address "title") at i: { label, address, end }, or null. */
function readLink(text, i) {
  let depth = 0, j = i;
  for (; j < text.length && j < i + 2000; j++) {
    if (text[j] === "\\") j++;
    else if (text[j] === "[") depth++;
    else if (text[j] === "]" && --depth === 0) break;
  }
  if (text[j] !== "]" || text[j + 1] !== "(") return null;
  const label = text.slice(i + 1, j);
  let end = j + 2, inside = 1;
  for (; end < text.length && end < j + 4000; end++) {
    if (text[end] === "(") inside++;
    else if (text[end] === ")" && --inside === 0) break;
    else if (text[end] === "\n") return null;
  }
  if (text[end] !== ")") return { label, address: null, end: text.length, cut: true };
  const [address] = text.slice(j + 2, end).trim().split(/\s/, 1);
  return { label, address: safeAddress(address.replace(/^<|>$/g, "")), end: end + 1 };
}

/* A bare https://... at i: its length without the punctuation behind it. */
function bareLength(text, i) {
  const found = /^https?:\/\/[^\s<>"'`]+/.exec(text.slice(i, i + 2000));
  if (!found) return 0;
  let address = found[0].replace(/[.,;:!?*_~]+$/, "");
  while (address.endsWith(")") && !address.includes("(")) address = address.slice(0, -1);
  return safeAddress(address) ? address.length : 0;
}

const tags = { "**": "strong", __: "strong", "~~": "del", "*": "em", _: "em" };

function inline(text, open = false, depth = 0, inLink = false) {
  const nodes = [], dead = new Set(), deadTicks = new Set();
  let plain = "";
  const flush = () => {
    if (plain) nodes.push(document.createTextNode(plain));
    plain = "";
  };
  const put = (node) => { flush(); nodes.push(node); };

  for (let i = 0; i < text.length; ) {
    const sign = text[i];
    if (sign === "\\" && /[!-/:-@[-`{-~]/.test(text[i + 1] ?? "")) {
      plain += text[i + 1];
      i += 2;
    } else if (sign === "\n") {
      plain = plain.replace(/ +$/, "");
      put(make("br"));
      i++;
    } else if (sign === "`") {
      let ticks = 1;
      while (text[i + ticks] === "`") ticks++;
      const end = codeEnd(text, i, ticks, deadTicks);
      if (end >= 0 || (open && i + ticks < text.length)) {
        const code = end >= 0 ? text.slice(i + ticks, end - ticks) : text.slice(i + ticks);
        put(make("code", {}, /^ .* $/s.test(code) && code.trim() ? code.slice(1, -1) : code));
        i = end >= 0 ? end : text.length;
      } else {
        plain += text.slice(i, i + ticks);
        i += ticks;
      }
    } else if ((sign === "[" || (sign === "!" && text[i + 1] === "[")) && !inLink) {
      const found = readLink(text, sign === "!" ? i + 1 : i);
      if (found && !(found.cut && !open)) { // pictures are shown as links: nothing is loaded from elsewhere
        const children = inline(found.label || (sign === "!" ? "picture" : "link"), false, depth + 1, true);
        put(found.address ? link(found.address, children) : make("span", {}, ...children));
        i = found.end;
      } else {
        plain += sign;
        i++;
      }
    } else if ((sign === "h" || sign === "<") && !inLink && !letters.test(text[i - 1] ?? " ")) {
      const from = sign === "<" ? i + 1 : i, length = bareLength(text, from);
      if (length > 0 && (sign === "h" || text[from + length] === ">")) {
        const address = text.slice(from, from + length);
        put(link(safeAddress(address), [address]));
        i = from + length + (sign === "<" ? 1 : 0);
      } else {
        plain += sign;
        i++;
      }
    } else if ("*_~".includes(sign)) {
      const mark = text[i + 1] === sign ? sign + sign : sign;
      const opens = tags[mark] && !/\s/.test(text[i + mark.length] ?? " ") && depth < deepest
        && !(sign === "_" && letters.test(text[i - 1] ?? " "));
      const end = opens ? closing(text, i, mark, dead) : -1;
      if (end >= 0 || (opens && open && mark === "**")) {
        const inside = end >= 0 ? text.slice(i + mark.length, end) : text.slice(i + mark.length);
        put(make(tags[mark], {}, ...inline(inside, open && end < 0, depth + 1, inLink)));
        i = end >= 0 ? end + mark.length : text.length;
      } else {
        const hidden = open && i + mark.length >= text.length; // a mark that may open or close something
        if (!hidden) plain += mark;
        i += mark.length;
      }
    } else {
      plain += sign;
      i++;
    }
  }
  flush();
  return nodes;
}
