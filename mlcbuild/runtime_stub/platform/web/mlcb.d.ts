// Types of mlcb.js. Requests and answers are OpenAI's, as far as they are known here, with the
// extensions of docs/python-api.md.

/** Every error that this module means to throw. */
export declare class MlcbError extends Error {
  constructor(
    text: string,
    details?: {
      status?: number;
      code?: string | null;
      param?: string | null;
      why?: string | null;
      hint?: string | null;
      cause?: unknown;
    },
  );
  /** What happened, without reason and next step (`message` has all three). */
  readonly text: string;
  /** As of an HTTP answer: 400 and above the caller's, 500 and above the bundle's or the host's. */
  readonly status: number;
  /** For programs: "invalid_value", "bundle_damaged", ... */
  readonly code: string | null;
  /** The parameter at fault, as `messages[0].role`. */
  readonly param: string | null;
  readonly why: string | null;
  readonly hint: string | null;
  /** OpenAI's kind of error: "invalid_request_error", "rate_limit_error", "server_error". */
  readonly type: string;
  toJSON(): { error: { message: string; type: string; param: string | null; code: string | null } };
}

/** What this host can do, as variants of a bundle name it: "simd128", "relaxed-simd", ... */
export declare function hostCapabilities(validate?: (bytes: Uint8Array) => boolean): Set<string>;

// ---- loading ------------------------------------------------------------------------------------

export interface Progress {
  phase: "manifest" | "download" | "compile" | "open";
  /** Bytes that are there, from wherever they came, of all that are needed. */
  loadedBytes: number;
  totalBytes: number;
  /** The file that is being loaded. */
  file: string | null;
  /** What goes otherwise than wished, once each; also in `Engine.warnings`. */
  warning?: string;
}

/** What an Engine needs of a worker; in node that of node:worker_threads. */
export interface WorkerLike {
  postMessage(message: unknown, transfer?: any): void;
  terminate(): unknown;
}

export interface LoadOptions {
  /**
   * true: the engine runs in a worker of its own (the default in browsers). A function makes the
   * worker: one whose script is worker.js, for bundlers that must see `new Worker(new URL(...))`.
   */
  worker?: boolean | (() => WorkerLike);
  onProgress?: ((progress: Progress) => void) | null;
  /** Ends the load; what came so far is kept. */
  signal?: AbortSignal | null;
  /** Where files are kept. "auto": what there is. In node nothing is kept. */
  cache?: "auto" | "opfs" | "cache-api" | "none" | null;
  /** How activations enter quantized layers: the bundle's best, unless it is said. */
  activations?: "int8" | "float" | null;
  /** A variant of the bundle by name. */
  variant?: string | null;
  /** "server": the bundle's limits; "local": at most 4 requests at once; "interactive": one. */
  mode?: "server" | "local" | "interactive" | null;
  /** Requests that run at once; 4, or the bundle's limit if that is lower. */
  maxBatchSize?: number | null;
  /** KV cache for so many tokens of each request. */
  contextTokens?: number | null;
  /** KV cache for so many tokens in all; 4096, or the context window if that is shorter. */
  kvTokens?: number | null;
  /** The same in bytes. */
  kvBytes?: number | null;
  /** Requests that may wait for a place; beyond, they are refused with status 429. 0: no limit. */
  maxWaiting?: number | null;
  /** false: forget a request's pages when it ends. */
  prefixCache?: boolean | null;
  /** "ngram": guess tokens from the text itself; the text stays the same. */
  speculation?: "ngram" | null;
  speculationTokens?: number | null;
  /** Time every kernel (Engine.metrics). */
  profile?: boolean | null;
}

// ---- requests -----------------------------------------------------------------------------------

export interface TextPart {
  type: "text";
  text: string;
}

export interface ToolCall {
  id: string;
  type: "function";
  /** `arguments` is JSON text. */
  function: { name: string; arguments: string };
}

export type ChatMessage =
  | { role: "system" | "developer" | "user"; content: string | TextPart[]; name?: string | null }
  | {
      role: "tool";
      content: string | TextPart[];
      tool_call_id?: string | null;
      name?: string | null;
    }
  | {
      role: "assistant";
      content?: string | TextPart[] | null;
      name?: string | null;
      tool_calls?: ToolCall[] | null;
      reasoning_content?: string | null;
      refusal?: string | null;
    };

