// The page: choose an engine, load the model, talk to it.

import {
  ENGINES,
  downloadBytes,
  missingBytes,
  openBeside,
  openHome,
  otherEngine,
  samplingDefaults,
} from "./bundles.js";
import { Chat } from "./chat.js";
import { checkCpu, checkGpu, checkStorage } from "./checks.js";
import { $, make, showView } from "./dom.js";
import { STEPS, openEngine } from "./engines.js";
import { explain, isStop } from "./explain.js";
import { bytes, count } from "./format.js";
import { Settings } from "./settings.js";

class Page {
  #home;
  #found = {}; // engine: its bundle; null if there is none
  #wanted; // the engine that is chosen
  #engine = null;
  #loading = null; // what stops it
  #chat;

  constructor(home, settings) {
    this.#home = home;
    this.#found[home.engine] = home;
    this.#chat = new Chat(settings, (name) => this.#act(name));
    for (const radio of document.getElementsByName("engine")) {
      radio.addEventListener("change", () => this.choose(radio.value));
    }
    $("load").addEventListener("click", () => this.#load());
    $("cancel").addEventListener("click", () => {
      $("cancel").disabled = true; // what has come is stored first
      this.#loading?.abort();
    });
    $("again").addEventListener("click", () => this.#load());
    $("back").addEventListener("click", () => this.choose(this.#wanted));
    $("change").addEventListener("click", () => this.#leave(this.#wanted));
  }

  // ---- choosing ------------------------------------------------------------------------------------

  /** Shows the choice with one engine chosen, and whether it can run here. */
  async choose(name) {
    this.#wanted = name;
    for (const radio of document.getElementsByName("engine")) radio.checked = radio.value === name;
    showView("start");
    $("load").disabled = true;
    $("load").textContent = "Load the model";
    $("verdict").replaceChildren(
      make("p", { className: "small" }, "Looking at what this browser can do …"),
    );
    let verdict;
    try {
      verdict = await this.#judge(name);
    } catch (error) {
      const { title, text, advice } = explain(error);
      verdict = { findings: [{ what: `${title}. ${text}`, advice }] };
    }
    if (this.#wanted === name) this.#showVerdict(name, verdict);
  }

  /** {bundle, findings, note} for an engine; with findings it cannot run. */
  async #judge(name) {
    if (this.#found[name] === undefined) {
      const found = await openBeside(this.#home, name);
      if (found !== null) this.#found[name] = found;
      else return { findings: [this.#nothingBeside(name)] };
    }
    const bundle = this.#found[name];
    const findings = name === "gpu" ? await checkGpu(bundle.manifest) : checkCpu(bundle.manifest);
    const note = findings.length === 0 ? await this.#storageNote(bundle) : null;
    return { bundle, findings, note };
  }

  /** What there is to say about room for the model; null if nothing. */
  async #storageNote(bundle) {
    try {
      return await checkStorage(await missingBytes(bundle));
    } catch (error) {
      return `The browser refuses its storage (${error?.name}: ${error?.message}).`;
    }
  }

  #nothingBeside(name) {
    const { label, target } = ENGINES[name];
    return {
      what: `There is no bundle for ${label} of this model and scheme beside this one (../${target}/).`,
      advice: `Whoever publishes the model can build it for the target ${target} and put its folder there.`,
    };
  }

  #showVerdict(name, { bundle, findings, note }) {
    const verdict = $("verdict");
    verdict.replaceChildren();
    if (findings.length > 0) {
      verdict.append(
        make(
          "p",
          { className: "bad-head" },
          `The model cannot run on ${ENGINES[name].label} here.`,
        ),
        make("ul", {}, ...findings.map(({ what, advice }) => make("li", {}, `${what} ${advice}`))),
      );
      const other = otherEngine(name);
      if (this.#found[other] !== null) {
        const button = make("button", { type: "button" }, `Try ${ENGINES[other].label} instead`);
        button.addEventListener("click", () => this.choose(other));
        verdict.append(button);
      }
      return;
    }
    const { memory } = bundle.manifest;
    const size = bytes(downloadBytes(bundle));
    verdict.append(
      make(
        "p",
        { className: "small" },
        `${size} to download once; ${bytes(memory.total_bytes)} of memory while it runs, at most.`,
      ),
    );
    if (note !== null) verdict.append(make("p", {}, note));
    $("kept").hidden = globalThis.caches === undefined;
    $("load").disabled = false;
    $("load").textContent = `Load the model · ${size}`;
  }

  // ---- loading -------------------------------------------------------------------------------------

  async #load() {
    const name = this.#wanted;
    const bundle = this.#found[name];
    if (!bundle) {
      this.choose(name);
      return;
    }
    const controller = new AbortController();
    this.#loading = controller;
    this.#showSteps(name);
    showView("loading");
    $("cancel").disabled = false;
    $("cancel").focus();
    try {
      const engine = await openEngine(bundle, {
        signal: controller.signal,
        onProgress: (progress) => this.#showProgress(name, progress),
      });
      if (controller.signal.aborted) {
        await engine.close();
        throw new DOMException("stopped", "AbortError");
      }
      this.#engine = engine;
      this.#showChat(name);
    } catch (error) {
      if (isStop(error)) this.choose(name).then(() => $("load").focus());
      else showFailure(error);
    } finally {
      this.#loading = null;
    }
  }

  #showSteps(name) {
    $("steps").replaceChildren(
      ...STEPS[name].map(([step, label]) => {
        const item = make("li", {}, label);
        item.dataset.step = step;
        return item;
      }),
    );
    $("warning").hidden = true;
    $("warning").textContent = "";
    this.#showProgress(name, { step: STEPS[name][0][0], loaded: 0, total: 0, file: null });
  }

  #showProgress(name, { step, unit, loaded, total, file, warning }) {
    const order = STEPS[name].map(([known]) => known);
    const at = order.indexOf(step);
    for (const [place, item] of [...$("steps").children].entries()) {
      item.classList.toggle("done", place < at);
      if (place === at) item.setAttribute("aria-current", "step");
      else item.removeAttribute("aria-current");
    }
    const bar = $("bar");
    const part = total > 0 ? Math.min(1, loaded / total) : null;
    if (part === null) bar.removeAttribute("value");
    else bar.value = part;
    const label = STEPS[name][at]?.[1] ?? step;
    $("doing").textContent = part === null ? `${label} …` : `${label}: ${Math.floor(part * 100)} %`;
    const amounts = [];
    if (unit === "bytes" && total > 0) amounts.push(`${bytes(loaded)} of ${bytes(total)}`);
    if (file) amounts.push(file);
    $("amount").textContent = amounts.join(" · ");
    if (warning) {
      $("warning").hidden = false;
      $("warning").textContent = `Note: ${warning}.`;
    }
  }

  // ---- chatting ------------------------------------------------------------------------------------

  #showChat(name) {
    $("change").textContent = `Engine: ${ENGINES[name].label}`;
    $("change").title = "Choose another engine";
    showView("chat");
    this.#chat.start(this.#engine);
  }

  /** Unloads the model and goes back to the choice. */
  async #leave(name) {
    this.#chat.stop();
    const engine = this.#engine;
    this.#engine = null;
    const chosen = this.choose(name);
    await engine?.close();
    await chosen;
    document.querySelector("input[name=engine]:checked").focus();
  }

