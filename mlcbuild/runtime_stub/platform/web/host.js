// What the browser or node can do, and which variant of a bundle it runs best.

import { MlcbError } from "./errors.js";

/** True in node (and in what pretends to be it, as Bun does). */
export const isNode = typeof process !== "undefined" && Boolean(process.versions?.node);

// Every runtime module needs it, whatever its variants say.
const ALWAYS = ["exceptions"];

// A module with one function of type () -> v128, whose body is the code.
const probe = (...code) => {
  const body = [0, ...code, 0x0b]; // no locals, code, end
  return new Uint8Array([
    0x00,
    0x61,
    0x73,
    0x6d,
    1,
    0,
    0,
    0, // magic, version 1
    1,
    5,
    1,
    0x60,
    0,
    1,
    0x7b, // type section: () -> v128
    3,
    2,
    1,
    0, // function section: one, of that type
    10,
    body.length + 2,
    1,
    body.length,
    ...body, // code section
  ]);
};

const ZERO = [0x41, 0, 0xfd, 0x0f]; // i32.const 0, i8x16.splat

const PROBES = new Map([
  ["exceptions", probe(0x06, 0x40, 0x19, 0x0b, ...ZERO)], // try, catch_all, end
  ["simd128", probe(...ZERO)],
  // i32x4.relaxed_dot_i8x16_i7x16_add_s
  ["relaxed-simd", probe(...ZERO, ...ZERO, ...ZERO, 0xfd, 0x93, 0x02)],
]);

const NAMES = new Map([
  [
    "exceptions",
    "WebAssembly exceptions (Chrome 95, Firefox 100, Safari 15.2, node 17 or newer have them)",
  ],
  ["simd128", "WebAssembly SIMD (Chrome 91, Firefox 89, Safari 16.4, node 16.4 or newer have it)"],
  ["relaxed-simd", "WebAssembly relaxed SIMD (Chrome 114, node 21 or newer have it)"],
]);

/** The capabilities of this host, as variants name them. */
export function hostCapabilities(validate = (bytes) => WebAssembly.validate(bytes)) {
  if (typeof WebAssembly === "undefined") {
    throw new MlcbError(`this ${hostName()} has no WebAssembly`, {
      status: 501,
      code: "unsupported_host",
      hint: "some privacy modes turn it off",
    });
  }
  return new Set([...PROBES].filter(([, bytes]) => validate(bytes)).map(([name]) => name));
}

const hostName = () => (isNode ? "node" : "browser");

/**
 * The first variant (the best comes first) that the host can run; `activations` and `variant`
 * narrow the choice.
 */
export function chooseVariant(variants, { activations = null, variant = null }, capabilities) {
  const wanted = variants.filter(
    (entry) =>
      (activations === null || entry.activations === activations) &&
      (variant === null || entry.name === variant),
  );
  if (wanted.length === 0) {
    const asked = [variant, activations && `${activations} activations`].filter(Boolean).join(", ");
    const known = variants.map((entry) => `${entry.name} (${entry.activations})`).join(", ");
    throw new MlcbError(`the bundle has no variant ${asked}; it has ${known}`, {
      code: "invalid_option",
      param: variant === null ? "activations" : "variant",
    });
  }
  const lacks = (entry) =>
    [...ALWAYS, ...entry.capability].filter((name) => !capabilities.has(name));
  const found = wanted.find((entry) => lacks(entry).length === 0);
  if (found !== undefined) return found;
  // What asks for the least is the easiest to come by.
  const missing = wanted.map(lacks).reduce((a, b) => (b.length < a.length ? b : a));
  const names = missing.map((name) => NAMES.get(name) ?? name).join(" and ");
  throw new MlcbError(`this ${hostName()} cannot run the bundle: it lacks ${names}`, {
    status: 501,
    code: "unsupported_host",
    hint: `use a newer ${hostName()}`,
  });
}
