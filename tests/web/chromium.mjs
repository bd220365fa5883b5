// A page of headless Chromium, driven over its debugging protocol: no package is needed.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/**
 * Starts a browser at a page. `evaluate(function, ...arguments)` runs in it and gives what it
 * returns.
 */
export async function openPage(program, url, flags = []) {
  const profile = mkdtempSync(join(tmpdir(), "chromium-"));
  const child = spawn(
    program,
    [
      "--headless=new",
      "--no-sandbox",
      "--disable-gpu",
      "--no-first-run",
      "--remote-debugging-port=0",
      `--user-data-dir=${profile}`,
      ...flags,
      "about:blank",
    ],
    { stdio: ["ignore", "ignore", "pipe"] },
  );
  const gone = new Promise((resolve) => {
    child.once("exit", resolve);
  });
  const endpoint = await new Promise((resolve, reject) => {
    let text = "";
    child.stderr.on("data", (data) => {
      text += data;
      const found = /DevTools listening on (ws:\S+)/.exec(text);
      if (found) resolve(found[1]);
    });
    gone.then(() => reject(new Error(`the browser does not start:\n${text}`)));
  });
  const socket = new WebSocket(endpoint);
  await new Promise((resolve, reject) => {
    socket.onopen = resolve;
    socket.onerror = reject;
  });
  const waiting = new Map();
  const logs = [];
  let next = 1;
  socket.onmessage = ({ data }) => {
    const { id, result, error, method, params } = JSON.parse(data);
    if (method === "Runtime.consoleAPICalled")
      logs.push(params.args.map((it) => it.value ?? it.description).join(" "));
    if (method === "Runtime.exceptionThrown")
      logs.push(params.exceptionDetails.exception?.description);
    const { resolve, reject } = waiting.get(id) ?? {};
    waiting.delete(id);
    if (error) reject?.(new Error(error.message));
    else resolve?.(result);
  };
  const send = (method, params = {}, sessionId = undefined) =>
    new Promise((resolve, reject) => {
      waiting.set(next, { resolve, reject });
      socket.send(JSON.stringify({ id: next++, method, params, sessionId }));
    });

  async function open(address) {
    const { targetId } = await send("Target.createTarget", { url: address });
    const { sessionId } = await send("Target.attachToTarget", { targetId, flatten: true });
    await send("Runtime.enable", {}, sessionId);
    const evaluate = async (body, ...given) => {
      const expression = `(${body})(${given.map((it) => JSON.stringify(it)).join(",")})`;
      const { result, exceptionDetails } = await send(
        "Runtime.evaluate",
        { expression, awaitPromise: true, returnByValue: true },
        sessionId,
      );
      if (exceptionDetails) {
        throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
      }
      return result.value;
    };
    while ((await evaluate("() => document.readyState + location.href")) !== `complete${address}`) {
      await new Promise((resolve) => {
        setTimeout(resolve, 20);
      });
    }
    return { evaluate, close: () => send("Target.closeTarget", { targetId }) };
  }

  return {
    ...(await open(url)),
    open,
    logs,
    async quit() {
      await send("Browser.close").catch(() => {});
      await gone;
      rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
    },
  };
}
