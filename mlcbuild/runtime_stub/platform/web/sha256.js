// SHA-256 (FIPS 180-4). Pages without https have no crypto.subtle, and the module that could hash
// is itself a file to be checked.

import { hex } from "./runtime.js";

// The fractions of the cube roots (and square roots, below) of the first primes, 32 bits of each.
const primes = [];
for (let n = 2; primes.length < 64; ++n) if (primes.every((prime) => n % prime)) primes.push(n);

function rootBits(prime, degree) {
  // floor(prime^(1/degree) * 2^32) mod 2^32 by integers: doubles have too few bits.
  const target = BigInt(prime) << BigInt(32 * degree);
  let low = 0n;
  let high = 1n << 40n;
  while (high - low > 1n) {
    const middle = (low + high) >> 1n;
    if (middle ** BigInt(degree) <= target) low = middle;
    else high = middle;
  }
  return Number(low & 0xffffffffn);
}

const ROUND = Uint32Array.from(primes, (prime) => rootBits(prime, 3));
const START = Uint32Array.from(primes.slice(0, 8), (prime) => rootBits(prime, 2));

const rotate = (word, count) => (word >>> count) | (word << (32 - count));

function digestBlock(state, schedule, view, offset) {
  for (let i = 0; i < 16; ++i) schedule[i] = view.getUint32(offset + 4 * i);
  for (let i = 16; i < 64; ++i) {
    const x = schedule[i - 15];
    const y = schedule[i - 2];
    const s0 = rotate(x, 7) ^ rotate(x, 18) ^ (x >>> 3);
    const s1 = rotate(y, 17) ^ rotate(y, 19) ^ (y >>> 10);
    schedule[i] = schedule[i - 16] + s0 + schedule[i - 7] + s1;
  }
  let [a, b, c, d, e, f, g, h] = state;
  for (let i = 0; i < 64; ++i) {
    const s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const choose = (e & f) ^ (~e & g);
    const t1 = (h + s1 + choose + ROUND[i] + schedule[i]) | 0;
    const s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
    const majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = (d + t1) | 0;
    d = c;
    c = b;
    b = a;
    a = (t1 + s0 + majority) | 0;
  }
  [a, b, c, d, e, f, g, h].forEach((word, i) => {
    state[i] += word;
  });
}

function slowSha256(bytes) {
  const state = START.slice();
  const schedule = new Uint32Array(64);
  const whole = bytes.length - (bytes.length % 64);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  for (let at = 0; at < whole; at += 64) digestBlock(state, schedule, view, at);
  const rest = bytes.length - whole;
  const tail = new DataView(new ArrayBuffer(rest < 56 ? 64 : 128));
  for (let i = 0; i < rest; ++i) tail.setUint8(i, bytes[whole + i]);
  tail.setUint8(rest, 0x80);
  tail.setBigUint64(tail.byteLength - 8, BigInt(bytes.length) * 8n);
  for (let at = 0; at < tail.byteLength; at += 64) digestBlock(state, schedule, tail, at);
  const out = new DataView(new ArrayBuffer(32));
  state.forEach((word, i) => out.setUint32(4 * i, word));
  return hex(new Uint8Array(out.buffer));
}

/** The sha256 of bytes in hexadecimal; `subtle` is the browser's own, if there is one. */
export async function sha256(bytes, subtle = globalThis.crypto?.subtle) {
  if (!subtle) return slowSha256(bytes);
  return hex(new Uint8Array(await subtle.digest("SHA-256", bytes)));
}
