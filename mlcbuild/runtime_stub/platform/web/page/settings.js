// The settings of a chat and their panel.

import { $ } from "./dom.js";

const DEFAULT_MOST = 512; // tokens of an answer

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

export class Settings {
  #defaults;
  #window;

  /** `defaults`: {temperature, topP} of the model; `window`: its context in tokens. */
  constructor(defaults, window) {
    this.#window = window;
    this.#defaults = { system: "", most: Math.min(DEFAULT_MOST, window), ...defaults };
    this.values = { ...this.#defaults };
    for (const name of ["temperature", "top-p"]) {
      $(name).addEventListener("input", () => {
        $(`${name}-value`).value = Number($(name).value).toFixed(2);
      });
    }
    $("tune").addEventListener("click", () => this.#open());
    $("reset").addEventListener("click", () => {
      this.#show(this.#defaults);
    });
    $("settings").addEventListener("close", () => this.#take());
  }

  #open() {
    this.#show(this.values);
    $("settings").showModal();
  }

  #show({ system, temperature, topP, most }) {
    $("system").value = system;
    $("temperature").value = temperature;
    $("top-p").value = topP;
    $("most").max = this.#window;
    $("most").value = most;
    $("temperature-value").value = Number($("temperature").value).toFixed(2);
    $("top-p-value").value = Number($("top-p").value).toFixed(2);
  }

  /** Escape keeps the changes, too: there is nothing to lose. */
  #take() {
    const most = Math.round(Number($("most").value));
    this.values = {
      system: $("system").value.trim(),
      temperature: Number($("temperature").value),
      topP: Number($("top-p").value),
      most: Number.isFinite(most) && most > 0 ? clamp(most, 1, this.#window) : this.values.most,
    };
  }
}
