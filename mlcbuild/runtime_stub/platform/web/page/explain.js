// Errors in plain words: what happened, what it means, what to do.

const say = (title, text, advice, more = {}) => ({ title, text, advice, ...more });

const sentence = (text) => {
  const trimmed = String(text ?? "").trim();
  if (trimmed === "") return "";
  // A file's name stays as it is.
  const first = /^\S*[._/]\S/.test(trimmed)
    ? trimmed
    : trimmed.charAt(0).toUpperCase() + trimmed.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
};

const BY_CODE = {
  network_error: (error) =>
    say(
      "The download broke off",
      `${sentence(error.text)} ${sentence(error.why)}`,
      "Look at the connection and try again: what has arrived is kept.",
    ),
  bundle_damaged: (error) => {
    const [, file] = /^(\S+) of the bundle is damaged/.exec(error.text) ?? [];
    return say(
      "A file of the model is damaged",
      file === undefined
        ? sentence(error.text)
        : `${file} is not what bundle.json lists: it was damaged on its way, or replaced.`,
      "Nothing of it was used. Try again; if it stays so, whoever publishes the model has to upload it anew.",
    );
  },
  bundle_not_found: (error) =>
    say(
      "A file of the model is missing",
      `${sentence(error.text)} ${sentence(error.why)}`,
      "Whoever publishes the model has to upload the whole folder.",
    ),
  bundle_version: (error) =>
    say(
      "The model and the page do not fit together",
      sentence(error.text),
      "Page and model come from one build: upload the whole folder, or reload the page if it was just replaced.",
    ),
  storage_full: (error) =>
    say(
      "The browser has no room for the model",
      sentence(error.why),
      "Free disk space or the data of other sites. Private windows get little storage: use a normal one.",
    ),
  out_of_memory: (error) =>
    say(
      "There is not enough memory for the model",
      sentence(error.text),
      "Close other tabs and programs and try again, or take a smaller model.",
    ),
  unsupported_host: (error) =>
    say(
      "This browser cannot run the model",
      sentence(error.text),
      sentence(error.hint) || "Try a newer browser.",
      { other: true },
    ),
  context_length_exceeded: (error) =>
    say(
      "The conversation is too long",
      sentence(error.text),
      "The model cannot read that much at once. Begin a new chat, or shorten the message.",
      { fresh: true },
    ),
  worker_crashed: (error) =>
    say(
      "The engine ended unexpectedly",
      sentence(error.text),
      "Load the model again; if the device is short of memory, close other tabs first.",
      { reload: true },
    ),
};

BY_CODE.runtime_crashed = BY_CODE.worker_crashed;

const LOST = () =>
  say(
    "The graphics processor was lost",
    "The browser took it away, mostly because its memory was used up.",
    "Close other tabs and load the model again, take a smaller model, or run it on the CPU.",
    { reload: true, other: true },
  );

// Errors of MLC's client, by their names.
const BY_NAME = {
  ContextWindowSizeExceededError: (error) =>
    BY_CODE.context_length_exceeded({ text: error.message }),
  DeviceLostError: LOST,
  ModelNotLoadedError: LOST, // the client unloads a model whose device is gone
  FeatureSupportError: (error) => BY_CODE.unsupported_host({ text: error.message }),
  ShaderF16SupportError: () =>
    BY_CODE.unsupported_host({
      text: "the graphics processor has no 16-bit numbers in shaders (shader-f16)",
      hint: "a bundle of the scheme q4f32_1 or q0f32 does without them",
    }),
  WebGPUNotAvailableError: () =>
    BY_CODE.unsupported_host({ text: "this browser offers no WebGPU here" }),
  IntegrityError: (error) => BY_CODE.bundle_damaged({ text: error.message }),
  QuotaExceededError: () => BY_CODE.storage_full({ why: "the browser refused to store a file" }),
};

/**
 * What to show for an error: {title, text, advice, detail} and whether it helps to begin a new chat
 * (`fresh`), to load again (`reload`) or to take the other engine (`other`). `detail` is the error's
 * own text where `text` is another.
 */
export function explain(error) {
  const told = inWords(error);
  const own = String(error?.message ?? error);
  const isTold = told.text.toLowerCase().includes(own.toLowerCase().replace(/\.$/, ""));
  return { ...told, detail: isTold ? "" : own };
}

function inWords(error) {
  const known = BY_CODE[error?.code] ?? BY_NAME[error?.name];
  if (known !== undefined) return known(error);
  if (/out of memory|allocation failed|Array buffer allocation/i.test(error?.message ?? "")) {
    return BY_CODE.out_of_memory({ text: error.message });
  }
  return say(
    "Something went wrong",
    sentence(error?.message ?? error),
    "Try again. If it happens every time, this is a bug worth reporting.",
    { reload: true },
  );
}

/** Whether an error only says that somebody pressed stop. */
export const isStop = (error) => error?.name === "AbortError";
