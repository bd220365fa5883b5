// An engine over a made-up module, and what it must leave behind.

import assert from "node:assert/strict";

import { Engine } from "../../mlcbuild/runtime_stub/platform/web/mlcb.js";
import { fakeWorld, makeBundle } from "./fake_bundle.mjs";
import { fakeWasm } from "./fake_wasm.mjs";

/** Messages that are answered with the text. */
export const say = (text) => [{ role: "user", content: `ECHO:${text}` }];

/** The engine, and what its module knows. */
export async function open(options = {}, { files = makeBundle(), wasm = fakeWasm() } = {}) {
  const world = fakeWorld(files, wasm);
  const engine = await Engine.loadWith(world, "fake", { worker: false, ...options });
  return { engine, state: wasm.state };
}

/** All of the runtime that is held: nothing but bundle and engine once requests are over. */
export function assertTidy(state) {
  assert.equal(state.live.size, 0, "memory is held");
  assert.equal(state.handles.size, 2, "parsers are held");
}

/** Lets the engine take some steps. */
export const turn = () =>
  new Promise((resolve) => {
    setTimeout(resolve, 5);
  });
