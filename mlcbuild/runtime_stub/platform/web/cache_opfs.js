// Files of bundles in the origin private file system. Only workers can write to it in every
// browser. A file is named by its sha256 and holds what came so far, from its beginning.

const FOLDER = "mlcb-cache";

async function folder(create) {
  const root = await navigator.storage.getDirectory();
  return root.getDirectoryHandle(FOLDER, { create });
}

const isMissing = (error) => error?.name === "NotFoundError";

export class OpfsCache {
  kind = "opfs";

  static get available() {
    return (
      typeof FileSystemFileHandle !== "undefined" &&
      "createSyncAccessHandle" in FileSystemFileHandle.prototype &&
      typeof navigator?.storage?.getDirectory === "function"
    );
  }

  static async open() {
    const cache = new OpfsCache();
    cache.folder = await folder(true);
    return cache;
  }

  /** Removes everything; pages, which cannot open the cache, can do this too. */
  static async clear() {
    if (typeof globalThis.navigator?.storage?.getDirectory !== "function") return;
    const root = await navigator.storage.getDirectory();
    await root.removeEntry(FOLDER, { recursive: true }).catch((error) => {
      if (!isMissing(error)) throw error;
    });
  }

  /** Opens the cache to read names and remove files, where there is one. */
  static async existing() {
    if (typeof globalThis.navigator?.storage?.getDirectory !== "function") return null;
    const cache = new OpfsCache();
    try {
      cache.folder = await folder(false);
    } catch (error) {
      if (isMissing(error)) return null;
      throw error;
    }
    return cache;
  }

  async names() {
    const names = [];
    for await (const name of this.folder.keys()) names.push(name);
    return names;
  }

  async remove(name) {
    await this.folder.removeEntry(name).catch((error) => {
      if (!isMissing(error)) throw error;
    });
  }

  async getText(name) {
    try {
      return await (await (await this.folder.getFileHandle(name)).getFile()).text();
    } catch (error) {
      if (isMissing(error)) return null;
      throw error;
    }
  }

  async putText(name, text) {
    const entry = await this.entry(name);
    try {
      await entry.write(0, new TextEncoder().encode(text));
      await entry.truncate(new TextEncoder().encode(text).length);
    } finally {
      await entry.close();
    }
  }

  async entry(name) {
    return new OpfsEntry(await this.folder.getFileHandle(name, { create: true }));
  }
}

class OpfsEntry {
  #file;
  #handle = null;
  #read = null;

  constructor(file) {
    this.#file = file;
  }

  /** Bytes that are there. */
  async length() {
    return (await this.#file.getFile()).size;
  }

  /** What is there from a place on, at most so many bytes. Reading takes no lock. */
  async read(offset, size) {
    this.#read ??= await this.#file.getFile();
    return new Uint8Array(await this.#read.slice(offset, offset + size).arrayBuffer());
  }

  async write(offset, bytes) {
    this.#read = null; // a File is a snapshot
    const handle = await this.#locked();
    const written = handle.write(bytes, { at: offset });
    if (written !== bytes.length) throw new DOMException("the disk is full", "QuotaExceededError");
    handle.flush();
  }

  async truncate(size) {
    (await this.#locked()).truncate(size);
  }

  async close() {
    this.#handle?.close();
    this.#handle = null;
  }

  /** One writer at a time: a second tab gets NoModificationAllowedError. */
  async #locked() {
    this.#handle ??= await this.#file.createSyncAccessHandle();
    return this.#handle;
  }
}
