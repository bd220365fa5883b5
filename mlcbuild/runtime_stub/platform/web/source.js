// Where the files of a bundle come from: a folder on disk (node) or a server.

import { MlcbError, abortReason } from "./errors.js";
import { isNode } from "./host.js";

const DISK_PIECE = 4 << 20;

const notFound = (path, where) =>
  new MlcbError(`${path} of the bundle is not there`, {
    status: 404,
    code: "bundle_not_found",
    why: where,
    hint: "a bundle is the folder with bundle.json in it",
  });

/** Thrown where another try may help: the connection, or a server that is busy. */
export class Interrupted extends Error {}

/** A folder on disk. */
class DiskSource {
  isRemote = false;

  constructor(folder) {
    this.location = folder;
  }

  async *read(path, from, signal) {
    const { open } = await import("node:fs/promises");
    const { join } = await import("node:path");
    const where = join(this.location, path);
    let file;
    try {
      file = await open(where);
    } catch (error) {
      if (error.code === "ENOENT" || error.code === "ENOTDIR") throw notFound(path, where);
      throw new MlcbError(`${path} of the bundle cannot be read`, {
        status: 500,
        code: "bundle_not_found",
        why: error.message,
        cause: error,
      });
    }
    try {
      const piece = new Uint8Array(DISK_PIECE);
      for (let at = from; ; ) {
        if (signal?.aborted) throw abortReason(signal);
        const { bytesRead } = await file.read(piece, 0, piece.length, at);
        if (bytesRead === 0) return;
        yield piece.subarray(0, bytesRead);
        at += bytesRead;
      }
    } finally {
      await file.close();
    }
  }
}

/** A server. */
class HttpSource {
  isRemote = true;

  /** `address`: of the folder; its query goes with each request, and is part of no name. */
  constructor(address, fetchFunction) {
    this.address = address;
    this.location = new URL(address);
    this.location.search = "";
    this.fetch = fetchFunction;
  }

  /** Where a file is, without the query. */
  url(path) {
    return new URL(path.split("/").map(encodeURIComponent).join("/"), this.location);
  }

  /** The bytes of a file from a place on, in pieces as they come. */
  async *read(path, from, signal, { reload = false } = {}) {
    const url = this.url(path); // for messages: a query may be a secret
    const asked = new URL(url);
    asked.search = this.address.search;
    const headers = from > 0 ? { Range: `bytes=${from}-` } : {};
    let response;
    try {
      // What is kept, is kept by the cache of this module: not twice.
      response = await this.fetch(asked, { headers, signal, cache: reload ? "reload" : "no-store" });
    } catch (error) {
      if (signal?.aborted) throw abortReason(signal);
      throw new Interrupted(`${url} cannot be fetched: ${reasonOf(error)}`, { cause: error });
    }
    if (response.status === 416) {
      // shorter than what is there already
      yield null;
      return;
    }
    if (response.status === 404 || response.status === 410) throw notFound(path, url.href);
    if (response.status >= 500 || response.status === 429 || response.status === 408) {
      throw new Interrupted(`${url} answers with status ${response.status}`);
    }
    if (!response.ok) {
      throw new MlcbError(`${path} of the bundle cannot be fetched`, {
        status: 502,
        code: "network_error",
        why: `${url} answers with status ${response.status}`,
      });
    }
    // A server without ranges sends the whole: what is there already is passed over.
    let skip = from - startOf(response, from);
    if (skip < 0) {
      yield null;
      return;
    }
    if (response.body === null) return;
    const reader = response.body.getReader();
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        if (skip >= value.length) {
          skip -= value.length;
        } else {
          yield skip > 0 ? value.subarray(skip) : value;
          skip = 0;
        }
      }
    } catch (error) {
      if (signal?.aborted) throw abortReason(signal);
      throw new Interrupted(`${url} broke off: ${reasonOf(error)}`, { cause: error });
    } finally {
      reader.cancel().catch(() => {}); // after a break there is nothing left to cancel
    }
  }
}

const reasonOf = (error) => error?.cause?.message || error?.message || String(error);

// Where the body of an answer begins in the file. Other origins may hide Content-Range; a wrong
// guess is found by the sha256.
function startOf(response, asked) {
  if (response.status !== 206) return 0;
  const range = /^bytes (\d+)-/.exec(response.headers.get("content-range") ?? "");
  return range ? Number(range[1]) : asked;
}

/**
 * The source of a bundle that is given as a URL, a path (node), or either of its bundle.json. The
 * query of a URL (a signature, a token) goes with the request of each file.
 */
export async function openSource(
  bundle,
  { fetch: fetchFunction = (...args) => fetch(...args) } = {},
) {
  if (!(bundle instanceof URL) && (typeof bundle !== "string" || bundle === "")) {
    const found = bundle === "" ? "an empty text" : bundle === null ? "null" : typeof bundle;
    throw new MlcbError(`a bundle is given as its URL${isNode ? " or folder" : ""}, not ${found}`, {
      code: "invalid_option",
      param: "bundle",
    });
  }
  const withoutName = (path) => path.replace(/(^|\/)bundle\.json$/, "$1");
  const text = String(bundle);
  if (isNode && !/^(https?|blob|data):/i.test(text)) {
    const { fileURLToPath } = await import("node:url");
    const { resolve } = await import("node:path");
    const path = text.startsWith("file:") ? fileURLToPath(text) : text;
    return new DiskSource(resolve(withoutName(path)));
  }
  const page = globalThis.document?.baseURI ?? globalThis.location?.href;
  const base = new URL(text, page);
  base.hash = "";
  base.pathname = withoutName(base.pathname);
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  return new HttpSource(base, fetchFunction);
}
