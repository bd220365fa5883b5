// OpenAI's requests: which parameters there are, and what is wrong with a request.

import {
  Broken,
  any,
  boolean,
  closest,
  either,
  integer,
  list,
  literal,
  mapping,
  nothing,
  nullable,
  number,
  object,
  optional,
  spell,
  string,
} from "./check.js";
import { invalid } from "./errors.js";

// What OpenAI has and this engine has not: a hint is better than "unknown".
const UNSUPPORTED = new Map(
  Object.entries({
    audio: "the model writes text only",
    function_call: "use tool_choice",
    functions: "use tools",
    moderation: "there is no moderation model",
    verbosity: "say it in the prompt",
    web_search_options: "there is no web search",
  }),
);

const MAX_CHOICES = 128;
const MAX_STOPS = 64;
const MAX_TOOLS = 128;
const MAX_DEPTH = 100;
const INT32 = 2 ** 31;
const MOST_SECONDS = 86400;

// ---- messages, tools, formats -------------------------------------------------------------------

const textPart = object({ type: literal("text"), text: string() });

const toolCall = object({
  id: string(),
  type: optional(literal("function")),
  function: object({ name: string(), arguments: string() }),
});

const message = object(
  {
    role: literal("system", "developer", "user", "assistant", "tool"),
    content: nullable(either(string(), list(textPart))),
    name: nullable(string()),
    tool_calls: nullable(list(toolCall)),
    tool_call_id: nullable(string()),
    reasoning_content: nullable(string()),
    // Taken since clients send answers back as they got them.
    refusal: nullable(string()),
    annotations: nullable(list(any)),
    audio: nothing,
    function_call: nothing,
  },
  (it) => {
    if (it.role !== "assistant") {
      if (it.content === undefined) throw new Broken(`a message of role ${it.role} needs content`);
      if (it.tool_calls !== undefined || it.reasoning_content !== undefined) {
        throw new Broken("tool_calls and reasoning_content belong to role assistant");
      }
    } else if (
      it.content === undefined &&
      !it.tool_calls?.length &&
      it.reasoning_content === undefined
    ) {
      throw new Broken("a message of role assistant needs content or tool_calls");
    }
    if (it.tool_call_id !== undefined && it.role !== "tool") {
      throw new Broken("tool_call_id belongs to role tool");
    }
  },
);

const tool = object({
  type: literal("function"),
  function: object({
    name: string({ pattern: /^[a-zA-Z0-9_.-]{1,64}$/ }),
    description: nullable(string()),
    parameters: nullable(mapping()),
    strict: nullable(boolean),
  }),
});

// The keys of a tool stay in the caller's order: templates show them to the model.
function keptTool(value, path, faults) {
  const before = faults.length;
  tool(value, path, faults);
  if (faults.length > before) return value;
  const kept = (record, dropped) =>
    Object.fromEntries(
      Object.entries(record).filter(
        ([key, entry]) =>
          key !== dropped && entry !== undefined && (dropped === null || entry !== null),
      ),
    );
  return { ...kept(value, null), function: kept(value.function, "strict") };
}

const jsonSchema = object({
  name: string(),
  description: nullable(string()),
  schema: either(mapping(), boolean),
  strict: nullable(boolean),
});

const responseFormat = object(
  {
    type: literal("text", "json_object", "json_schema"),
    json_schema: nullable(jsonSchema),
  },
  (it) => {
    if (it.type === "json_schema" && it.json_schema === undefined) {
      throw new Broken("is missing", {
        param: "response_format.json_schema",
        code: "missing_parameter",
      });
    }
    if (it.type !== "json_schema" && it.json_schema !== undefined) {
      throw new Broken(`json_schema belongs to type json_schema, not to ${it.type}`);
    }
  },
);

const grammar = object(
  {
    type: literal("json", "json_schema", "regex", "ebnf", "structure"),
    value: nullable(either(string(), mapping())),
  },
  (it) => {
    if ((it.type === "json") !== (it.value === undefined)) {
      throw new Broken("every type but json needs a value, json has none");
    }
    if (["regex", "ebnf"].includes(it.type) && typeof it.value !== "string") {
      throw new Broken(`the value of a ${it.type} is text`);
    }
  },
);

// ---- requests -----------------------------------------------------------------------------------

const nonEmpty = string({ nonEmpty: true });
const tokenId = integer({ ge: 0, lt: INT32 });

