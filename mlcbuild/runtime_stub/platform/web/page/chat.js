// The conversation: what is said, what is shown, and the answer that is being written.

import { $, make } from "./dom.js";
import { explain, isStop } from "./explain.js";
import { figures } from "./format.js";
import { show } from "./render.js";

const NEAR = 80; // pixels from the end within which the view follows an answer

/** Keeps the end of the messages in view, until the reader scrolls away from it. */
class Follower {
  #log;
  #follows = true;

  constructor(log) {
    this.#log = log;
    log.addEventListener("scroll", () => {
      this.#follows = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR;
    });
    new ResizeObserver(() => this.follow()).observe(log); // a keyboard opens, the field grows
  }

  follow() {
    if (this.#follows) this.#log.scrollTop = this.#log.scrollHeight;
  }

  toEnd() {
    this.#follows = true;
    this.follow();
  }
}

/** An answer on the screen, updated once for each frame at most. */
class AnswerView {
  #text = "";
  #thought = "";
  #frame = 0;
  #changed;

  /** `changed` is called when more of it is shown. */
  constructor(changed) {
    this.#changed = changed;
    this.body = make("div", { className: "text waiting" });
    this.notes = make("div", { className: "figures" });
    this.element = make("article", { className: "message answer" }, this.body, this.notes);
    this.element.setAttribute("aria-label", "Answer");
  }

  get text() {
    return this.#text;
  }

  add(text, thought) {
    this.#text += text;
    this.#thought += thought;
    this.#frame ||= requestAnimationFrame(() => this.flush());
  }

  flush() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (this.#thought !== "") this.#showThought();
    if (this.#text !== "") {
      this.body.classList.remove("waiting");
      show(this.body, this.#text);
    }
    this.#changed();
  }

  #showThought() {
    if (this.thoughts === undefined) {
      this.thoughts = make("div", { className: "text" });
      const details = make(
        "details",
        { className: "thought" },
        make("summary", {}, "Thinking"),
        this.thoughts,
      );
      this.element.prepend(details);
    }
    show(this.thoughts, this.#thought);
  }

  end(notes) {
    this.body.classList.remove("waiting");
    this.notes.textContent = notes;
    this.flush();
  }
}

export class Chat {
  #engine;
  #settings;
  #said = []; // {role, content}
  #controller = null;
  #act;
  #view = new Follower($("log"));

  /** `act(name)` does what an error suggests: "reload" or "other". */
  constructor(settings, act) {
    this.#settings = settings;
    this.#act = act;
    const input = $("input");
    input.addEventListener("input", () => this.#fit());
    input.addEventListener("keydown", (event) => {
      const sends =
        event.key === "Enter" &&
        !event.shiftKey &&
        !event.isComposing &&
        !matchMedia("(pointer: coarse)").matches;
      if (!sends) return;
      event.preventDefault();
      if (this.#controller === null) $("form").requestSubmit();
    });
    $("form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#controller !== null) this.#controller.abort();
      else if (input.value.trim() !== "") this.#send(input.value.trim());
    });
    $("fresh").addEventListener("click", () => this.clear());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !$("settings").open) this.#controller?.abort();
    });
  }

  /** Begins with an engine that is loaded. */
  start(engine) {
    this.#engine = engine;
    this.clear();
    this.#controller = null; // an answer of the engine before holds this one up no longer
    this.#setBusy(false);
  }

  /** Forgets the conversation. */
  clear() {
    this.#controller?.abort();
    this.#said = [];
    $("messages").replaceChildren();
    $("empty").hidden = false;
    $("status").textContent = "";
    $("input").focus();
  }

  /** Stops the answer that is being written, if there is one. */
  stop() {
    this.#controller?.abort();
  }

  #fit() {
    const input = $("input");
    input.style.height = "auto";
    input.style.height = `${input.scrollHeight + 2}px`;
  }

  async #send(content) {
    const said = this.#said; // a new chat has a new list
    const user = make("div", { className: "text" });
    const asked = make("article", { className: "message user" }, user);
    asked.setAttribute("aria-label", "You");
    show(user, content);
    const view = new AnswerView(() => this.#view.follow());
    $("empty").hidden = true;
    $("messages").append(asked, view.element);
    $("input").value = "";
    this.#fit();
    this.#view.toEnd();
    const controller = new AbortController();
    this.#controller = controller;
    this.#setBusy(true);
    const { system, ...sampling } = this.#settings.values;
    const messages = [
      ...(system === "" ? [] : [{ role: "system", content: system }]),
      ...said,
      { role: "user", content },
    ];
    try {
      const notes = await this.#write(view, messages, sampling, controller.signal);
      // Of a question without an answer the model is not told: turns alternate.
      if (view.text !== "")
        said.push({ role: "user", content }, { role: "assistant", content: view.text });
      view.end(figures(notes));
      if (said === this.#said)
        $("status").textContent = view.text === "" ? "No answer." : `Answer: ${view.text}`;
    } catch (error) {
      view.end("");
      if (view.text === "") view.element.remove();
      this.#complain(error, content, asked);
    } finally {
      if (this.#controller === controller) {
        this.#controller = null;
        this.#setBusy(false);
      }
    }
  }

  /** Writes an answer; a stop ends it as it is. Gives its figures. */
  async #write(view, messages, sampling, signal) {
    const began = performance.now();
    const times = [];
    let tokens = null;
    let cut = false;
    let stopped = false;
    try {
      for await (const part of this.#engine.answer(messages, sampling, signal)) {
        if (part.text !== "" || part.thought !== "") {
          times.push(performance.now());
          view.add(part.text, part.thought);
        }
        tokens = part.tokens ?? tokens;
        cut ||= part.cut;
      }
    } catch (error) {
      if (!isStop(error)) throw error;
      stopped = true;
    }
    const count = tokens ?? times.length;
    const span = times.length > 1 ? times.at(-1) - times[0] : 0;
    return {
      tokens: count,
      firstAfter: times.length > 0 ? times[0] - began : null,
      rate: span > 0 && count > 1 ? ((count - 1) * 1000) / span : null,
      stopped,
      cut,
    };
  }

  #setBusy(busy) {
    const send = $("send");
    send.textContent = busy ? "Stop" : "Send";
    send.classList.toggle("primary", !busy);
    $("messages").setAttribute("aria-busy", String(busy));
    if (busy) $("status").textContent = "The model is writing.";
  }

  /** Shows an error below what was asked; the question goes back into the field. */
  #complain(error, content, asked) {
    const { title, text, advice, fresh, reload, other } = explain(error);
    const box = make(
      "div",
      { className: "message trouble" },
      make("strong", {}, title),
      make("p", {}, text),
      make("p", {}, advice),
    );
    box.setAttribute("role", "alert");
    const offers = [
      [fresh, "New chat", () => this.clear()],
      [reload, "Load the model again", () => this.#act("reload")],
      [other, "Use the other engine", () => this.#act("other")],
    ];
    const row = make("div", { className: "row" });
    for (const [offered, label, action] of offers) {
      if (!offered) continue;
      const button = make("button", { type: "button" }, label);
      button.addEventListener("click", action);
      row.append(button);
    }
    if (row.children.length > 0) box.append(row);
    if (!asked.isConnected) return; // a new chat has begun since
    asked.after(box);
    $("status").textContent = "";
    if ($("input").value === "") {
      $("input").value = content;
      this.#fit();
    }
    this.#view.toEnd();
  }
}
