// The worker that owns the WebAssembly module: a module worker in browsers, a thread in node.

import { isNode } from "./host.js";
import { serve } from "./serve.js";

if (isNode) {
  const { parentPort } = await import("node:worker_threads");
  const take = serve({ post: (message, transfer) => parentPort.postMessage(message, transfer) });
  parentPort.on("message", take);
} else {
  const take = serve({ post: (message, transfer) => globalThis.postMessage(message, transfer) });
  globalThis.addEventListener("message", (event) => take(event.data));
  globalThis.postMessage({ ready: true }); // messages of before are lost while imports load
}