export interface Tool {
  type: "function";
  function: {
    name: string;
    description?: string | null;
    parameters?: Record<string, unknown> | null;
    strict?: boolean | null;
  };
}

export type ResponseFormat =
  | { type: "text" | "json_object" }
  | {
      type: "json_schema";
      json_schema: {
        name: string;
        schema: Record<string, unknown> | boolean;
        description?: string | null;
        strict?: boolean | null;
      };
    };

/** What the text must be. */
export type Grammar =
  | { type: "json" }
  | { type: "regex" | "ebnf"; value: string }
  | { type: "json_schema" | "structure"; value: string | Record<string, unknown> };

export interface SamplingParams {
  model?: string | null;
  n?: number | null;
  /** Where a request does not say: the model's own (chat.json), else OpenAI's defaults. */
  temperature?: number | null;
  top_p?: number | null;
  top_k?: number | null;
  min_p?: number | null;
  repetition_penalty?: number | null;
  presence_penalty?: number | null;
  frequency_penalty?: number | null;
  /** Token ids and what is added to their logits; -100 forbids one. */
  logit_bias?: Record<string, number> | null;
  seed?: number | bigint | null;
  stop?: string | string[] | null;
  stop_token_ids?: number[] | null;
  ignore_eos?: boolean | null;
  /** Seconds, after which the text ends with what there is. */
  timeout?: number | null;
  response_format?: ResponseFormat | null;
  grammar?: Grammar | null;
  stream?: boolean | null;
  stream_options?: { include_usage?: boolean | null; include_obfuscation?: boolean | null } | null;
  // Taken and ignored.
  metadata?: Record<string, unknown> | null;
  prediction?: Record<string, unknown> | null;
  prompt_cache_key?: string | null;
  prompt_cache_options?: Record<string, unknown> | null;
  prompt_cache_retention?: string | null;
  safety_identifier?: string | null;
  service_tier?: string | null;
  store?: boolean | null;
  user?: string | null;
}

export interface ChatParams extends SamplingParams {
  messages: ChatMessage[];
  max_tokens?: number | null;
  max_completion_tokens?: number | null;
  logprobs?: boolean | null;
  top_logprobs?: number | null;
  tools?: Tool[] | null;
  tool_choice?:
    | "none"
    | "auto"
    | "required"
    | { type: "function"; function: { name: string } }
    | null;
  parallel_tool_calls?: boolean | null;
  reasoning_effort?: string | null;
  modalities?: "text"[] | null;
  chat_template_kwargs?: Record<string, unknown> | null;
  add_generation_prompt?: boolean | null;
  continue_final_message?: boolean | null;
}

export interface CompletionParams extends SamplingParams {
  prompt: string | string[] | number[] | number[][];
  /** 16, as OpenAI has it. */
  max_tokens?: number | null;
  logprobs?: number | null;
  echo?: boolean | null;
  best_of?: number | null;
  suffix?: null;
}

export interface RequestOptions {
  /** Cancels the request: `create` or the stream rejects with the signal's reason. */
  signal?: AbortSignal | null;
}

// ---- answers ------------------------------------------------------------------------------------

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  prompt_tokens_details: { cached_tokens: number };
}

/** Seconds from submitting; of the choice that took longest. */
export interface Timings {
  queue_seconds: number;
  first_token_seconds: number;
  total_seconds: number;
}

export type FinishReason = "stop" | "length" | "tool_calls";

export interface TopLogprob {
  token: string;
  logprob: number;
  bytes: number[];
}
export interface TokenLogprob extends TopLogprob {
  top_logprobs: TopLogprob[];
}
export interface ChoiceLogprobs {
  content: TokenLogprob[];
  refusal: null;
}

interface AnswerFields {
  id: string;
  created: number;
  model: string;
  system_fingerprint: string;
  usage?: Usage;
  seed?: number | bigint;
  timings?: Timings;
}

