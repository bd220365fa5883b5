// From a request as OpenAI shapes it to what the runtime takes.

import { MlcbError, invalid } from "./errors.js";
import { GrammarKind } from "./native.js";
import { mustCallTool } from "./protocol.js";

const COMPLETION_TOKENS = 16; // OpenAI's default for plain completions
const FORBIDDEN_BIAS = -100; // OpenAI: at this value a token cannot come
const SMALLEST_TOP_P = 1e-9; // the runtime's 0 is "off"; OpenAI's is the likeliest token only
const MOST_TIMEOUT_MS = 2 ** 31 - 1;
const PROMPT_END = 200; // characters; what opens or closes reasoning is short

const GRAMMAR_KINDS = {
  json: GrammarKind.JSON,
  json_schema: GrammarKind.JSON_SCHEMA,
  regex: GrammarKind.REGEX,
  ebnf: GrammarKind.EBNF,
  structure: GrammarKind.STRUCTURE,
};

const SAMPLING = { temperature: 1, top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1 };

/** How texts are sampled where a request does not say: chat.json over OpenAI's defaults. */
export function samplingDefaults(chat) {
  const given = chat.sampling ?? {};
  const damaged = (text) => new MlcbError(text, { status: 500, code: "bundle_damaged" });
  if (typeof given !== "object" || Array.isArray(given)) {
    throw damaged("sampling of chat.json is not an object");
  }
  const values = { ...SAMPLING };
  for (const name of Object.keys(SAMPLING)) {
    if (given[name] === undefined || given[name] === null) continue;
    if (typeof given[name] !== "number")
      throw damaged(`sampling.${name} of chat.json is no number`);
    values[name] = name === "top_k" ? Math.trunc(given[name]) : given[name];
  }
  return values;
}

/** 53 random bits: as large as numbers are exact everywhere. */
export function randomSeed() {
  const [high, low] = crypto.getRandomValues(new Uint32Array(2));
  return (high & 0x1fffff) * 2 ** 32 + low;
}

/** A message as chat templates expect it. */
function templateMessage(message) {
  const { role, content = null, tool_calls: calls } = message;
  const record = {
    role: role === "developer" ? "system" : role,
    content: Array.isArray(content) ? content.map(({ text }) => ({ type: "text", text })) : content,
  };
  for (const name of ["name", "tool_call_id", "reasoning_content"]) {
    if (message[name] !== undefined) record[name] = message[name];
  }
  if (calls?.length) {
    record.tool_calls = calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.function.name, arguments: call.function.arguments },
    }));
  }
  return record;
}

/** One prompt or several, each a text or ids. */
function promptList(prompt) {
  return typeof prompt === "string" || typeof prompt[0] === "number" ? [prompt] : prompt;
}

/**
 * Renders, tokenizes and checks requests for one bundle. What it makes: `natives`, one for each
 * prompt; `seed`, null where nothing is drawn; `parsers`, one for each choice of a chat; `echo`, a
 * text for each prompt; and what answers are to tell.
 */
export class RequestBuilder {
  #native;
  #manifest;
  #hasTemplate;

  constructor(native, manifest, chat) {
    this.#native = native;
    this.#manifest = manifest;
    this.#hasTemplate = (chat.template ?? null) !== null;
    this.defaults = samplingDefaults(chat);
  }

  checkModel(name) {
    if (name !== this.#manifest.name) {
      throw new MlcbError(`there is no model ${name}; there is ${this.#manifest.name}`, {
        status: 404,
        code: "model_not_found",
        param: "model",
      });
    }
  }

  /** A conversation, {messages, add_generation_prompt, ...}, as text. */
  renderChat(conversation) {
    if (!this.#hasTemplate) {
      throw invalid("the model has no chat template", {
        param: "messages",
        hint: "give the text as it is: completions.create",
      });
    }
    return this.#native.renderChat(conversation);
  }

