// Files of bundles in the Cache API, in pieces: an answer there cannot grow. For pages without a
// worker, and browsers without the origin private file system.

import { PIECE } from "./cache.js";

const NAME = "mlcb-cache";
const SPACE = "https://mlcb.invalid/"; // keys are URLs; nothing is ever fetched from them

const keyOf = (name, piece) => `${SPACE}${name}/${piece}`;

export class ApiCache {
  kind = "cache-api";

  static get available() {
    return typeof caches !== "undefined";
  }

  static async open() {
    const cache = new ApiCache();
    cache.cache = await caches.open(NAME);
    return cache;
  }

  static async clear() {
    if (ApiCache.available) await caches.delete(NAME);
  }

  static async existing() {
    return ApiCache.available && (await caches.has(NAME)) ? ApiCache.open() : null;
  }

  async names() {
    const keys = await this.cache.keys();
    return [...new Set(keys.map((request) => request.url.slice(SPACE.length).split("/")[0]))];
  }

  async remove(name) {
    for (let piece = 0; await this.cache.delete(keyOf(name, piece)); ++piece);
  }

  async getText(name) {
    return (await this.cache.match(keyOf(name, 0)))?.text() ?? null;
  }

  async putText(name, text) {
    await this.cache.put(keyOf(name, 0), new Response(text));
  }

  async entry(name) {
    return new ApiEntry(this.cache, name);
  }
}

class ApiEntry {
  #cache;
  #name;
  #sizes = [];

  constructor(cache, name) {
    this.#cache = cache;
    this.#name = name;
  }

  async length() {
    this.#sizes = [];
    for (let piece = 0; ; ++piece) {
      const found = await this.#cache.match(keyOf(this.#name, piece));
      if (found === undefined) break;
      this.#sizes.push(Number(found.headers.get("x-size")));
      if (this.#sizes[piece] < PIECE) break;
    }
    return this.#sizes.reduce((a, b) => a + b, 0);
  }

  /** One piece at most: offsets are multiples of PIECE. */
  async read(offset) {
    const found = await this.#cache.match(keyOf(this.#name, offset / PIECE));
    return found === undefined ? new Uint8Array() : new Uint8Array(await found.arrayBuffer());
  }

  async write(offset, bytes) {
    // A copy: what a Response holds must not be memory of the module, which moves.
    const body = new Response(bytes.slice(), { headers: { "x-size": String(bytes.length) } });
    await this.#cache.put(keyOf(this.#name, offset / PIECE), body);
  }

  async truncate(size) {
    for (
      let piece = Math.ceil(size / PIECE);
      await this.#cache.delete(keyOf(this.#name, piece));
      ++piece
    );
  }

  async close() {}
}
