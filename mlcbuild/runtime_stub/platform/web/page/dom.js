// Short forms for the page's elements.

/** The element with an id. */
export const $ = (id) => document.getElementById(id);

/** A new element with properties and children; children may be texts. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const VIEWS = ["unstarted", "start", "loading", "chat", "failure"];

/** Shows one part of the page and hides the others. */
export function showView(name) {
  for (const view of VIEWS) $(view).hidden = view !== name;
  $("tools").hidden = name !== "chat";
}
