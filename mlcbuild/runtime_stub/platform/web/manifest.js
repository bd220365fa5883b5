// bundle.json: how it is read, and what both engines ask of it.

import { MlcbError } from "./errors.js";
import { Interrupted } from "./source.js";

export const MANIFEST_NAME = "bundle.json";

const BUNDLE_VERSION = 1;
const MANIFEST_MOST = 16 << 20; // bytes

// The kinds of bundles: what runs them, and the target that is built for it.
const KINDS = {
  plan: { runs: "the CPU engine (mlcb.js)", target: "web-wasm32-cpu" },
  client: { runs: "MLC's browser client (client.js)", target: "web-wasm32-webgpu" },
};

const damaged = { status: 500, code: "bundle_damaged", hint: "publish the bundle again, whole" };

const versionError = (text) =>
  new MlcbError(text, {
    status: 500,
    code: "bundle_version",
    hint: "use the platform/web of the bundle's own mlcbuild",
  });

/** Throws unless a version that the manifest names is the one that is known here. */
export function checkVersion(manifest, name, known) {
  const found = manifest?.[name];
  if (found !== known)
    throw versionError(`the bundle has ${name} ${found}, this loader knows ${known}`);
}

/** The text of a source's manifest; Interrupted if the source does not answer. */
export async function fetchManifest(source, signal) {
  const decoder = new TextDecoder();
  let text = "";
  let size = 0;
  for await (const bytes of source.read(MANIFEST_NAME, 0, signal)) {
    size += bytes.length;
    if (size > MANIFEST_MOST)
      throw new MlcbError(`${MANIFEST_NAME} of the bundle is too large`, damaged);
    text += decoder.decode(bytes, { stream: true });
  }
  return text + decoder.decode();
}

/** What a caller is told of a source that does not answer; another error stays what it is. */
export function unreachable(error) {
  if (!(error instanceof Interrupted)) return error;
  return new MlcbError(`${MANIFEST_NAME} of the bundle cannot be fetched`, {
    status: 502,
    code: "network_error",
    why: error.message,
    cause: error,
  });
}

/** Why a path may not stand in a manifest, in the words of mlcbuild's own check; null if it may. */
export function pathProblem(path) {
  if (typeof path !== "string") return "it is no text";
  if (path === "") return "it is empty";
  if (path.includes("\\") || path.includes("\0")) return "it holds a backslash or a NUL";
  if (path.startsWith("/") || path[1] === ":") return "it is absolute";
  if (path.split("/").some((part) => ["", ".", ".."].includes(part)))
    return "it has an empty, '.' or '..' part";
  return null;
}

function checkFile(file) {
  const problem = pathProblem(file?.path);
  if (problem !== null) {
    const path = JSON.stringify(file?.path);
    throw new MlcbError(`${MANIFEST_NAME} of the bundle lists a path that is refused: ${path}`, {
      ...damaged,
      why: problem,
    });
  }
  if (!Number.isSafeInteger(file.size) || file.size < 0 || !/^[0-9a-f]{64}$/.test(file.sha256)) {
    throw new MlcbError(
      `${MANIFEST_NAME} of the bundle has no size and sha256 of ${file.path}`,
      damaged,
    );
  }
}

/** The manifest that a text is, of a bundle of this kind: "plan" or "client". */
export function parseManifest(text, kind) {
  let manifest;
  try {
    manifest = JSON.parse(text);
  } catch (error) {
    throw new MlcbError(`${MANIFEST_NAME} of the bundle is not JSON`, {
      ...damaged,
      why: error.message,
      hint: "a bundle is the folder with bundle.json in it",
    });
  }
  return checkManifest(manifest, kind);
}

/** As parseManifest(), of what was parsed already. */
export function checkManifest(manifest, kind) {
  checkVersion(manifest, "bundle_version", BUNDLE_VERSION);
  const found = manifest.kind ?? "plan";
  if (found !== kind) {
    const { runs, target } = KINDS[kind];
    const other = KINDS[found]?.runs ?? `something else (${found})`;
    throw new MlcbError(`the bundle is for ${other}, not for ${runs}`, {
      status: 501,
      code: "unsupported_host",
      why: `it was built for ${manifest.target}`,
      hint: `build it for the target ${target}`,
    });
  }
  if (!Array.isArray(manifest.files))
    throw new MlcbError(`${MANIFEST_NAME} of the bundle lists no files`, damaged);
  manifest.files.forEach(checkFile);
  return manifest;
}

/** The entry of a file that the manifest must list. */
export function listed(manifest, path) {
  const file = manifest.files.find((entry) => entry.path === path);
  if (file === undefined)
    throw new MlcbError(`${MANIFEST_NAME} of the bundle does not list ${path}`, damaged);
  return file;
}

/** The files that an engine reads, besides the module of a variant: entries of the manifest. */
export function neededFiles(manifest) {
  if (manifest.kind === "client") {
    const { library, config, params } = manifest.client;
    const named = new Set([library, config, params, manifest.tokenizer]);
    return manifest.files.filter(
      ({ path }) => named.has(path) || /^params_shard_\d+\.bin$/.test(path),
    );
  }
  const packed = "tokenizer/tokenizer.bin"; // made of the tokenizer.json, which is not opened then
  const hasPacked = manifest.files.some((file) => file.path === packed);
  const named = new Set([
    manifest.chat,
    manifest.golden,
    hasPacked ? packed : manifest.tokenizer,
    ...manifest.variants.map((entry) => entry.plan), // it checks them all
  ]);
  return manifest.files.filter(({ path }) => named.has(path) || path.startsWith("params/"));
}
