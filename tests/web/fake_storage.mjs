// The browser's storage in memory: the Cache API, and the origin private file system of a worker.

const quota = () => new DOMException("no room", "QuotaExceededError");

/** Puts `caches` into the world; `limit`: bytes that fit. Returns what it holds. */
export function fakeCaches({ limit = Infinity } = {}) {
  const stores = new Map();
  const state = { stores, limit };
  const used = () =>
    [...stores.values()]
      .flatMap((store) => [...store.values()])
      .reduce((sum, { bytes }) => sum + bytes.length, 0);
  globalThis.caches = {
    async open(name) {
      if (!stores.has(name)) stores.set(name, new Map());
      const store = stores.get(name);
      return {
        async put(key, response) {
          const bytes = new Uint8Array(await response.arrayBuffer());
          if (used() + bytes.length > state.limit) throw quota();
          store.set(String(key), { bytes, headers: new Headers(response.headers) });
        },
        async match(key) {
          const found = store.get(String(key));
          return found && new Response(found.bytes.slice(), { headers: found.headers });
        },
        delete: async (key) => store.delete(String(key)),
        keys: async () => [...store.keys()].map((url) => new Request(url)),
      };
    },
    has: async (name) => stores.has(name),
    delete: async (name) => stores.delete(name),
  };
  return state;
}

/**
 * Puts `navigator.storage` and FileSystemFileHandle into the world. Returns the files of the cache.
 */
export function fakeOpfs({ limit = Infinity } = {}) {
  const files = new Map();
  const state = { files, limit, locked: new Set(), folder: false };
  const missing = () => new DOMException("it is not there", "NotFoundError");
  globalThis.FileSystemFileHandle = class {
    constructor(name) {
      this.name = name;
    }

    async getFile() {
      return new Blob([files.get(this.name).slice()]);
    }

    async createSyncAccessHandle() {
      const { name } = this;
      if (state.locked.has(name))
        throw new DOMException("it is locked", "NoModificationAllowedError");
      state.locked.add(name);
      return {
        write(bytes, { at }) {
          const old = files.get(name);
          const size = Math.max(old.length, at + bytes.length);
          if (size > state.limit) throw quota();
          const whole = new Uint8Array(size);
          whole.set(old);
          whole.set(bytes, at);
          files.set(name, whole);
          return bytes.length;
        },
        truncate: (size) => files.set(name, files.get(name).slice(0, size)),
        flush() {},
        close: () => state.locked.delete(name),
      };
    }
  };
  const folder = {
    async getFileHandle(name, { create = false } = {}) {
      if (!files.has(name)) {
        if (!create) throw missing();
        files.set(name, new Uint8Array());
      }
      return new globalThis.FileSystemFileHandle(name);
    },
    async removeEntry(name) {
      if (!files.delete(name)) throw missing();
    },
    keys: async function* keys() {
      yield* files.keys();
    },
  };
  const root = {
    async getDirectoryHandle(name, { create }) {
      if (!state.folder && !create) throw missing();
      state.folder = true;
      return folder;
    },
    async removeEntry() {
      if (!state.folder) throw missing();
      state.folder = false;
      files.clear();
    },
  };
  Object.defineProperty(globalThis, "navigator", {
    configurable: true,
    value: { storage: { getDirectory: async () => root } },
  });
  return state;
}

/** Takes both out again. */
export function noStorage() {
  delete globalThis.caches;
  delete globalThis.FileSystemFileHandle;
  Object.defineProperty(globalThis, "navigator", { configurable: true, value: undefined });
}
