/* Blocks of Markdown to elements: headings, paragraphs, lists, quotes, code, tables, rules.

   showMarkdown keeps the elements of blocks that have not changed, so that an answer that grows is redrawn only at its end. */

const fence = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const heading = /^ {0,3}(#{1,6})\s+(\S.*)$/;
const rule = /^ {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const item = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const quote = /^ {0,3}> ?/;

/* Cells of a row: `|` at the ends is optional, `\|` and `|` in code do not divide. */
function cells(line) {
  const row = [];
  let cell = "", inCode = false;
  for (let i = 0; i < line.length; i++) {
    if (line[i] === "\\" && line[i + 1] === "|") { cell += "|"; i++; continue; }
    if (line[i] === "`") inCode = !inCode;
    if (line[i] === "|" && !inCode) { row.push(cell.trim()); cell = ""; } else cell += line[i];
  }
  row.push(cell.trim());
  if (row[0] === "") row.shift();
  if (row.at(-1) === "") row.pop();
  return row;
}

const isDivider = (line) => line !== undefined && line.includes("-") && line.length < 2000 && /^[\s|:-]+$/.test(line)
  && cells(line).every((cell) => /^:?-+:?$/.test(cell));
const startsTable = (lines, i) => lines[i].includes("|") && isDivider(lines[i + 1]) && cells(lines[i]).length === cells(lines[i + 1]).length;
const endsParagraph = (lines, i) => !lines[i].trim() || fence.test(lines[i]) || heading.test(lines[i]) || rule.test(lines[i])
  || quote.test(lines[i]) || (item.test(lines[i]) && !/^ *\d/.test(lines[i])) || /^ *1[.)] +\S/.test(lines[i]) || startsTable(lines, i);

function takeFence(lines, i) {
  const [, marks, language] = fence.exec(lines[i]), indent = /^ */.exec(lines[i])[0].length;
  const closes = (line) => line.trim().length >= marks.length && line.trim().split("").every((sign) => sign === marks[0]);
  const code = [];
  let j = i + 1;
  while (j < lines.length && !closes(lines[j])) code.push(lines[j++].replace(new RegExp(`^ {0,${indent}}`), ""));
  return { kind: "code", language: language.trim().split(/\s/, 1)[0], text: code.join("\n"), closed: j < lines.length, next: j + 1 };
}

function takeTable(lines, i) {
  const align = cells(lines[i + 1] ?? "").map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left"));
  const rows = [];
  let j = i + 2;
  while (j < lines.length && lines[j].trim() && lines[j].includes("|")) rows.push(cells(lines[j++]));
  return { kind: "table", head: cells(lines[i]), align, rows, next: j };
}

/* Items begin with the same kind of mark; lines that are indented as far as the text of an item belong to it. */
function takeList(lines, i, depth) {
  const first = item.exec(lines[i]), ordered = /\d/.test(first[2]), indent = first[1].length;
  const items = [];
  let j = i, isLoose = false;
  while (j < lines.length) {
    const found = item.exec(lines[j]);
    if (!found || found[1].length > indent + 1 || /\d/.test(found[2]) !== ordered || rule.test(lines[j])) break;
    const width = found[1].length + found[2].length + 1, own = [lines[j].slice(found[0].length)];
    let blank = false;
    for (j++; j < lines.length; j++) {
      const depthOf = /^ */.exec(lines[j])[0].length;
      if (!lines[j].trim()) blank = true;
      else if (depthOf >= Math.min(width, indent + 2)) {
        if (blank) own.push("");
        isLoose = isLoose || (blank && !item.test(lines[j]));
        own.push(lines[j].slice(Math.min(width, depthOf)));
        blank = false;
      } else if (blank || endsParagraph(lines, j) || item.test(lines[j])) break;
      else own.push(lines[j].trim());
    }
    items.push(depth > deepest ? [{ kind: "paragraph", text: own.join("\n") }] : parseBlocks(own, depth + 1));
  }
  return { kind: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items, isLoose, next: j };
}

function takeQuote(lines, i, depth) {
  const own = [];
  let j = i;
  while (j < lines.length && lines[j].trim() && (quote.test(lines[j]) || !endsParagraph(lines, j))) own.push(lines[j++].replace(quote, ""));
  return { kind: "quote", blocks: depth > deepest ? [{ kind: "paragraph", text: own.join("\n") }] : parseBlocks(own, depth + 1), next: j };
}

function takeBlock(lines, i, depth, open) {
  const line = lines[i], title = heading.exec(line);
  if (fence.test(line)) return takeFence(lines, i);
  if (title) return { kind: "heading", level: title[1].length, text: title[2].trimEnd().replace(/ #+$/, ""), next: i + 1 };
  if (rule.test(line)) return { kind: "rule", next: i + 1 };
  if (quote.test(line)) return takeQuote(lines, i, depth);
  if (item.test(line)) return takeList(lines, i, depth);
  const mayBeTable = open && line.trimStart().startsWith("|") && (i + 1 === lines.length || (i + 2 === lines.length && /^[\s|:-]*$/.test(lines[i + 1])));
  if (startsTable(lines, i) || mayBeTable) return takeTable(lines, i);
  let j = i + 1;
  while (j < lines.length && !endsParagraph(lines, j)) j++;
  return { kind: "paragraph", text: lines.slice(i, j).map((one) => one.trimStart()).join("\n").trimEnd(), next: j };
}

function parseBlocks(lines, depth = 0, open = false) {
  const blocks = [];
  for (let i = 0; i < lines.length; ) {
    if (!lines[i].trim()) { i++; continue; }
    const block = takeBlock(lines, i, depth, open);
    block.source = lines.slice(i, block.next).join("\n");
    blocks.push(block);
    i = block.next;
  }
  return blocks;
}

function codeBlock(block) {
  return make("div", { class: "code" },
    make("div", { class: "code-bar" }, make("span", {}, block.language || "text"),
      make("button", { type: "button", class: "copy", "data-copy": "code" }, icon("copy"), make("span", {}, "Copy"))),
    make("pre", { tabindex: "0" }, make("code", {}, ...highlight(block.text, block.language))));
}

function tableElement(block, open) {
  const row = (tag, values) => make("tr", {}, ...block.head.map((_, i) =>
    make(tag, { class: `to-${block.align[i] ?? "left"}` }, ...inline(values[i] ?? "", open))));
  return make("div", { class: "table", tabindex: "0" }, make("table", {}, make("thead", {}, row("th", block.head)),
    make("tbody", {}, ...block.rows.map((values) => row("td", values)))));
}

function listElement(block, open) {
  const items = block.items.map((blocks, i) => {
    const last = open && i === block.items.length - 1;
    const task = blocks[0]?.kind === "paragraph" && /^\[([ xX])\] /.exec(blocks[0].text);
    if (task) blocks[0] = { ...blocks[0], text: blocks[0].text.slice(4) };
    return make("li", { class: task ? "task" : null }, task ? make("span", { class: "box" }, task[1] === " " ? "☐" : "☑") : null,
      ...blocks.flatMap((inner, j) => (inner.kind === "paragraph" && !block.isLoose
        ? inline(inner.text, last && j === blocks.length - 1) : [blockElement(inner, last && j === blocks.length - 1)])));
  });
  return make(block.ordered ? "ol" : "ul", { start: block.ordered && block.start !== 1 ? String(block.start) : null }, ...items);
}

function blockElement(block, open) {
  switch (block.kind) {
    case "code": return codeBlock(block);
    case "heading": return make(`h${Math.min(block.level + 1, 6)}`, {}, ...inline(block.text, open));
    case "rule": return make("hr");
    case "table": return tableElement(block, open);
    case "list": return listElement(block, open);
    case "quote": return make("blockquote", {}, ...block.blocks.map((inner, i) => blockElement(inner, open && i === block.blocks.length - 1)));
    default: return make("p", {}, ...inline(block.text, open));
  }
}

/* Shows a text in `box`; `open`: it is still written. */
function showMarkdown(box, text, open = false) {
  let inCode = false;
  const lines = text.replace(/\r\n?/g, "\n").split("\n").map((line) => { // tabs of code are kept
    if (fence.test(line)) inCode = !inCode;
    return inCode ? line : line.replace(/^\t+/, (run) => "    ".repeat(run.length));
  });
  const blocks = parseBlocks(lines, 0, open);
  const shown = box.markdown ?? (box.markdown = []);
  blocks.forEach((block, i) => {
    const isOpen = open && i === blocks.length - 1, key = `${block.kind} ${isOpen} ${block.source}`;
    if (shown[i]?.key === key) return;
    const fresh = blockElement(block, isOpen), old = shown[i]?.element;
    if (!old) box.append(fresh);
    else if (old.nodeName === fresh.nodeName && shown[i].kind === block.kind) morph(old, fresh);
    else old.replaceWith(fresh);
    shown[i] = { key, kind: block.kind, element: box.childNodes[i] };
  });
  while (shown.length > blocks.length) shown.pop().element.remove();
}
