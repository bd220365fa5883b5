// What MLC's browser client (npm: @mlc-ai/web-llm) needs to load a bundle of ours from any static
// host, and to get nothing that is damaged:
//
//   import { modelRecord, prefetch } from "https://example.org/bundle/platform/web/client.js";
//   const bundle = "https://example.org/bundle/";
//   await prefetch(bundle, { onProgress: ({ loadedBytes, totalBytes }) => {} });
//   const record = await modelRecord(bundle);
//   const engine = await CreateMLCEngine(record.model_id, { appConfig: { model_list: [record] } });

import { PIECE, beginBundle, clearCaches, notedManifests, openCache } from "./cache.js";
import { ApiCache } from "./cache_api.js";
import { Downloader } from "./download.js";
import { MlcbError, abortReason } from "./errors.js";
import { fetchManifest, listed, parseManifest, unreachable } from "./manifest.js";
import { sha256 } from "./sha256.js";
import { openSource } from "./source.js";

// Where the client looks: caches of these names, under the files' URLs.
const CONFIG_CACHE = "webllm/config";
const LIBRARY_CACHE = "webllm/wasm";
const MODEL_CACHE = "webllm/model";

const CACHES = [CONFIG_CACHE, LIBRARY_CACHE, MODEL_CACHE];

const MARK = "x-mlcb-sha256"; // of what was checked when it was stored
const LANES = 3; // files that come at once; each is in memory as a whole
const DEFAULT_BINDING = 2 ** 27; // bytes: what every WebGPU device can bind

async function open(bundle, signal) {
  const source = await openSource(bundle);
  try {
    const text = await fetchManifest(source, signal);
    return { source, text, manifest: parseManifest(text, "client") };
  } catch (error) {
    throw unreachable(error);
  }
}

// ---- what the client is told -----------------------------------------------------------------------

/**
 * The client puts "resolve/main/" behind the address of a model unless "/resolve/" is in it. It
 * looks for that in the text as it is, and resolves dots afterwards: this leads back to the folder.
 */
function modelAddress(base) {
  return /.+\/resolve\/.+\//.test(base) ? base : `${base}resolve/main/../../`;
}

/** A file's hash as Subresource Integrity spells it. */
function integrity(file) {
  const bytes = file.sha256.match(/../g).map((pair) => Number.parseInt(pair, 16));
  return `sha256-${btoa(String.fromCharCode(...bytes))}`;
}

/** The client's ModelRecord for a bundle. */
export async function modelRecord(bundle, { signal = null } = {}) {
  const { source, manifest } = await open(bundle, signal);
  const { client, needs, memory } = manifest;
  const base = source.location.href;
  return {
    model: modelAddress(base),
    model_id: `${manifest.name}-${manifest.scheme.name}`,
    model_lib: source.url(client.library).href,
    required_features: needs.features,
    vram_required_MB: Math.ceil(memory.total_bytes / 2 ** 20),
    low_resource_required: false,
    buffer_size_required_bytes: needs.limits.maxStorageBufferBindingSize ?? DEFAULT_BINDING,
    integrity: {
      config: integrity(listed(manifest, client.config)),
      model_lib: integrity(listed(manifest, client.library)),
      tokenizer: { [manifest.tokenizer]: integrity(listed(manifest, manifest.tokenizer)) },
      onFailure: "error",
    },
  };
}

// ---- files into the client's caches ----------------------------------------------------------------

/**
 * What is kept of a file that broke off: an entry of a cache, as `Downloader` uses them, that writes
 * nothing before keep(). A file that comes whole is written once, for the client.
 */
class Rest {
  #entry;
  #bytes;
  #high = 0;

  constructor(entry, bytes) {
    this.#entry = entry;
    this.#bytes = bytes;
  }

  length() {
    return this.#entry.length();
  }

  read(offset, size) {
    return this.#entry.read(offset, size);
  }

  async write(offset, bytes) {
    this.#high = offset + bytes.length;
  }

  async truncate(size) {
    this.#high = Math.min(this.#high, size);
    await this.#entry.truncate(size);
  }

  close() {}

