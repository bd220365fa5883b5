// What browsers keep of bundles: files by their sha256, so that equal files of several bundles are
// kept once and another version never mixes; and the manifest of each bundle by its URL.

import { ApiCache } from "./cache_api.js";
import { OpfsCache } from "./cache_opfs.js";
import { MlcbError } from "./errors.js";
import { sha256 } from "./sha256.js";

/** Bytes that are written at once; what a broken download loses at most, if the page dies. */
export const PIECE = 4 << 20;

const MANIFEST = "manifest-";

/** The cache that the option `cache` asks for, or null; `warn(text)` is told why there is none. */
export async function openCache(wanted, warn) {
  const kinds = { opfs: OpfsCache, "cache-api": ApiCache };
  if (wanted === "none") return null;
  if (wanted !== "auto" && !kinds[wanted]?.available) {
    throw new MlcbError(`there is no cache ${wanted} here`, {
      code: "invalid_option",
      param: "cache",
      why:
        wanted === "opfs"
          ? "it needs a worker, https (or localhost) and a newer browser"
          : "it needs a browser, and https (or localhost)",
      hint: "leave cache out",
    });
  }
  for (const kind of wanted === "auto" ? [OpfsCache, ApiCache] : [kinds[wanted]]) {
    if (!kind.available) continue;
    try {
      return await kind.open();
    } catch (error) {
      warn(`the browser refuses its storage (${error?.name}: ${error?.message})`);
    }
  }
  return null;
}

const manifestName = async (location) =>
  MANIFEST + (await sha256(new TextEncoder().encode(location)));

/** What is known of a bundle: {location, manifest, former}; null if nothing, or half written. */
async function read(cache, name) {
  const text = await cache.getText(name);
  try {
    return text === null ? null : JSON.parse(text);
  } catch {
    return null;
  }
}

/** The text of the manifest with which a bundle was last loaded, or null. */
export async function keptManifest(cache, location) {
  const known = await read(cache, await manifestName(location));
  return known === null ? null : (known.former ?? known.manifest);
}

/**
 * The texts of all manifests whose files may be kept of a bundle: of the version that was begun
 * last, and of the one that was loaded before, if that is another.
 */
export async function notedManifests(cache, location) {
  const known = await read(cache, await manifestName(location));
  return [known?.manifest, known?.former].filter((text) => typeof text === "string");
}

/**
 * Notes that a bundle is being loaded, so that its files stay; returns what notes that it was,
 * which drops files that only its former version had. Until then both versions are kept.
 */
export async function beginBundle(cache, location, manifest) {
  const name = await manifestName(location);
  const known = await read(cache, name);
  const isSame = known?.manifest === manifest;
  if (isSame && known.former === undefined) return async () => {};
  const former = known === null ? null : (known.former ?? (isSame ? null : known.manifest));
  await cache.putText(name, JSON.stringify({ location, manifest, former }));
  return async () => {
    await cache.putText(name, JSON.stringify({ location, manifest }));
    await dropUnused(cache);
  };
}

const shasOf = (manifest) =>
  manifest ? JSON.parse(manifest).files.map((file) => file.sha256) : [];

// Drops the files that no known bundle names.
async function dropUnused(cache) {
  const names = await cache.names();
  const used = new Set();
  for (const name of names.filter((other) => other.startsWith(MANIFEST))) {
    const known = await read(cache, name);
    if (known === null) await cache.remove(name);
    for (const sha of [...shasOf(known?.manifest), ...shasOf(known?.former)]) used.add(sha);
  }
  for (const name of names)
    if (!name.startsWith(MANIFEST) && !used.has(name)) await cache.remove(name);
}

/** Forgets a bundle (what others share stays), or without a location all of them. */
export async function clearCaches(location = null) {
  for (const kind of [OpfsCache, ApiCache]) {
    if (location === null) {
      await kind.clear();
      continue;
    }
    const cache = await kind.existing();
    if (cache === null) continue;
    await cache.remove(await manifestName(location));
    await dropUnused(cache);
  }
}
