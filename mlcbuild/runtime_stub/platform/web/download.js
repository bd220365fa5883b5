// One file of a bundle into memory: from the cache what is there, the rest from the source.

import { PIECE } from "./cache.js";
import { MlcbError, abortReason } from "./errors.js";
import { Interrupted } from "./source.js";

const TRIES = 4; // without a byte in between
const FIRST_PAUSE = 500; // milliseconds; doubled each time

const isQuota = (error) => error?.name === "QuotaExceededError";

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(abortReason(signal));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Thrown where the bytes cannot be what the manifest names, before they are all there. */
class WrongSize extends Error {}

/**
 * Fetches files. `progress(bytes, file)` hears of bytes that are there, negative ones were dropped;
 * `warn(text)` of what goes on otherwise than wished.
 */
export class Downloader {
  constructor({ source, cache, signal, progress, warn, firstPause = FIRST_PAUSE }) {
    Object.assign(this, { source, cache, signal, progress, warn, firstPause });
  }

  /**
   * Fills `target` with a file of the manifest. target: `view()` gives the memory (anew each time,
   * it may have moved), `sha256()` hashes it. A file that is not what the manifest says is dropped,
   * fetched again once, then refused.
   */
  async load(file, target) {
    const entry = await this.#entry(file);
    const wrong = [];
    try {
      const attempts = this.source.isRemote ? 2 : 1;
      for (let attempt = 0; attempt < attempts; ++attempt) {
        try {
          await this.#fill(file, target, attempt > 0 ? null : entry, attempt > 0);
          const found = await target.sha256();
          if (found === file.sha256) {
            if (attempt > 0 && entry !== null) await this.#rewrite(file, target, entry);
            return;
          }
          wrong.push(`its sha256 is ${found}, bundle.json says ${file.sha256}`);
        } catch (error) {
          if (!(error instanceof WrongSize)) throw error;
          wrong.push(error.message);
        }
        this.progress(-this.filled, file);
        await this.#keep(() => entry?.truncate(0));
        if (attempt + 1 < attempts) {
          this.warn(`${file.path} was damaged and is fetched again (${wrong[0]})`);
        }
      }
    } finally {
      await this.#keep(() => entry?.close());
    }
    throw new MlcbError(`${file.path} of the bundle is damaged: ${wrong.at(-1)}`, {
      status: 500,
      code: "bundle_damaged",
      hint: this.source.isRemote
        ? "publish the bundle again, whole"
        : "copy or build the bundle again",
    });
  }

  async #entry(file) {
    if (this.cache === null) return null;
    try {
      return await this.cache.entry(file.sha256);
    } catch (error) {
      return this.#loseCache(error);
    }
  }

  // Does something with the cache; without it things go on, but not silently.
  async #keep(work) {
    try {
      await work();
      return true;
    } catch (error) {
      this.#loseCache(error);
      return false;
    }
  }

  #loseCache(error) {
    if (this.cache !== null) {
      this.cache = null;
      this.warn(
        isQuota(error)
          ? "there is no room left in the browser's storage: the rest of the bundle is not kept"
          : error?.name === "NoModificationAllowedError"
            ? "another tab is fetching this bundle: here it is fetched without being kept"
            : `the browser's storage fails (${error?.name}: ${error?.message}): ` +
              "the rest of the bundle is not kept",
      );
    }
    return null;
  }

  #add(target, bytes, file) {
    if (this.filled + bytes.length > file.size) {
      throw new WrongSize(`it has more bytes than the ${file.size} that bundle.json says`);
    }
    target.view().set(bytes, this.filled);
    this.filled += bytes.length;
    this.progress(bytes.length, file);
  }

  async #fill(file, target, entry, reload) {
    this.filled = 0;
    if (entry !== null) await this.#fromCache(file, target, entry);
    let kept = Math.floor(this.filled / PIECE) * PIECE; // bytes that are kept in whole pieces
    let fresh = false; // whether there is more than what is kept
    const keep = async (whole) => {
      while (entry !== null && this.cache !== null && fresh) {
        const size = Math.min(PIECE, this.filled - kept);
        if (size === 0 || (size < PIECE && !whole)) return;
        const good = await this.#keep(() =>
          entry.write(kept, target.view().subarray(kept, kept + size)),
        );
        if (!good || size < PIECE) return;
        kept += size;
      }
    };
    let tries = 0;
    while (this.filled < file.size) {
      const before = this.filled;
      try {
        for await (const bytes of this.source.read(file.path, this.filled, this.signal, {
          reload,
        })) {
          if (bytes === null) throw new WrongSize("the server has another file now");
          this.#add(target, bytes, file);
          fresh = true;
          await keep(false);
        }
        if (this.filled < file.size) {
          const text = `it has ${this.filled} bytes, bundle.json says ${file.size}`;
          if (!this.source.isRemote || this.filled === before) throw new WrongSize(text);
          throw new Interrupted(`${file.path} broke off: ${text}`);
        }
      } catch (error) {
        await keep(true); // also of what is less than a piece: the next load goes on from there
        if (!(error instanceof Interrupted)) throw error;
        tries = this.filled > before ? 1 : tries + 1;
        if (tries >= TRIES) throw this.#gaveUp(file, error);
        await pause(this.firstPause * 2 ** (tries - 1), this.signal);
      }
    }
    await keep(true);
  }

  async #fromCache(file, target, entry) {
    try {
      if ((await entry.length()) > file.size) await entry.truncate(0);
      while (this.filled < file.size) {
        if (this.signal?.aborted) throw abortReason(this.signal);
        const bytes = await entry.read(this.filled, PIECE);
        if (bytes.length > 0) this.#add(target, bytes, file);
        if (bytes.length < PIECE) return;
      }
    } catch (error) {
      if (error instanceof WrongSize || this.signal?.aborted) throw error;
      this.#loseCache(error);
    }
  }

  async #rewrite(file, target, entry) {
    for (let at = 0; at < file.size && this.cache !== null; at += PIECE) {
      await this.#keep(() =>
        entry.write(at, target.view().subarray(at, Math.min(at + PIECE, file.size))),
      );
    }
  }

  #gaveUp(file, error) {
    return new MlcbError(`${file.path} of the bundle cannot be fetched`, {
      status: 502,
      code: "network_error",
      why: error.message,
      cause: error,
      hint: "load again: what came so far is kept where there is a cache",
    });
  }
}