  async keep() {
    for (let at = 0; at < this.#high; at += PIECE) {
      await this.#entry.write(at, this.#bytes.subarray(at, Math.min(at + PIECE, this.#high)));
    }
  }

  async drop() {
    await this.#entry.truncate(0);
  }
}

/** Files of one bundle: whether the client has them, and how it gets them. */
class Filler {
  constructor({ source, manifest, rests, signal, progress, warn }) {
    Object.assign(this, { source, manifest, rests, signal, progress, warn });
    this.stored = 0; // bytes that were there already
  }

  /** Puts a file where the client looks; gives its bytes if `wanted`. */
  async fill(path, cacheName, wanted = false) {
    const file = listed(this.manifest, path);
    const cache = await caches.open(cacheName);
    const url = this.source.url(path).href;
    const found = await this.#stored(cache, url, file);
    if (found !== null) {
      this.stored += file.size;
      this.progress(file.size, file);
      return wanted ? new Uint8Array(await found.arrayBuffer()) : null;
    }
    const bytes = await this.#download(file);
    await this.#store(cache, url, file, bytes);
    return bytes;
  }

  /** The stored answer if it is what the manifest names; another one is removed. */
  async #stored(cache, url, file) {
    const found = await cache.match(url);
    if (found === undefined) return null;
    if (found.headers.get(MARK) === file.sha256) return found;
    if (!found.headers.has(MARK)) {
      // from the client itself, which checks no params
      const bytes = new Uint8Array(await found.arrayBuffer());
      if (bytes.length === file.size && (await sha256(bytes)) === file.sha256) {
        await this.#store(cache, url, file, bytes);
        return (await cache.match(url)) ?? null;
      }
    }
    await cache.delete(url);
    return null;
  }

  async #download(file) {
    let bytes;
    try {
      bytes = new Uint8Array(file.size);
    } catch (error) {
      throw new MlcbError(`there is no memory for ${file.path}, ${file.size} bytes`, {
        status: 503,
        code: "out_of_memory",
        hint: "close other pages",
        cause: error,
      });
    }
    const { source, signal, progress, warn } = this;
    const rest = new Rest(await this.rests.entry(file.sha256), bytes);
    const cache = { entry: async () => rest };
    const downloader = new Downloader({ source, cache, signal, progress, warn });
    try {
      await downloader.load(file, { view: () => bytes, sha256: () => sha256(bytes) });
    } catch (error) {
      await rest
        .keep()
        .catch((reason) => warn(`what came of ${file.path} is not kept (${reason.message})`));
      throw error;
    }
    await rest.drop();
    return bytes;
  }

  async #store(cache, url, file, bytes) {
    const headers = { "content-length": String(bytes.length), [MARK]: file.sha256 };
    if (file.path.endsWith(".json")) headers["content-type"] = "application/json";
    if (file.path.endsWith(".wasm")) headers["content-type"] = "application/wasm";
    try {
      await cache.put(url, new Response(bytes, { headers }));
    } catch (error) {
      if (error?.name !== "QuotaExceededError") throw error;
      const { quota = 0, usage = 0 } = (await navigator.storage?.estimate?.()) ?? {};
      throw new MlcbError("the browser's storage has no room for the model", {
        status: 507,
        code: "storage_full",
        cause: error,
        why: `${file.path} needs ${file.size} bytes, ${Math.max(0, quota - usage)} are left for this site`,
        hint: "free disk space or the data of other sites; private windows get little",
      });
    }
  }
}

const forbidden = (why, hint = "allow site data for it") =>
  new MlcbError("this page may not store files", {
    status: 501,
    code: "unsupported_host",
    why,
    hint,
  });

const pathsOf = (texts) => texts.flatMap((text) => JSON.parse(text).files.map(({ path }) => path));

/** Removes files from where the client looks. */
async function removeFiles(source, paths) {
  for (const name of CACHES) {
    const cache = await caches.open(name);
    for (const path of paths) await cache.delete(source.url(path).href);
  }
}