// What chats and plain texts share.
const sampling = {
  model: nullable(string()),
  n: nullable(integer({ ge: 1, le: MAX_CHOICES })),
  temperature: nullable(number({ ge: 0, le: 2 })),
  top_p: nullable(number({ ge: 0, le: 1 })),
  presence_penalty: nullable(number({ ge: -2, le: 2 })),
  frequency_penalty: nullable(number({ ge: -2, le: 2 })),
  logit_bias: nullable(mapping(number({ ge: -100, le: 100 }))),
  seed: nullable(integer({ ge: -(2n ** 63n), lt: 2n ** 64n }, { big: true })),
  stop: nullable(either(nonEmpty, list(nonEmpty, { max: MAX_STOPS }))),
  stream: nullable(boolean),
  stream_options: nullable(
    object({
      include_usage: nullable(boolean),
      include_obfuscation: nullable(boolean), // padding against eavesdroppers; there is none
    }),
  ),
  response_format: nullable(responseFormat),
  // Extensions.
  top_k: nullable(integer({ ge: -1, lt: INT32 })),
  min_p: nullable(number({ ge: 0, le: 1 })),
  repetition_penalty: nullable(number({ gt: 0, le: 10 })),
  ignore_eos: nullable(boolean),
  stop_token_ids: nullable(list(tokenId, { max: MAX_STOPS })),
  grammar: nullable(grammar),
  timeout: nullable(number({ gt: 0, le: MOST_SECONDS })),
  // Taken and ignored: bookkeeping of a hosted service, or hints that only save time.
  metadata: nullable(mapping()),
  prediction: nullable(mapping()),
  prompt_cache_key: nullable(string()),
  prompt_cache_options: nullable(mapping()),
  prompt_cache_retention: nullable(string()),
  safety_identifier: nullable(string()),
  service_tier: nullable(string()),
  store: nullable(boolean),
  user: nullable(string()),
};

const bindsJson = (it) => it.response_format !== undefined && it.response_format.type !== "text";

function samplingRule(it) {
  if (it.stream_options !== undefined && !it.stream) {
    throw new Broken("needs stream", { param: "stream_options" });
  }
  for (const key of Object.keys(it.logit_bias ?? {})) {
    if (!/^[0-9]{1,10}$/.test(key) || Number(key) >= INT32) {
      throw new Broken(`has the key '${key}', which is no token id`, { param: "logit_bias" });
    }
  }
  if (it.grammar !== undefined && bindsJson(it)) {
    throw new Broken("and response_format cannot both bind the text", { param: "grammar" });
  }
}

/** Whether tool_choice forces a call. */
export const mustCallTool = (it) =>
  it.tool_choice === "required" || typeof it.tool_choice === "object";

function chatRule(it) {
  samplingRule(it);
  const refuse = (param, text) => {
    throw new Broken(text, { param });
  };
  if (it.top_logprobs !== undefined && !it.logprobs) refuse("top_logprobs", "needs logprobs");
  const both = it.max_tokens !== undefined && it.max_completion_tokens !== undefined;
  if (both && it.max_tokens !== it.max_completion_tokens) {
    refuse("max_tokens", "and max_completion_tokens say different things");
  }
  const names = (it.tools ?? []).map((entry) => entry.function.name);
  if (new Set(names).size !== names.length) refuse("tools", "has two functions of one name");
  const choice = it.tool_choice;
  if (![undefined, "none", "auto"].includes(choice) && names.length === 0) {
    refuse("tool_choice", "needs tools");
  }
  const wanted = choice?.function?.name;
  if (wanted !== undefined && !names.includes(wanted)) {
    refuse("tool_choice", `names ${wanted}, which is not in tools`);
  }
  if (mustCallTool(it) && (it.grammar !== undefined || bindsJson(it))) {
    refuse("tool_choice", "forces a call, and another format binds the text");
  }
  if (it.continue_final_message) {
    if (it.add_generation_prompt) {
      refuse("add_generation_prompt", "and continue_final_message exclude another");
    }
    const last = it.messages.at(-1);
    if (last.role !== "assistant" || last.tool_calls?.length) {
      refuse("continue_final_message", "needs a last message of role assistant");
    }
  }
}

/** The parameters of chat.completions.create. */
export const ChatRequest = object(
  {
    ...sampling,
    messages: list(message, { min: 1 }),
    max_tokens: nullable(integer({ ge: 1, lt: INT32 })),
    max_completion_tokens: nullable(integer({ ge: 1, lt: INT32 })),
    logprobs: nullable(boolean),
    top_logprobs: nullable(integer({ ge: 0, le: 20 })),
    tools: nullable(list(keptTool, { max: MAX_TOOLS })),
    tool_choice: nullable(
      either(
        literal("none", "auto", "required"),
        object({ type: literal("function"), function: object({ name: string() }) }),
      ),
    ),
    parallel_tool_calls: nullable(boolean),
    reasoning_effort: nullable(string()),
    modalities: nullable(list(literal("text"))),
    // Extensions.
    chat_template_kwargs: nullable(mapping()),
    add_generation_prompt: nullable(boolean),
    continue_final_message: nullable(boolean),
  },
  chatRule,
);

