// The bundle that this page is part of, and the one for the other engine beside it.

import { MlcbError } from "../errors.js";
import { chooseVariant, hostCapabilities } from "../host.js";
import { checkManifest, listed, neededFiles } from "../manifest.js";
import { storedBytes } from "./stored.js";

/** What is an engine here: the kind of bundle that it runs, and the target that is built for it. */
export const ENGINES = {
  gpu: { kind: "client", target: "web-wasm32-webgpu", label: "WebGPU" },
  cpu: { kind: "plan", target: "web-wasm32-cpu", label: "CPU" },
};

/** The folder of the bundle that this page came from. */
export const HOME = new URL("../../../", import.meta.url).href;

/** The name of the other engine. */
export const otherEngine = (name) => (name === "gpu" ? "cpu" : "gpu");

async function getJson(url) {
  let response;
  try {
    response = await fetch(url, { cache: "no-cache" });
  } catch (error) {
    throw new MlcbError("the server does not answer", {
      status: 502,
      code: "network_error",
      why: `${url} cannot be fetched`,
      cause: error,
    });
  }
  if (response.status === 404) return null;
  if (!response.ok) {
    throw new MlcbError("the server refuses a file", {
      status: 502,
      code: "network_error",
      why: `${url} answers with status ${response.status}`,
    });
  }
  try {
    return await response.json();
  } catch (error) {
    throw new MlcbError(`${url} is not JSON`, {
      status: 500,
      code: "bundle_damaged",
      cause: error,
    });
  }
}

async function open(url) {
  const manifest = await getJson(new URL("bundle.json", url));
  if (manifest === null) return null;
  const engine = Object.keys(ENGINES).find(
    (name) => ENGINES[name].kind === (manifest.kind ?? "plan"),
  );
  if (engine === undefined) {
    throw new MlcbError("bundle.json is not one that this page knows", {
      status: 500,
      code: "bundle_version",
      why: `${url}bundle.json`,
    });
  }
  return { url, engine, manifest: checkManifest(manifest, ENGINES[engine].kind) };
}

/** This page's bundle: {url, engine, manifest}. */
export async function openHome() {
  const bundle = await open(HOME);
  if (bundle === null) {
    throw new MlcbError("bundle.json is not there", {
      status: 404,
      code: "bundle_not_found",
      why: `it should be at ${HOME}bundle.json`,
      hint: "the page is part of a bundle: serve the whole folder",
    });
  }
  return bundle;
}

/** The same model and scheme for another engine, in the folder beside this one; null if there is none. */
export async function openBeside(home, engine) {
  const bundle = await open(new URL(`../${ENGINES[engine].target}/`, home.url).href);
  if (bundle === null || bundle.engine !== engine) return null;
  const { name, scheme } = bundle.manifest;
  const isSame = name === home.manifest.name && scheme.name === home.manifest.scheme.name;
  return isSame ? bundle : null;
}

// The module that this browser takes; where it can run none, the first.
function moduleOf({ variants }) {
  try {
    return chooseVariant(variants, {}, hostCapabilities()).kernels;
  } catch {
    return variants[0].kernels;
  }
}

/** The files that the engine of a bundle keeps: entries of the manifest. */
export function keptFiles({ manifest, engine }) {
  const files = neededFiles(manifest);
  return engine === "gpu" ? files : [...files, listed(manifest, moduleOf(manifest))];
}

const CLIENT = "platform/web/web-llm.js"; // MLC's client, which a page loads as any script

/** Bytes that a first start downloads. */
export function downloadBytes(bundle) {
  const client = bundle.manifest.files.filter(
    ({ path }) => bundle.engine === "gpu" && path === CLIENT,
  );
  return [...keptFiles(bundle), ...client].reduce((sum, file) => sum + file.size, 0);
}

/** Bytes that this browser has still to keep for a bundle to be there at the next start. */
export async function missingBytes(bundle) {
  const files = keptFiles(bundle);
  const needed = files.reduce((sum, file) => sum + file.size, 0);
  if (globalThis.caches === undefined) return needed;
  return needed - (await storedBytes(bundle, files));
}

// Where the makers of a model say nothing: small models ramble when every word is drawn as it is.
const SAMPLING = { temperature: 0.7, topP: 0.95 };

/** How the model's makers sample, as far as the bundle says; 1 and 1 is what nobody chose. */
export async function samplingDefaults({ url, engine, manifest }) {
  const path = engine === "gpu" ? manifest.client.config : manifest.chat;
  const record = (await getJson(new URL(listed(manifest, path).path, url))) ?? {};
  const sampling = (engine === "gpu" ? record : record.sampling) ?? {};
  const { temperature = 1, top_p: topP = 1 } = sampling;
  return temperature === 1 && topP === 1 ? SAMPLING : { temperature, topP };
}
