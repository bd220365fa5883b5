// From a bundle's URL to an open session: manifest, files, module, engine.

import { beginBundle, keptManifest, openCache } from "./cache.js";
import { Downloader } from "./download.js";
import { MlcbError, abortReason } from "./errors.js";
import { chooseVariant, hostCapabilities } from "./host.js";
import {
  MANIFEST_NAME,
  checkVersion,
  fetchManifest,
  listed,
  neededFiles,
  parseManifest,
  unreachable,
} from "./manifest.js";
import { engineOptions } from "./options.js";
import { ABI_VERSION, Runtime, instantiate } from "./runtime.js";
import { Session } from "./session.js";
import { sha256 } from "./sha256.js";
import { Interrupted, openSource } from "./source.js";

const SUBTLE_MOST = 512 << 20; // bytes: the browser copies what it hashes
const PROGRESS_EVERY = 100; // milliseconds

/** Tells a caller how far loading is, not more often than it can be seen. */
class Progress {
  #tell;
  #last = 0;
  state = { phase: "manifest", loadedBytes: 0, totalBytes: 0, file: null };
  warnings = [];

  constructor(tell) {
    this.#tell = tell;
  }

  set(changes) {
    const turn = changes.phase !== undefined || changes.file !== this.state.file;
    Object.assign(this.state, changes);
    const whole = this.state.loadedBytes === this.state.totalBytes;
    const now = Date.now();
    if (!turn && !whole && now - this.#last < PROGRESS_EVERY) return;
    this.#last = now;
    this.#tell({ ...this.state });
  }

  warn(text) {
    this.warnings.push(text);
    this.#tell({ ...this.state, warning: text });
  }
}

function readManifest(text) {
  const manifest = parseManifest(text, "plan");
  checkVersion(manifest, "abi_version", ABI_VERSION);
  const isWeb =
    Array.isArray(manifest.variants) &&
    manifest.variants.length > 0 &&
    manifest.variants.every((entry) => entry.kernels?.endsWith(".wasm"));
  if (!isWeb) {
    throw new MlcbError(`the bundle is for ${manifest.target}, not for browsers and node`, {
      status: 501,
      code: "unsupported_host",
      hint: "build it for the target web-wasm32-cpu",
    });
  }
  return manifest;
}

// The manifest, from the source; if that does not answer, as it was kept.
async function findManifest(source, cache, signal, progress) {
  try {
    return await fetchManifest(source, signal);
  } catch (error) {
    if (!(error instanceof Interrupted)) throw error;
    const kept = cache === null ? null : await keptManifest(cache, source.location.href);
    if (kept === null) throw unreachable(error);
    progress.warn(
      `the server does not answer: what was kept of the bundle is used (${error.message})`,
    );
    return kept;
  }
}

// The browser's own sha256 is the faster one by far, where there is one and memory for its copy.
async function hashFile(runtime, address, bytes) {
  if (bytes.length <= SUBTLE_MOST && globalThis.crypto?.subtle) {
    try {
      return await sha256(bytes);
    } catch {
      // The module needs no copy.
    }
  }
  return runtime.sha256(address, bytes.length);
}

/** What of the world a load touches; tests bring others. */
export const world = {
  openSource,
  openCache,
  capabilities: hostCapabilities,
  compile: (bytes) => WebAssembly.compile(bytes),
  instantiate,
  firstPause: undefined,
};

/**
 * Loads a bundle. `load`: the plain options; `tell(progress)`; `signal`. What goes wrong is thrown:
 * an MlcbError, or the signal's reason.
 */
export async function loadSession(bundle, load, { tell = () => {}, signal = null, ...more } = {}) {
  const outside = { ...world, ...more };
  const progress = new Progress(tell);
  const warn = (text) => progress.warn(text);
  const stopIfAborted = () => {
    if (signal?.aborted) throw abortReason(signal);
  };
  stopIfAborted();
  progress.set({ phase: "manifest", file: MANIFEST_NAME });
  const capabilities = outside.capabilities();
  const source = await outside.openSource(bundle);
  const cache = source.isRemote ? await outside.openCache(load.cache, warn) : null;
  const text = await findManifest(source, cache, signal, progress);
  const manifest = readManifest(text);
  const variant = chooseVariant(manifest.variants, load, capabilities);
  const moduleFile = listed(manifest, variant.kernels);
  const files = neededFiles(manifest);
  let noteLoaded = async () => {};
  const storageFails = (error) =>
    warn(`the browser's storage fails (${error?.name}: ${error?.message})`);
  try {
    if (cache !== null) noteLoaded = await beginBundle(cache, source.location.href, text);
  } catch (error) {
    storageFails(error);
  }

  const totalBytes = [moduleFile, ...files].reduce((sum, file) => sum + file.size, 0);
  progress.set({ phase: "download", totalBytes, file: moduleFile.path });
  const downloader = new Downloader({
    source,
    cache,
    signal,
    warn,
    firstPause: outside.firstPause,
    progress: (bytes, file) =>
      progress.set({ loadedBytes: progress.state.loadedBytes + bytes, file: file.path }),
  });
  const code = new Uint8Array(moduleFile.size);
  await downloader.load(moduleFile, { view: () => code, sha256: () => sha256(code) });

  progress.set({ phase: "compile" });
  let runtime;
  try {
    runtime = new Runtime(await outside.instantiate(await outside.compile(code)));
  } catch (error) {
    if (error instanceof MlcbError) throw error;
    throw new MlcbError(`${moduleFile.path} of the bundle does not start here`, {
      status: 501,
      code: "unsupported_host",
      why: error?.message,
      hint: "use a newer browser",
      cause: error,
    });
  }

  const put = (path, size) => {
    const address = runtime.makeFile(`/bundle/${path}`, size);
    return { address, view: () => runtime.bytes(address, size) };
  };
  const manifestBytes = new TextEncoder().encode(text);
  put(MANIFEST_NAME, manifestBytes.length).view().set(manifestBytes);
  let chat;
  for (const file of files) {
    stopIfAborted();
    progress.set({ phase: "download", file: file.path });
    const { address, view } = put(file.path, file.size);
    const hash = () => hashFile(runtime, address, view());
    await downloader.load(file, { view, sha256: hash });
    if (file.path === manifest.chat) chat = JSON.parse(new TextDecoder().decode(view()));
  }

  stopIfAborted();
  progress.set({ phase: "open", file: null });
  if (chat === undefined) listed(manifest, manifest.chat);
  const options = engineOptions(load, variant, manifest.limits);
  const session = new Session(runtime, { manifest, chat, options });
  await noteLoaded().catch(storageFails);
  return { session, warnings: progress.warnings };
}