  /** A chat request, rendered and tokenized; its grammar is compiled. */
  chat(request) {
    const tools = request.tool_choice === "none" ? [] : (request.tools ?? []);
    const text = this.#chatText(request, tools);
    const limit = request.max_completion_tokens ?? request.max_tokens ?? 0;
    const native = this.#request(request, this.#native.tokenize(text), limit, this.#seed(request));
    if (mustCallTool(request)) {
      native.grammar_kind = GrammarKind.STRUCTURE;
      native.grammar = this.#toolGrammar(request, tools);
    } else {
      Object.assign(native, this.#format(request));
    }
    const logprobs = Boolean(request.logprobs);
    Object.assign(native, { logprobs: Number(logprobs), top_logprobs: request.top_logprobs ?? 0 });
    const prompt = text.slice(-PROMPT_END);
    // The first half of a pair that was cut away leaves no text.
    const options = {
      tools: tools.length > 0,
      reasoning: true,
      prompt: prompt.replace(/^[\uDC00-\uDFFF]/, ""),
    };
    const parsers = [];
    try {
      for (let i = 0; i < native.n; ++i) parsers.push(this.#native.outputParser(options));
    } catch (error) {
      for (const parser of parsers) parser.close();
      throw error;
    }
    return {
      natives: [native],
      parsers,
      echo: [],
      oneToolCall: request.parallel_tool_calls === false,
      ...this.#shared(request, native, logprobs),
    };
  }

  /** A request for plain texts; every prompt becomes a request of its own. */
  texts(request) {
    const prompts = promptList(request.prompt);
    if (request.echo && request.logprobs !== undefined) {
      throw invalid("logprobs of an echoed prompt are not told", {
        param: "logprobs",
        hint: "leave echo out",
      });
    }
    const format = this.#format(request);
    const size = this.#manifest.model.vocab_size;
    const seed = this.#seed(request);
    const logprobs = request.logprobs !== undefined;
    const natives = prompts.map((prompt, place) => {
      const name = prompts.length === 1 ? "prompt" : `prompt[${place}]`;
      const isText = typeof prompt === "string";
      const ids = isText ? this.#native.tokenize(prompt, { bos: true }) : prompt;
      if (ids.length === 0) throw invalid(`${name} has no tokens`, { param: name });
      const most = isText ? 0 : ids.reduce((a, b) => Math.max(a, b), 0);
      if (most >= size) {
        throw invalid(`${name} holds token ${most}, the model has ${size}`, { param: name });
      }
      const native = this.#request(request, ids, request.max_tokens ?? COMPLETION_TOKENS, seed);
      return Object.assign(native, format, {
        logprobs: Number(logprobs),
        top_logprobs: request.logprobs ?? 0,
      });
    });
    const echo = request.echo ? prompts.map((prompt) => this.#text(prompt)) : [];
    return {
      natives,
      parsers: [],
      echo,
      oneToolCall: false,
      ...this.#shared(request, natives[0], logprobs),
    };
  }

  #shared(request, native, logprobs) {
    return {
      seed: native.seed === null ? null : (request.seed ?? native.seed),
      choices: native.n,
      stream: Boolean(request.stream),
      // An answer in one piece always tells its usage.
      includeUsage: !request.stream || Boolean(request.stream_options?.include_usage),
      logprobs,
      topLogprobs: native.top_logprobs,
    };
  }

  #text(prompt) {
    if (typeof prompt === "string") return prompt;
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(this.#native.detokenize(prompt));
  }

  #chatText(request, tools) {
    const variables = { ...request.chat_template_kwargs };
    if (request.reasoning_effort !== undefined)
      variables.reasoning_effort = request.reasoning_effort;
    const goingOn = Boolean(request.continue_final_message);
    const conversation = {
      messages: request.messages.map(templateMessage),
      add_generation_prompt: request.add_generation_prompt ?? !goingOn,
    };
    if (tools.length) conversation.tools = tools;
    if (goingOn) conversation.continue_final_message = true;
    if (Object.keys(variables).length) conversation.variables = variables;
    try {
      return this.renderChat(conversation);
    } catch (error) {
      if (!(error instanceof MlcbError) || error.status !== 400) throw error;
      const param = tools.length && error.text.includes("tools") ? "tools" : "messages";
      throw invalid(error.text, { param, why: error.why, hint: error.hint });
    }
  }

  /** What is drawn with: null for greedy texts, which draw nothing. */
  #seed(request) {
    if (request.seed !== undefined) return BigInt.asUintN(64, BigInt(request.seed));
    return (request.temperature ?? this.defaults.temperature) > 0 ? randomSeed() : null;
  }

