// How much of a bundle this browser keeps already.

import { ApiCache } from "../cache_api.js";
import { OpfsCache } from "../cache_opfs.js";

/** Bytes that a cache of ours holds of each file; 0 where there is no such cache. */
async function keptIn(kind, files) {
  const cache = await kind.existing();
  if (cache === null) return files.map(() => 0);
  const names = new Set(await cache.names());
  const size = async (name) => (names.has(name) ? (await cache.entry(name)).length() : 0);
  return Promise.all(files.map((file) => size(file.sha256)));
}

/** Bytes of a bundle's files that no download brings again; `files`: entries of its manifest. */
export async function storedBytes({ url, engine }, files) {
  const known = [await keptIn(ApiCache, files)];
  if (engine === "gpu") {
    // Under their URLs, whole: for MLC's client.
    const found = (file) => caches.match(new URL(file.path, url).href);
    known.push(
      await Promise.all(files.map(async (file) => ((await found(file)) ? file.size : 0))),
    );
  } else {
    known.push(await keptIn(OpfsCache, files));
  }
  return files.reduce(
    (sum, file, i) => sum + Math.min(file.size, Math.max(...known.map((sizes) => sizes[i]))),
    0,
  );
}