export interface ChatCompletion extends AnswerFields {
  object: "chat.completion";
  choices: {
    index: number;
    message: {
      role: "assistant";
      content: string | null;
      refusal: null;
      tool_calls?: ToolCall[];
      reasoning_content?: string;
    };
    logprobs: ChoiceLogprobs | null;
    finish_reason: FinishReason;
    /** The stop string that ended the text, or "deadline" where `timeout` did. */
    stop_reason?: string;
  }[];
}

export interface ChatCompletionChunk extends AnswerFields {
  object: "chat.completion.chunk";
  choices: {
    index: number;
    delta: {
      role?: "assistant";
      content?: string;
      reasoning_content?: string;
      tool_calls?: {
        index: number;
        id?: string;
        type?: "function";
        function: { name?: string; arguments: string };
      }[];
    };
    logprobs: ChoiceLogprobs | null;
    finish_reason: FinishReason | null;
    stop_reason?: string;
  }[];
}

/** A plain text, whole or as a chunk of a stream (where finish_reason may be null). */
export interface Completion extends AnswerFields {
  object: "text_completion";
  choices: {
    index: number;
    text: string;
    logprobs: {
      tokens: string[];
      token_logprobs: number[];
      top_logprobs: Record<string, number>[] | null;
      text_offset: number[];
    } | null;
    finish_reason: "stop" | "length" | null;
    stop_reason?: string;
  }[];
}

/** Chunks as they come. Leaving a loop over it, or cancel(), cancels the request. */
export interface ChunkStream<Chunk> extends AsyncIterableIterator<Chunk> {
  cancel(): void;
}

export interface Completions<Params extends SamplingParams, Answer, Chunk> {
  create(body: Params & { stream: true }, options?: RequestOptions): Promise<ChunkStream<Chunk>>;
  create(body: Params & { stream?: false | null }, options?: RequestOptions): Promise<Answer>;
  create(body: Params, options?: RequestOptions): Promise<Answer | ChunkStream<Chunk>>;
}

export interface Model {
  id: string;
  object: "model";
  created: number;
  owned_by: string;
  context_window_size: number;
}

// ---- the engine ---------------------------------------------------------------------------------

export declare class Engine {
  private constructor();
  /** Loads a bundle: its URL, whose query goes with every request; in node also its folder. */
  static load(bundle: string | URL, options?: LoadOptions): Promise<Engine>;
  /** Forgets what browsers keep of a bundle (what others share stays), or of all bundles. */
  static clearCache(bundle?: string | URL | null): Promise<void>;

  readonly chat: { completions: Completions<ChatParams, ChatCompletion, ChatCompletionChunk> };
  readonly completions: Completions<CompletionParams, Completion, Completion>;
  readonly models: {
    list(): Promise<{ object: "list"; data: Model[] }>;
    retrieve(name: string): Promise<Model>;
  };

  /** What the runtime chose: variant, activations, limits, memory in bytes. */
  readonly info: Record<string, any>;
  /** The bundle's manifest, bundle.json (docs/formats.md). */
  readonly manifest: Record<string, any>;
  readonly modelName: string;
  /** Tokens that a prompt and its answer may have together. */
  readonly contextWindowSize: number;
  /** What went otherwise than wished while loading: nothing, as a rule. */
  readonly warnings: string[];

  tokenize(text: string, options?: { special?: boolean; bos?: boolean }): Promise<number[]>;
  detokenize(tokenIds: ArrayLike<number>, options?: { special?: boolean }): Promise<string>;
  /** A conversation as the text that the model sees. */
  renderChat(
    messages: ChatMessage[],
    options?: {
      generationPrompt?: boolean;
      tools?: Tool[];
      continueFinalMessage?: boolean;
      /** Seconds since 1970, for templates that tell the date. */
      now?: number;
      variables?: Record<string, unknown>;
    },
  ): Promise<string>;
  /** What the engine has done and holds (docs/metrics.md). */
  metrics(): Promise<Record<string, any>>;
  /** The same figures as text for Prometheus. */
  prometheusMetrics(): Promise<string>;
  /** Forgets what the prefix cache keeps. */
  clearPrefixCache(): Promise<void>;
  /** Logits of every position: [ids, vocabulary], row major. */
  logits(tokenIds: ArrayLike<number>): Promise<Float32Array>;
  /** Drops what runs and frees everything; a second call does nothing. */
  unload(): Promise<void>;
}
