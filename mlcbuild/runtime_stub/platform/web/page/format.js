// Numbers as people read them.

/** Bytes in powers of 1000: 12 B, 3.4 MB, 1.2 GB. */
export function bytes(count) {
  let value = count;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000) return `${unit === "B" ? value : value.toFixed(1)} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} TB`;
}

/** A count of tokens, in groups of three digits. */
export const count = (number) => number.toLocaleString("en");

/** Seconds from milliseconds: 0.08 s, 0.8 s, 12 s. */
export function seconds(milliseconds) {
  const value = milliseconds / 1000;
  return `${value.toFixed(value < 0.1 ? 2 : value < 10 ? 1 : 0)} s`;
}

/** How fast and how soon an answer came; times are in milliseconds, `rate` of the later tokens. */
export function figures({ tokens, firstAfter, rate, stopped, cut }) {
  const parts = [`${count(tokens)} token${tokens === 1 ? "" : "s"}`];
  if (rate !== null) parts.push(`${rate.toFixed(rate < 100 ? 1 : 0)} tokens/s`);
  if (firstAfter !== null) parts.push(`first after ${seconds(firstAfter)}`);
  if (stopped) parts.push("stopped");
  if (cut) parts.push("cut off at the longest answer");
  return parts.join(" · ");
}
