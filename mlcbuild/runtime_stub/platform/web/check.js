// Checks of values from outside. A check takes (value, path, faults), puts what is wrong into
// faults and returns the value, of objects a copy with what was given. The words are those of the
// Python engine, so that a mistake reads the same everywhere.

/** A broken rule: where, of which kind, in which words; `param`, `code`: of a rule's own. */
function fault(faults, path, kind, reason, more = {}) {
  faults.push({ path, kind, reason, ...more });
}

const given = (value) => value !== undefined && value !== null;
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** A rule of an object that is broken: throw it from `rule` of object(). */
export class Broken extends Error {
  constructor(message, { param = null, code = null } = {}) {
    super(param === null ? message : `${param} ${message}`);
    this.param = param;
    this.code = code;
  }
}

/** Anything. */
export const any = (value) => value;

/** Null means left out. */
export const nullable = (check) =>
  Object.assign((value, path, faults) => (given(value) ? check(value, path, faults) : null), {
    optional: true,
  });

/** May be left out, but is not null. */
export const optional = (check) =>
  Object.assign((value, path, faults) => check(value, path, faults), { optional: true });

export const nothing = Object.assign(
  (value, path, faults) => {
    if (given(value)) fault(faults, path, "none", "input should be null");
    return null;
  },
  { optional: true },
);

export function boolean(value, path, faults) {
  if (typeof value !== "boolean") fault(faults, path, "type", "input should be a valid boolean");
  return value;
}

export const string =
  ({ nonEmpty = false, pattern = null } = {}) =>
  (value, path, faults) => {
    if (typeof value !== "string") fault(faults, path, "type", "input should be a valid string");
    else if (nonEmpty && value === "") fault(faults, path, "empty", "string is empty");
    else if (pattern !== null && !pattern.test(value)) {
      fault(faults, path, "pattern", `string should match pattern '${pattern.source}'`);
    }
    return value;
  };

function bounds(value, { ge, gt, le, lt }, path, faults) {
  const say = (words, bound) => fault(faults, path, "range", `input should be ${words} ${bound}`);
  if (ge !== undefined && value < ge) say("greater than or equal to", ge);
  else if (gt !== undefined && !(value > gt)) say("greater than", gt);
  else if (le !== undefined && value > le) say("less than or equal to", le);
  else if (lt !== undefined && !(value < lt)) say("less than", lt);
}

/** A number. */
export const number =
  (range = {}) =>
  (value, path, faults) => {
    if (typeof value !== "number") fault(faults, path, "type", "input should be a valid number");
    else bounds(value, range, path, faults);
    return value;
  };

/** An integer; BigInt is one too, for seeds of 64 bits. */
export const integer =
  (range = {}, { big = false } = {}) =>
  (value, path, faults) => {
    const good = Number.isInteger(value) || (big && typeof value === "bigint");
    if (!good) fault(faults, path, "type", "input should be a valid integer");
    else bounds(value, range, path, faults);
    return value;
  };

/** One of some texts. */
export const literal =
  (...texts) =>
  (value, path, faults) => {
    if (texts.includes(value)) return value;
    const quoted = texts.map((text) => `'${text}'`);
    const last = quoted.pop();
    const words = quoted.length ? `${quoted.join(", ")} or ${last}` : last;
    fault(faults, path, "literal", `input should be ${words}`, { input: value });
    return value;
  };

/** An array. */
export const list =
  (item, { min = 0, max = Infinity } = {}) =>
  (value, path, faults) => {
    if (!Array.isArray(value)) {
      fault(faults, path, "type", "input should be a list");
    } else if (value.length < min) {
      fault(faults, path, "empty", "list is empty");
    } else if (value.length > max) {
      fault(
        faults,
        path,
        "long",
        `list should have at most ${max} items after validation, not ${value.length}`,
      );
    } else {
      return value.map((entry, place) => item(entry, [...path, place], faults));
    }
    return value;
  };

/** An object whose keys the caller chooses. */
export const mapping =
  (item = any) =>
  (value, path, faults) => {
    if (!isObject(value)) {
      fault(faults, path, "type", "input should be an object");
      return value;
    }
    return Object.fromEntries(
      Object.entries(value).map(([key, entry]) => [key, item(entry, [...path, key], faults)]),
    );
  };

/** The first alternative that fits; what is wrong with each, if none does. */
export const either =
  (...checks) =>
  (value, path, faults) => {
    const all = [];
    for (const check of checks) {
      const found = [];
      const result = check(value, path, found);
      if (found.length === 0) return result;
      all.push(...found);
    }
    faults.push(...all);
    return value;
  };

/** An object of known fields; `rule(value)` throws Broken for fields that do not fit together. */
export const object = (fields, rule = null) =>
  Object.assign(
    (value, path, faults) => {
      if (!isObject(value)) {
        fault(faults, path, "type", "input should be an object");
        return value;
      }
      const found = [];
      const result = {};
      for (const [name, check] of Object.entries(fields)) {
        const entry = value[name];
        if (entry === undefined) {
          if (!check.optional) fault(found, [...path, name], "missing", "field required");
          continue;
        }
        const checked = check(entry, [...path, name], found);
        if (given(checked)) result[name] = checked;
      }
      for (const name of Object.keys(value)) {
        if (value[name] !== undefined && !Object.hasOwn(fields, name)) {
          fault(found, [...path, name], "unknown", "unknown field");
        }
      }
      if (found.length === 0 && rule !== null) {
        try {
          rule(result);
        } catch (error) {
          if (!(error instanceof Broken)) throw error;
          const { message, param, code } = error;
          fault(found, path, "rule", message, { param, code });
        }
      }
      faults.push(...found);
      return result;
    },
    { fields },
  );

/** A path as in messages[0].role. */
export function spell(path) {
  return path.reduce(
    (text, step) =>
      typeof step === "number" ? `${text}[${step}]` : text ? `${text}.${step}` : step,
    "",
  );
}

// ---- the closest name ---------------------------------------------------------------------------

// Characters that two texts have in common, by their longest common piece and what is beside it
// (Ratcliff and Metzener, "Pattern matching: the gestalt approach", 1988).
function matching(a, b) {
  let [size, endA, endB] = [0, 0, 0];
  let row = [];
  for (let i = 0; i < a.length; ++i) {
    const next = [];
    for (let j = 0; j < b.length; ++j) {
      if (a[i] !== b[j]) continue;
      next[j] = (row[j - 1] ?? 0) + 1;
      if (next[j] > size) [size, endA, endB] = [next[j], i + 1, j + 1];
    }
    row = next;
  }
  if (size === 0) return 0;
  return (
    size +
    matching(a.slice(0, endA - size), b.slice(0, endB - size)) +
    matching(a.slice(endA), b.slice(endB))
  );
}

/** The name that is most like another, or null if none is. */
export function closest(name, names) {
  let best = null;
  let most = 0.6;
  for (const other of names) {
    const likeness = (2 * matching(other, name)) / (other.length + name.length);
    if (likeness > most || (likeness === most && (best === null || other > best))) {
      [best, most] = [other, likeness];
    }
  }
  return best;
}
