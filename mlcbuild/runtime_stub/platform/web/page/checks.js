// What the browser lacks for an engine. Each finding is {what, advice}, both whole sentences.

import { chooseVariant, hostCapabilities } from "../host.js";
import { bytes, count } from "./format.js";

const MIB = 2 ** 20;

// What @mlc-ai/web-llm asks of every device when it starts.
const CLIENT_LIMITS = {
  maxBufferSize: 256 * MIB,
  maxStorageBufferBindingSize: 128 * MIB,
  maxComputeWorkgroupStorageSize: 32 * 1024,
  maxStorageBuffersPerShaderStage: 10,
};

// Where it takes either all of this, or only what CLIENT_LIMITS says.
const CLIENT_TAKES = 1024 * MIB;
const ALL_OR_LEAST = ["maxBufferSize", "maxStorageBufferBindingSize"];

const LIMIT_NAMES = {
  maxBufferSize: "the largest block of graphics memory",
  maxStorageBufferBindingSize: "graphics memory that one step can use at once",
  maxComputeWorkgroupStorageSize: "memory that a group of threads shares",
  maxStorageBuffersPerShaderStage: "blocks of memory that one step can use at once",
  maxComputeInvocationsPerWorkgroup: "threads in a group",
};

const FEATURE_NAMES = {
  "shader-f16": "16-bit numbers in shaders (shader-f16)",
  subgroups: "subgroups",
};

const INSECURE = {
  what: "This page was not opened over https.",
  advice: "Browsers offer WebGPU and storage on https:// and on localhost only: open it there.",
};

/** What the client gets of a limit on a device whose adapter has `has`. */
function granted(name, has) {
  if (!ALL_OR_LEAST.includes(name)) return has;
  return has >= CLIENT_TAKES ? CLIENT_TAKES : Math.min(has, CLIENT_LIMITS[name]);
}

function limitFindings(needs, limits) {
  const wanted = { ...needs };
  for (const [name, value] of Object.entries(CLIENT_LIMITS)) {
    wanted[name] = Math.max(value, wanted[name] ?? 0);
  }
  const found = [];
  for (const [name, value] of Object.entries(wanted)) {
    const has = granted(name, limits[name] ?? 0);
    if (has >= value) continue;
    const show = name.endsWith("Size") ? bytes : count;
    found.push({
      what:
        `The graphics processor offers too little: ${LIMIT_NAMES[name] ?? name} ` +
        `(${name}) is ${show(has)}, the model needs ${show(value)}.`,
      advice: "A smaller model, or a newer device, would do.",
    });
  }
  return found;
}

/** What is missing to run a client bundle on WebGPU; `browser` is replaced in tests of this module. */
export async function checkGpu({ needs }, browser = globalThis) {
  if (!browser.isSecureContext) return [INSECURE];
  const gpu = browser.navigator.gpu;
  if (gpu === undefined) {
    return [
      {
        what: "This browser has no WebGPU.",
        advice:
          "Current versions of Chrome, Edge, Safari and Firefox have it on most systems; " +
          "on Linux it may have to be switched on in the browser's settings.",
      },
    ];
  }
  if (browser.caches === undefined) {
    return [
      {
        what: "This browser lets the page store nothing.",
        advice: "The WebGPU engine loads the model from the browser's storage: allow site data.",
      },
    ];
  }
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  if (adapter === null) {
    return [
      {
        what: "The browser has WebGPU, but found no graphics processor that it may use.",
        advice:
          "Look whether hardware acceleration is on in its settings, or update the graphics driver.",
      },
    ];
  }
  const missing = needs.features
    .filter((name) => !adapter.features.has(name))
    .map((name) => ({
      what: `The graphics processor lacks ${FEATURE_NAMES[name] ?? name}, which this model is built for.`,
      advice:
        name === "shader-f16"
          ? "A bundle of the scheme q4f32_1 or q0f32 does without it."
          : "A newer device or driver may have it.",
    }));
  return [...missing, ...limitFindings(needs.limits, adapter.limits)];
}

/** What is missing to run a bundle of our own engine. */
export function checkCpu({ variants }) {
  try {
    chooseVariant(variants, {}, hostCapabilities());
    return [];
  } catch (error) {
    const text = error.text ?? String(error);
    const first = text.charAt(0).toUpperCase() + text.slice(1);
    return [{ what: `${first}.`, advice: "Use a newer browser." }];
  }
}

/** What there is to say about keeping so many bytes more; null if they can be kept, or nobody knows. */
export async function checkStorage(needed, browser = globalThis) {
  if (browser.caches === undefined) {
    return (
      "The browser keeps no files for this page, so that each start downloads the model again: " +
      "pages have storage on https:// and on localhost."
    );
  }
  const { quota, usage = 0 } =
    (await browser.navigator.storage?.estimate?.().catch(() => ({}))) ?? {};
  if (quota === undefined || needed === 0 || quota - usage >= needed) return null;
  return (
    `The browser offers this site ${bytes(Math.max(0, quota - usage))} more storage, the model needs ` +
    `${bytes(needed)}. Private windows and full disks are the usual reasons.`
  );
}
