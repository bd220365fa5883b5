// The imports of a runtime module: as much of WASI as a program without files needs.

import { MlcbError } from "./errors.js";

const OK = 0;
const BAD_DESCRIPTOR = 8;
const NOT_SUPPORTED = 58;
const CHARACTER_DEVICE = 2;
const RANDOM_PIECE = 65536; // getRandomValues takes no more at once

/** Thrown by proc_exit: a runtime never exits unless it has crashed. */
export class ExitError extends Error {
  constructor(code) {
    super(`the runtime exited with code ${code}`);
    this.name = "ExitError";
  }
}

/** Lines of what is written to stdout and stderr. */
class LineWriter {
  #decoder = new TextDecoder();
  #line = "";

  constructor(log) {
    this.log = log;
  }

  write(bytes) {
    this.#line += this.#decoder.decode(bytes, { stream: true });
    const lines = this.#line.split("\n");
    this.#line = lines.pop();
    for (const line of lines) this.log(line);
  }
}

/**
 * The import object for a module; `attach(memory)` must follow instantiation. `log(line)` takes
 * what the runtime prints, which is nothing unless it crashes.
 */
export function makeImports(module, log = (line) => console.error(`mlcb: ${line}`)) {
  let memory = null;
  const view = () => new DataView(memory.buffer);
  const bytes = (address, size) => new Uint8Array(memory.buffer, address >>> 0, size >>> 0);
  const writers = new Map([
    [1, new LineWriter(log)],
    [2, new LineWriter(log)],
  ]);

  const known = {
    args_get: () => OK,
    args_sizes_get: (count, size) => setTwo(count, 0, size, 0),
    environ_get: () => OK,
    environ_sizes_get: (count, size) => setTwo(count, 0, size, 0),
    clock_res_get(clock, out) {
      view().setBigUint64(out >>> 0, 1000n, true);
      return OK;
    },
    clock_time_get(clock, precision, out) {
      const milliseconds = clock === 0 ? Date.now() : performance.now();
      view().setBigUint64(out >>> 0, BigInt(Math.round(milliseconds * 1e6)), true);
      return OK;
    },
    fd_write(descriptor, vectors, count, written) {
      const writer = writers.get(descriptor);
      if (writer === undefined) return BAD_DESCRIPTOR;
      let total = 0;
      for (let i = 0; i < count; ++i) {
        const at = (vectors >>> 0) + 8 * i;
        const size = view().getUint32(at + 4, true);
        writer.write(bytes(view().getUint32(at, true), size).slice());
        total += size;
      }
      view().setUint32(written >>> 0, total, true);
      return OK;
    },
    fd_fdstat_get(descriptor, out) {
      if (!writers.has(descriptor) && descriptor !== 0) return BAD_DESCRIPTOR;
      bytes(out, 24).fill(0);
      view().setUint8(out >>> 0, CHARACTER_DEVICE);
      return OK;
    },
    fd_close: () => BAD_DESCRIPTOR,
    fd_read: () => BAD_DESCRIPTOR,
    fd_seek: () => BAD_DESCRIPTOR,
    fd_prestat_get: () => BAD_DESCRIPTOR,
    random_get(out, size) {
      for (let at = 0; at < size; at += RANDOM_PIECE) {
        // getRandomValues may refuse a view of WebAssembly memory, a copy it never does.
        const piece = new Uint8Array(Math.min(RANDOM_PIECE, size - at));
        bytes(out + at, piece.length).set(crypto.getRandomValues(piece));
      }
      return OK;
    },
    sched_yield: () => OK,
    proc_exit(code) {
      throw new ExitError(code);
    },
  };

  function setTwo(first, one, second, two) {
    view().setUint32(first >>> 0, one, true);
    view().setUint32(second >>> 0, two, true);
    return OK;
  }

  const imports = {};
  for (const { module: space, name, kind } of WebAssembly.Module.imports(module)) {
    imports[space] ??= {};
    if (space === "wasi_snapshot_preview1" && kind === "function") {
      imports[space][name] = known[name] ?? (() => NOT_SUPPORTED);
    } else if (name === "emscripten_notify_memory_growth") {
      imports[space][name] = () => {}; // every access here makes its view anew
    } else {
      throw new MlcbError(
        `the runtime module asks for ${space}.${name}, which this loader has not`,
        {
          status: 500,
          code: "bundle_version",
          hint: "use the platform/web of the bundle's own mlcbuild",
        },
      );
    }
  }
  return {
    imports,
    attach: (exported) => {
      memory = exported;
    },
  };
}
