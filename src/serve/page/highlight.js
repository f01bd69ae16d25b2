/* Colours of code: comments, strings, numbers, keywords and calls, by rules that most languages share. */

const families = {
  c: { names: "c h cpp c++ cc cuda cu rust rs go java js javascript ts typescript jsx tsx kotlin swift csharp cs php scala zig dart",
    comment: "\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)" },
  hash: { names: "python py sh bash shell zsh ruby rb perl r yaml yml toml make makefile cmake dockerfile julia jl elixir nix",
    comment: "#[^\\n]*" },
  dash: { names: "sql lua haskell hs ada", comment: "--[^\\n]*" },
  data: { names: "json jsonc css scss ini", comment: "\\/\\*[\\s\\S]*?(?:\\*\\/|$)" },
};
const keywords = new Set(("as async await auto begin bool break case catch char class const continue def default defer delete do done double elif else "
  + "end enum except export extends extern false fi final finally float fn for from func function global go goto if impl import in include "
  + "inline int interface is lambda let local long loop match mod module mut namespace new nil None not null or and package pass private "
  + "protected pub public raise range return self select signed sizeof static string struct super switch template then this throw trait true "
  + "True False try type typedef typename typeof undefined union unless unsigned use using var void volatile when where while with yield "
  + "SELECT FROM WHERE INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE JOIN LEFT INNER ON GROUP BY ORDER LIMIT AND OR NOT NULL AS").split(" "));
const strings = "\"\"\"[\\s\\S]*?(?:\"\"\"|$)|\"(?:\\\\.|[^\"\\\\\\n])*\"?|'(?:\\\\.|[^'\\\\\\n])*'?|`(?:\\\\.|[^`\\\\])*`?";

const rules = new Map();
for (const { names, comment } of Object.values(families)) {
  const rule = new RegExp(`(${comment})|(${strings})|(\\b\\d[\\w.]*)|([A-Za-z_$][\\w$]*)`, "g");
  for (const name of names.split(" ")) rules.set(name, rule);
}

/* Nodes for the text of a code block. */
function highlight(text, language) {
  const rule = rules.get(language.toLowerCase());
  if (!rule || text.length > 100000) return [document.createTextNode(text)];
  const nodes = [];
  let plain = 0;
  const add = (kind, from, to) => {
    if (from > plain) nodes.push(document.createTextNode(text.slice(plain, from)));
    nodes.push(make("span", { class: kind }, text.slice(from, to)));
    plain = to;
  };
  for (const found of text.matchAll(rule)) {
    const [whole, comment, string, number, word] = found, to = found.index + whole.length;
    if (comment) add("hl-c", found.index, to);
    else if (string) add("hl-s", found.index, to);
    else if (number) add("hl-n", found.index, to);
    else if (keywords.has(word)) add("hl-k", found.index, to);
    else if (text[to] === "(") add("hl-f", found.index, to);
  }
  if (plain < text.length || nodes.length === 0) nodes.push(document.createTextNode(text.slice(plain)));
  return nodes;
}
