// SPDX-License-Identifier: Apache-2.0
// The part of Markdown that answers use: code, headings, lists, quotes, bold and italic. Everything becomes elements with
// textContent; markup of HTML is text like any other, and links stay text.
"use strict";

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const Markdown = (() => {
  const kFence = /^\s{0,3}(```+|~~~+)\s*([^`\s]*)\s*$/;
  const kItem = /^\s{0,5}(?:([-*+])|(\d{1,9})[.)])\s+(.*)$/;
  const kHeading = /^\s{0,3}#{1,6}\s+(.*?)\s*#*$/;
  const kInline = /(`+)([^`]+?)\1(?!`)|\*\*(?=\S)(.+?\S|\S)\*\*|(?<![\w*])\*(?=[^\s*])([^*]*[^\s*])\*(?![\w*])/g;

  // A text as blocks {kind, text, ...}. While a fence is open its code goes to the end.
  function blocksOf(text) {
    const blocks = [];
    let last = null;
    const add = (kind, line, more) => { last = { kind, text: line, ...more }; blocks.push(last); };
    const lines = text.split("\n");
    for (let i = 0; i < lines.length; ++i) {
      const line = lines[i];
      const fence = kFence.exec(line);
      if (fence) {
        const code = [];
        const end = new RegExp("^\\s{0,3}" + fence[1][0] + "{" + fence[1].length + ",}\\s*$");
        for (++i; i < lines.length && !end.test(lines[i]); ++i) code.push(lines[i]);
        add("code", code.join("\n"), { language: fence[2] });
        last = null;
        continue;
      }
      const heading = kHeading.exec(line), item = kItem.exec(line);
      if (!line.trim()) last = last && last.kind === "list" ? last : null;
      else if (heading) { add("heading", heading[1]); last = null; }
      else if (item) {
        const ordered = item[2] !== undefined;
        if (!last || last.kind !== "list" || last.ordered !== ordered) add("list", "", { ordered, start: Number(item[2] || 1), items: [] });
        last.items.push(item[3]);
      } else if (line.startsWith(">")) {
        const quoted = line.replace(/^>\s?/, "");
        if (last && last.kind === "quote") last.text += "\n" + quoted;
        else add("quote", quoted);
      } else if (last && last.kind === "list" && /^\s/.test(line)) last.items[last.items.length - 1] += "\n" + line.trim();
      else if (last && last.kind === "text") last.text += "\n" + line;
      else add("text", line);
    }
    return blocks;
  }

  function appendInline(node, text) {
    let at = 0;
    for (const match of text.matchAll(kInline)) {
      if (match.index > at) node.append(text.slice(at, match.index));
      if (match[2] !== undefined) node.append(element("code", "", match[2]));
      else if (match[3] !== undefined) appendInline(node.appendChild(element("strong")), match[3]);
      else appendInline(node.appendChild(element("em")), match[4]);
      at = match.index + match[0].length;
    }
    node.append(text.slice(at));
  }

  function make(block) {
    if (block.kind === "code") {
      const node = element("div", "block"), bar = element("div", "bar"), pre = element("pre");
      const copy = element("button", "link", "Copy");
      copy.type = "button";
      const code = element("code", "", block.text);
      copy.addEventListener("click", () => copyText(copy, code.textContent));
      bar.append(element("span", "", block.language || "code"), copy);
      pre.dir = "ltr";
      pre.tabIndex = 0;
      pre.append(code);
      node.append(bar, pre);
      return node;
    }
    if (block.kind === "list") {
      const node = element(block.ordered ? "ol" : "ul");
      if (block.ordered && block.start !== 1) node.start = block.start;
      node.dir = "auto";
      for (const item of block.items) appendInline(node.appendChild(element("li")), item);
      return node;
    }
    const node = element({ heading: "h3", quote: "blockquote", text: "p" }[block.kind]);
    node.dir = "auto";
    appendInline(node, block.text);
    return node;
  }

  // Makes the children of `node` show `text`; those that show the right thing already stay, so that a growing answer costs its
  // last block only and keeps its selection.
  function show(node, text) {
    const blocks = blocksOf(text);
    blocks.forEach((block, i) => {
      const key = JSON.stringify(block), old = node.children[i];
      if (old && old.shownKey === key) return;
      if (old && old.shownKind === "code" && block.kind === "code" && old.shownLanguage === block.language) {
        old.querySelector("code").textContent = block.text;  // keeps its place when it is scrolled
        old.shownKey = key;
        return;
      }
      const made = make(block);
      Object.assign(made, { shownKey: key, shownKind: block.kind, shownLanguage: block.language });
      if (old) old.replaceWith(made);
      else node.append(made);
    });
    while (node.children.length > blocks.length) node.lastChild.remove();
  }

  return { show };
})();

async function copyText(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}