/** The parameters of completions.create. */
export const TextRequest = object(
  {
    ...sampling,
    prompt: either(string(), list(string()), list(tokenId), list(list(tokenId))),
    max_tokens: nullable(integer({ ge: 1, lt: INT32 })),
    logprobs: nullable(integer({ ge: 0, le: 20 })),
    echo: nullable(boolean),
    best_of: nullable(integer()),
    suffix: nothing, // filling in the middle
  },
  (it) => {
    samplingRule(it);
    if (it.best_of !== undefined && it.best_of !== (it.n ?? 1)) {
      throw new Broken("must equal n: texts are not ranked", { param: "best_of" });
    }
    if (it.prompt.length === 0 && it.prompt !== "") {
      throw new Broken("is an empty list", { param: "prompt" });
    }
  },
);

/** The request in what a caller gave, with nulls left out; an MlcbError for what is wrong. */
export function parseRequest(kind, body) {
  if (typeof body !== "object" || body === null || Array.isArray(body)) {
    const found = body === null ? "null" : Array.isArray(body) ? "an array" : typeof body;
    throw invalid(`expected an object, not ${found}`, { hint: "name the parameters" });
  }
  checkValues(body, [], 0);
  const faults = [];
  const request = kind(body, [], faults);
  if (faults.length > 0) throw explain(faults, kind);
  return request;
}

// Refuses what the runtime could not be handed, wherever in the body it stands.
function checkValues(value, path, depth) {
  if (depth > MAX_DEPTH)
    throw invalid(`${path[0]} is nested too deeply`, { param: String(path[0]) });
  const param = () => spell(path);
  const halved = (text) => {
    if (/\p{Surrogate}/u.test(text)) {
      throw invalid(`${param()}: half a surrogate pair is no Unicode text`, { param: param() });
    }
  };
  if (Array.isArray(value)) {
    value.forEach((item, place) => checkValues(item, [...path, place], depth + 1));
  } else if (typeof value === "object" && value !== null) {
    const prototype = Object.getPrototypeOf(value);
    if (prototype !== Object.prototype && prototype !== null) {
      const name = prototype.constructor?.name ?? "object";
      throw invalid(`${param()}: a ${name} is no JSON value`, { param: param() });
    }
    for (const [key, item] of Object.entries(value)) {
      halved(key);
      checkValues(item, [...path, key], depth + 1);
    }
  } else if (typeof value === "string") {
    halved(value);
  } else if (typeof value === "number" && !Number.isFinite(value)) {
    throw invalid(`${param()} is ${value}`, { param: param() });
  } else if (typeof value === "function" || typeof value === "symbol") {
    throw invalid(`${param()}: a ${typeof value} is no JSON value`, { param: param() });
  } else if (typeof value === "bigint" && param() !== "seed") {
    throw invalid(`${param()}: a BigInt is no JSON value`, { param: param() });
  }
}

function explain(faults, kind) {
  // An alternative that matches further is what the caller meant.
  const first = faults.reduce((a, b) => (b.path.length > a.path.length ? b : a));
  const param = spell(first.path);
  const says = (text, code = null, hint = null) =>
    invalid(text, { param: param || null, code, hint });
  switch (first.kind) {
    case "unknown":
      return unknown(first.path, param, kind);
    case "missing":
      return says(`${param} is missing`, "missing_parameter");
    case "rule":
      if (first.param !== null)
        return invalid(first.reason, { param: first.param, code: first.code });
      return says(`${param}: ${first.reason}`);
    case "none":
      return says(`${param} is not supported`, "unsupported_parameter");
    case "empty":
      return says(`${param} is empty`);
    default:
  }
  if (first.kind === "literal" && param.endsWith(".type") && param.includes(".content[")) {
    const input =
      typeof first.input === "string" ? `'${first.input}'` : JSON.stringify(first.input);
    return says(`${param}: only text parts are supported, not ${input}`);
  }
  const same = faults.filter((entry) => spell(entry.path) === param);
  return says(`${param}: ${[...new Set(same.map((entry) => entry.reason))].join(" or ")}`);
}

function unknown(path, param, kind) {
  const name = String(path.at(-1));
  if (path.length === 1 && UNSUPPORTED.has(name)) {
    return invalid(`${name} is not supported`, {
      param: name,
      code: "unsupported_parameter",
      hint: UNSUPPORTED.get(name),
    });
  }
  const close = path.length === 1 ? closest(name, Object.keys(kind.fields)) : null;
  return invalid(`unknown parameter ${param}`, {
    param,
    code: "unknown_parameter",
    hint: close && `did you mean ${close}?`,
  });
}