/** Runs `work` for every item, a few at once; the first failure stops the others. */
async function inLanes(items, controller, work) {
  const waiting = [...items];
  const lane = async () => {
    while (waiting.length > 0 && !controller.signal.aborted) await work(waiting.shift());
  };
  const lanes = Array.from({ length: LANES }, lane);
  try {
    await Promise.all(lanes);
  } catch (error) {
    controller.abort(error);
    await Promise.allSettled(lanes); // what they have is kept before this ends
    throw error;
  }
}

/**
 * Downloads a bundle's files into the caches of MLC's client, each compared with the sha256 that
 * bundle.json names: a damaged one is named, and nothing of it gets there. A download that broke
 * off goes on where it was. `onProgress({phase, loadedBytes, totalBytes, file})`, and
 * `{..., warning}` for what goes otherwise than wished. Gives {totalBytes, storedBytes}: how much
 * there is, and how much of it was there before.
 */
export async function prefetch(bundle, { onProgress = () => {}, signal = null } = {}) {
  if (typeof caches === "undefined" || typeof crypto?.subtle === "undefined") {
    throw forbidden("browsers allow it on https and localhost only", "serve the page over https");
  }
  if (signal?.aborted) throw abortReason(signal);
  const state = { phase: "manifest", loadedBytes: 0, totalBytes: 0, file: "bundle.json" };
  const tell = (changes) => onProgress({ ...Object.assign(state, changes) });
  const warn = (warning) => onProgress({ ...state, warning });
  tell({});
  const { source, manifest, text } = await open(bundle, signal);
  const controller = new AbortController();
  const abort = () => controller.abort(abortReason(signal));
  signal?.addEventListener("abort", abort, { once: true });
  try {
    const rests = await openCache("cache-api", warn);
    if (rests === null) throw forbidden("the browser refuses to store anything for this site");
    const current = new Set(pathsOf([text]));
    const unlisted = (texts) => pathsOf(texts).filter((path) => !current.has(path));
    const noted = await notedManifests(rests, source.location.href);
    // A version that was begun only is forgotten by what follows; a loaded one stays till the end.
    if (noted.length > 1) {
      const loaded = new Set(pathsOf([noted[1]]));
      const begun = unlisted([noted[0]]);
      await removeFiles(
        source,
        begun.filter((path) => !loaded.has(path)),
      );
    }
    const noteLoaded = await beginBundle(rests, source.location.href, text);
    const progress = (bytes, file) =>
      tell({ loadedBytes: state.loadedBytes + bytes, file: file.path });
    const filler = new Filler({
      source,
      manifest,
      rests,
      signal: controller.signal,
      progress,
      warn,
    });
    const { client } = manifest;
    const index = await filler.fill(client.params, MODEL_CACHE, true);
    const shards = JSON.parse(new TextDecoder().decode(index)).records.map((item) => item.dataPath);
    const plan = [
      [client.config, CONFIG_CACHE],
      [client.library, LIBRARY_CACHE],
      [manifest.tokenizer, MODEL_CACHE],
      ...shards.map((path) => [path, MODEL_CACHE]),
    ];
    const sizes = [client.params, ...plan.map(([path]) => path)].map(
      (path) => listed(manifest, path).size,
    );
    const totalBytes = sizes.reduce((a, b) => a + b, 0);
    tell({ phase: "download", totalBytes });
    await inLanes(plan, controller, ([path, cache]) => filler.fill(path, cache));
    if (signal?.aborted) throw abortReason(signal);
    await removeFiles(source, unlisted(noted));
    await noteLoaded();
    tell({ loadedBytes: totalBytes, file: null });
    return { totalBytes, storedBytes: filler.stored };
  } finally {
    signal?.removeEventListener("abort", abort);
  }
}

/**
 * Removes what prefetch stored of a bundle: the files that its kept manifest lists, what came of
 * broken downloads (unless another bundle needs it), and the manifest. Where none is kept, the
 * server's says what the files are.
 */
export async function removeStored(bundle) {
  const source = await openSource(bundle);
  const base = source.location.href;
  const notes = await ApiCache.existing();
  const noted = notes === null ? [] : await notedManifests(notes, base);
  const texts = noted.length > 0 ? noted : [(await open(bundle, null)).text];
  await removeFiles(source, pathsOf(texts));
  await clearCaches(base);
}
