// The C interface of a runtime module: strings and buffers in its memory, statuses as errors.

import { MlcbError, Status, statusError } from "./errors.js";
import { makeImports } from "./wasi.js";

/** The version of mlcb.h that this module is written against. */
export const ABI_VERSION = 2;

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

const ADDRESSES = 2 ** 32; // a size of so many bytes would arrive as its remainder

/** Instantiates a compiled runtime module. */
export async function instantiate(module) {
  const { imports, attach } = makeImports(module);
  const { exports } = await WebAssembly.instantiate(module, imports);
  attach(exports.memory);
  exports._initialize?.();
  return exports;
}

/**
 * Calls into a module. `exports`: the functions of mlcb.h and mlcb_web.h, malloc, free and memory.
 * Memory moves when it grows, so that every access makes its view anew. After a trap nothing in
 * the module can be trusted: `crash` is set and every call throws it.
 */
export class Runtime {
  crash = null;

  constructor(exports) {
    this.exports = exports;
    const version = this.call("mlcb_abi_version");
    if (version !== ABI_VERSION) {
      throw new MlcbError("the bundle's runtime speaks another version of the interface", {
        status: 500,
        code: "bundle_version",
        why: `it has ABI version ${version}, this loader ${ABI_VERSION}`,
        hint: "use the platform/web of the bundle's own mlcbuild",
      });
    }
  }

  /** Calls a function; a trap becomes an error that says so. */
  call(name, ...args) {
    if (this.crash !== null) throw this.crash;
    const call = this.exports[name];
    if (typeof call !== "function") {
      throw new MlcbError(`the bundle's runtime lacks ${name}`, {
        status: 500,
        code: "bundle_version",
        hint: "build the bundle again",
      });
    }
    try {
      return call(...args);
    } catch (error) {
      this.crash = new MlcbError(`the runtime crashed: ${error?.message ?? error}`, {
        status: 500,
        code: "runtime_crashed",
        hint: "load the engine again",
        cause: error,
      });
      throw this.crash;
    }
  }

  /** Calls a function that returns mlcb_status. */
  check(name, ...args) {
    const status = this.call(name, ...args);
    if (status !== Status.OK) throw this.lastError(status);
  }

  /** The error of a status that the last call returned. */
  lastError(status) {
    return statusError(status, this.string(this.call("mlcb_last_error")));
  }

  // ---- memory -----------------------------------------------------------------------------------

  /** A view of memory; it is detached by the next call that grows memory. */
  bytes(address, size) {
    return new Uint8Array(this.exports.memory.buffer, address >>> 0, size);
  }

  /** The 32-bit word at an address, unsigned. */
  word(address) {
    return new DataView(this.exports.memory.buffer).getUint32(address >>> 0, true);
  }

  /** The 64-bit word at an address, as a BigInt. */
  longWord(address) {
    return new DataView(this.exports.memory.buffer).getBigUint64(address >>> 0, true);
  }

  /** The string that ends with a zero; "" for a null pointer. */
  string(address) {
    if (!address) return "";
    const memory = new Uint8Array(this.exports.memory.buffer);
    const start = address >>> 0;
    return decoder.decode(memory.subarray(start, memory.indexOf(0, start)));
  }

  /**
   * Runs `body` with an allocator: `bytes(data)` and `string(text)` copy into memory, `space(n)`
   * makes room; all is freed at the end.
   */
  scope(body) {
    const taken = [];
    const space = (size) => {
      if (size >= ADDRESSES) throw noMemory(`${size} bytes`);
      const address = this.call("malloc", Math.max(8, size)) >>> 0;
      if (address === 0) throw noMemory(`${size} bytes`);
      taken.push(address);
      return address;
    };
    const bytes = (data) => {
      const address = space(data.length);
      this.bytes(address, data.length).set(data);
      return address;
    };
    const string = (text) => (text === null ? 0 : bytes(encoder.encode(`${text}\0`)));
    try {
      return body({ space, bytes, string });
    } finally {
      if (this.crash === null) for (const address of taken) this.call("free", address);
    }
  }

  /** The bytes that a function fills a buffer with, however many: call(buffer, capacity, size*). */
  fill(capacity, call, itemSize = 1) {
    for (;;) {
      const found = this.scope((memory) => {
        const size = memory.space(4);
        const buffer = memory.space(capacity * itemSize);
        const status = call(buffer, capacity, size, memory);
        const count = this.word(size);
        if (status === Status.TOO_SMALL && count > capacity) return count;
        if (status !== Status.OK) throw this.lastError(status);
        return this.bytes(buffer, count * itemSize).slice();
      });
      if (typeof found !== "number") return found;
      capacity = found;
    }
  }

  // ---- files and hashes -------------------------------------------------------------------------

  /** Makes a file of the module's own; its address, to be filled by the caller. */
  makeFile(path, size) {
    const fits = size < ADDRESSES;
    const address = fits
      ? this.scope((memory) => this.call("mlcb_web_file", memory.string(path), size))
      : 0;
    if (address === 0) throw noMemory(`${path} (${size} bytes)`);
    return address >>> 0;
  }

  /** Removes a file. */
  removeFile(path) {
    this.scope((memory) => this.call("mlcb_web_file_remove", memory.string(path)));
  }

  /** The sha256 of memory, in hexadecimal. */
  sha256(address, size) {
    return this.scope((memory) => {
      const out = memory.space(32);
      this.call("mlcb_web_sha256", address, size, out);
      return hex(this.bytes(out, 32));
    });
  }
}

const noMemory = (what) =>
  statusError(
    Status.MEMORY,
    `no memory for ${what}\n` +
      "why: a page's WebAssembly memory ends at 4 GiB, or this machine has no more",
  );

/** Bytes in hexadecimal. */
export function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