  /** What chats and plain texts share. */
  #request(request, tokenIds, maxTokens, seed) {
    if (request.model !== undefined) this.checkModel(request.model);
    const value = (name) => request[name] ?? this.defaults[name];
    const stop = request.stop ?? [];
    return {
      token_ids: tokenIds,
      n: request.n ?? 1,
      max_tokens: maxTokens,
      temperature: value("temperature"),
      top_p: Math.max(value("top_p"), SMALLEST_TOP_P),
      top_k: Math.max(value("top_k"), 0),
      min_p: value("min_p"),
      repetition_penalty: value("repetition_penalty"),
      presence_penalty: request.presence_penalty ?? 0,
      frequency_penalty: request.frequency_penalty ?? 0,
      logit_bias: this.#biases(request.logit_bias ?? {}),
      seed,
      ignore_eos: Number(Boolean(request.ignore_eos)),
      stop: typeof stop === "string" ? [stop] : stop,
      stop_token_ids: this.#stopIds(request.stop_token_ids ?? []),
      timeout_ms:
        request.timeout === undefined
          ? 0
          : Math.max(1, Math.round(Math.min(MOST_TIMEOUT_MS, request.timeout * 1000))),
      grammar_kind: GrammarKind.NONE,
      grammar: null,
    };
  }

  #stopIds(ids) {
    for (const token of ids) this.#checkToken(token, "stop_token_ids");
    return ids;
  }

  #biases(given) {
    const biases = {};
    for (const [key, bias] of Object.entries(given)) {
      this.#checkToken(Number(key), "logit_bias");
      biases[Number(key)] = bias <= FORBIDDEN_BIAS ? -Infinity : bias;
    }
    return biases;
  }

  #checkToken(token, param) {
    const size = this.#manifest.model.vocab_size;
    if (token >= size)
      throw invalid(`${param} names token ${token}, the model has ${size}`, { param });
  }

  /** What binds the text; it is compiled. */
  #format({ response_format: format, grammar: given }) {
    let kind = GrammarKind.NONE;
    let grammar = null;
    if (given !== undefined) {
      kind = GRAMMAR_KINDS[given.type];
      grammar =
        typeof given.value === "object" ? JSON.stringify(given.value) : (given.value ?? null);
    } else if (format?.type === "json_object") {
      kind = GrammarKind.JSON;
    } else if (format?.type === "json_schema") {
      kind = GrammarKind.JSON_SCHEMA;
      grammar = JSON.stringify(format.json_schema.schema);
    }
    if (kind !== GrammarKind.NONE) {
      this.#checkGrammar(kind, grammar, given === undefined ? "response_format" : "grammar");
    }
    return { grammar_kind: kind, grammar };
  }

  #checkGrammar(kind, grammar, param) {
    try {
      this.#native.checkGrammar(kind, grammar);
    } catch (error) {
      if (error instanceof MlcbError) error.param ??= param;
      throw error;
    }
  }

  /** What forces a call: of a named function one, unless several are asked for. */
  #toolGrammar(request, tools) {
    const named = request.tool_choice !== "required";
    const parallel = named
      ? request.parallel_tool_calls === true
      : request.parallel_tool_calls !== false;
    let grammar;
    try {
      grammar = this.#native.toolGrammar(tools, request.tool_choice, parallel);
    } catch (error) {
      if (!(error instanceof MlcbError) || error.status !== 400) throw error;
      throw invalid(error.text, { param: "tools", hint: error.hint });
    }
    try {
      this.#checkGrammar(GrammarKind.STRUCTURE, grammar, "tools");
    } catch (error) {
      if (error.code === "invalid_grammar") this.#blameTool(tools);
      throw error;
    }
    return grammar;
  }

  // The error names a place in the structure; callers know their schemas.
  #blameTool(tools) {
    tools.forEach((tool, place) => {
      const param = `tools[${place}].function.parameters`;
      try {
        const schema = tool.function.parameters ?? {};
        this.#native.checkGrammar(GrammarKind.JSON_SCHEMA, JSON.stringify(schema));
      } catch (error) {
        if (!(error instanceof MlcbError) || error.code !== "invalid_grammar") throw error;
        throw invalid(`${param}: ${error.text.replace(/^JSON schema: /, "")}`, {
          param,
          code: "invalid_grammar",
          hint: error.hint,
        });
      }
    });
  }
}