  async #act(name) {
    const wanted = name === "other" ? otherEngine(this.#wanted) : this.#wanted;
    await this.#leave(wanted);
    if (name === "reload" && !$("load").disabled) await this.#load();
  }
}

function showFailure(error) {
  const { title, text, advice, detail } = explain(error);
  $("failure-title").textContent = title;
  $("failure-text").textContent = text;
  $("failure-advice").textContent = advice;
  $("failure-detail").textContent = detail;
  $("failure-more").hidden = detail === "";
  $("failure-more").open = false;
  showView("failure");
  $("failure-title").focus();
}

function showFacts(bundle) {
  const { name, scheme, limits, model } = bundle.manifest;
  $("name").textContent = name;
  document.title = `${name} in your browser`;
  const size = bytes(downloadBytes(bundle));
  const facts = [scheme.name, size, `${count(limits.context_window_size)}-token context`];
  if (model.license) facts.push(model.license);
  $("facts").textContent = facts.join(" · ");
  $("facts").title = model.source;
}

async function start() {
  try {
    const home = await openHome();
    showFacts(home);
    const defaults = await samplingDefaults(home);
    const page = new Page(home, new Settings(defaults, home.manifest.limits.context_window_size));
    await page.choose(home.engine);
  } catch (error) {
    $("back").hidden = true;
    $("again").addEventListener("click", () => location.reload());
    showFailure(error);
  }
}

start();
