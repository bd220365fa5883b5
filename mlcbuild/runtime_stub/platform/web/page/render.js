// Text of a model as elements: paragraphs and fenced code. Only text nodes are made of it.

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;

/** The blocks of a text: {kind: "p" | "code", text, language}. A fence may still be open. */
export function blocks(text) {
  const found = [];
  let lines = [];
  let fence = null;
  const end = (kind, language = "") => {
    const content = lines.join("\n");
    if (kind === "code" || content.trim() !== "") found.push({ kind, text: content, language });
    lines = [];
  };
  for (const line of text.split("\n")) {
    const match = FENCE.exec(line);
    if (fence !== null) {
      const closes = match !== null && match[2] === "" && match[1].startsWith(fence.mark);
      if (closes) {
        end("code", fence.language);
        fence = null;
      } else {
        lines.push(line);
      }
    } else if (match !== null) {
      end("p");
      fence = { mark: match[1], language: match[2] };
    } else if (line.trim() === "") {
      end("p");
    } else {
      lines.push(line);
    }
  }
  end(fence === null ? "p" : "code", fence?.language);
  return found;
}

function element(block) {
  if (block.kind === "p") return document.createElement("p");
  const pre = document.createElement("pre");
  const code = document.createElement("code");
  if (block.language !== "") pre.setAttribute("aria-label", `Code, ${block.language}`);
  pre.append(code);
  return pre;
}

/** Shows a text in `place`, and a longer one later: what has not changed stays as it is. */
export function show(place, text) {
  const wanted = blocks(text);
  wanted.forEach((block, at) => {
    const tag = block.kind === "p" ? "P" : "PRE";
    let there = place.children[at];
    if (there?.tagName !== tag) {
      const made = element(block);
      if (there === undefined) place.append(made);
      else there.replaceWith(made);
      there = made;
    }
    const leaf = tag === "P" ? there : there.firstChild;
    const old = leaf.firstChild;
    if (old === null) leaf.append(block.text);
    else if (old.data !== block.text) old.data = block.text;
  });
  while (place.children.length > wanted.length) place.lastElementChild.remove();
}
