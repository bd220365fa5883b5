// The worker's side: a session that is driven by messages. Each call is {call: number, name, args}
// and is answered by {call, value} or {call, error}; what a stream or a load tells meanwhile is
// {call, told}; {stop: number} aborts a call.

import { MlcbError, packError } from "./errors.js";
import { loadSession } from "./load.js";

/** Serves a port: `port.post(message, transfer)` sends; returns what takes messages. */
export function serve(port, outside = {}) {
  let session = null;
  const running = new Map(); // call: what stops it

  const named = {
    async load({ bundle, load }, told, call) {
      const controller = new AbortController();
      running.set(call, () => controller.abort());
      const loaded = await loadSession(bundle, load, {
        tell: told,
        signal: controller.signal,
        ...outside,
      });
      session = loaded.session;
      const { manifest, info } = session;
      return { manifest, info, warnings: loaded.warnings };
    },

    start({ kind, request }, told, call) {
      return new Promise((resolve, reject) => {
        const stop = session.start(kind, request, {
          chunk: (chunk) => told({ chunk }),
          done: resolve,
          fail: reject,
        });
        running.set(call, () => {
          stop();
          resolve(); // nobody waits for it any more
        });
        told({ started: true });
      });
    },

    ask({ method, args }) {
      return session[method](...args);
    },
  };

  return async (message) => {
    if (message.stop !== undefined) {
      running.get(message.stop)?.();
      return;
    }
    const { call, name, args } = message;
    try {
      if (session === null && name !== "load") throw new MlcbError("nothing is loaded yet");
      const value = await named[name](args, (told) => port.post({ call, told }), call);
      const isArray = ArrayBuffer.isView(value);
      port.post({ call, value }, isArray ? [value.buffer] : []);
    } catch (error) {
      port.post({ call, error: packError(error) });
    } finally {
      running.delete(call);
    }
  };
}
