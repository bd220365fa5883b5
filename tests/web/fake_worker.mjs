// A worker as platform/web/worker.js is, over a made-up bundle and module.

import { parentPort } from "node:worker_threads";

import { serve } from "../../mlcbuild/runtime_stub/platform/web/serve.js";
import { fakeWorld } from "./fake_bundle.mjs";

const world = fakeWorld();
const take = serve(
  { post: (message, transfer) => parentPort.postMessage(message, transfer) },
  world,
);
parentPort.on("message", (message) => {
  if (message.args?.request?.user === "exit") process.exit(3);
  if (message.args?.request?.user === "throw") throw new Error("out of the blue");
  else take(message);
});
