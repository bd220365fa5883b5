// The engine over a made-up module: answers, streams, text, and what is left behind.

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { assertTidy, open, say, turn } from "./fake_engine.mjs";

describe("answers", () => {
  test("a chat in one piece", async () => {
    const { engine, state } = await open();
    const answer = await engine.chat.completions.create({ messages: say("hello"), seed: 3 });
    assert.match(answer.id, /^chatcmpl-[0-9a-f]{24}$/);
    assert.ok(Math.abs(answer.created - Date.now() / 1000) < 60);
    assert.deepEqual(
      { ...answer, id: null, created: 0 },
      {
        id: null,
        object: "chat.completion",
        created: 0,
        model: "fake",
        choices: [
          {
            index: 0,
            message: { role: "assistant", content: "hello", refusal: null },
            logprobs: null,
            finish_reason: "stop",
          },
        ],
        usage: {
          prompt_tokens: 5,
          completion_tokens: 5,
          total_tokens: 10,
          prompt_tokens_details: { cached_tokens: 1 },
        },
        system_fingerprint: "fp_0123456789ab",
        seed: 3,
        timings: { queue_seconds: 0.25, first_token_seconds: 0.5, total_seconds: 1 },
      },
    );
    assertTidy(state);
  });

  test("sampling: the request, else chat.json, else OpenAI's", async () => {
    const { engine, state } = await open();
    await engine.chat.completions.create({ messages: say("a") });
    const first = state.submitted[0];
    assert.deepEqual(
      [first.temperature, first.top_k, first.top_p, first.max_tokens, first.n],
      [0.5, 40, 1, 0, 1],
    );
    assert.ok(Number.isSafeInteger(first.seed) && first.seed > 0);
    await engine.chat.completions.create({
      messages: say("a"),
      temperature: 0,
      top_p: 0,
      top_k: -1,
      logit_bias: { 65: -100, 66: 2 },
      seed: 2n ** 63n + 1n,
      timeout: 0.0001,
      stop: "x",
      max_completion_tokens: 4,
    });
    const second = state.submitted[1];
    assert.deepEqual(
      [second.temperature, second.top_k, second.top_p, second.timeout_ms, second.max_tokens],
      [0, 0, 1e-9, 1, 4],
    );
    assert.deepEqual(second.logit_bias, { 65: null, 66: 2 });
    assert.deepEqual(second.stop, ["x"]);
    // Beyond 53 bits as text: JSON's numbers are not exact there.
    assert.equal(second.seed, "9223372036854775809");
    await engine.chat.completions.create({ messages: say("a"), seed: -1 });
    assert.equal(state.submitted[2].seed, "18446744073709551615");
  });

  test("several choices, each with its finish", async () => {
    const { engine, state } = await open();
    const answer = await engine.chat.completions.create({
      messages: say("abc"),
      n: 3,
      stop: ["b"],
    });
    assert.deepEqual(
      answer.choices.map((choice) => choice.message.content),
      ["a", "", "ca"],
    );
    assert.deepEqual(
      answer.choices.map((choice) => choice.stop_reason),
      ["b", "b", "b"],
    );
    assert.equal(answer.timings.total_seconds, 3);
    assertTidy(state);
  });

  test("tool calls and reasoning are told apart", async () => {
    const { engine, state } = await open();
    const tools = [
      { type: "function", function: { name: "f", strict: true, parameters: { type: "object" } } },
    ];
    const ask = (more) =>
      engine.chat.completions.create({ messages: say("{hm}[f(1)][g(2)]"), tools, ...more });
    const {
      choices: [{ message, finish_reason: reason }],
    } = await ask({});
    assert.equal(reason, "tool_calls");
    assert.equal(message.content, null);
    assert.equal(message.reasoning_content, "hm");
    assert.deepEqual(
      message.tool_calls.map((call) => [call.type, call.function]),
      [
        ["function", { name: "f", arguments: "1" }],
        ["function", { name: "g", arguments: "2" }],
      ],
    );
    assert.match(message.tool_calls[0].id, /^call_[0-9a-f]{24}$/);
    const one = await ask({ parallel_tool_calls: false });
    assert.equal(one.choices[0].message.tool_calls.length, 1);
    assert.equal(one.choices[0].finish_reason, "tool_calls");
    await ask({ tool_choice: "required" });
    const { grammar, grammar_kind: kind } = state.submitted.at(-1);
    assert.equal(kind, 5);
    assert.equal(
      grammar,
      `1 "required" [{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`,
    );
    await ask({ tool_choice: { type: "function", function: { name: "f" } } });
    assert.ok(state.submitted.at(-1).grammar.startsWith("0 {"));
    const none = await ask({ tool_choice: "none" });
    assert.equal(none.choices[0].message.content, "[f(1)][g(2)]");
    await turn();
    assertTidy(state);
  });

  test("log probabilities with bytes", async () => {
    const { engine } = await open();
    const answer = await engine.chat.completions.create({
      messages: say("é"),
      logprobs: true,
      top_logprobs: 4,
    });
    const { content } = answer.choices[0].logprobs;
    assert.deepEqual(
      content.map((entry) => entry.bytes),
      [[0xc3], [0xa9]],
    );
    assert.equal(content[0].token, "\ufffd");
    assert.equal(content[0].top_logprobs.length, 4);
    assert.equal(content[0].top_logprobs[3].logprob, -9999);
    assert.equal(answer.choices[0].message.content, "é");
  });

  test("formats become grammars", async () => {
    const { engine, state } = await open();
    const ask = (more) => engine.chat.completions.create({ messages: say("a"), ...more });
    const schema = { type: "object", properties: { b: {}, a: {} } };
    await ask({ response_format: { type: "json_object" } });
    await ask({ response_format: { type: "json_schema", json_schema: { name: "x", schema } } });
    await ask({ grammar: { type: "regex", value: "[0-9]+" } });
    await ask({ grammar: { type: "structure", value: { sequence: [] } } });
    assert.deepEqual(
      state.submitted.map((it) => [it.grammar_kind, it.grammar]),
      [
        [1, null],
        [2, JSON.stringify(schema)],
        [3, "[0-9]+"],
        [5, '{"sequence":[]}'],
      ],
    );
  });

  test("plain texts: several prompts, echo, log probabilities", async () => {
    const { engine, state } = await open();
    const answer = await engine.completions.create({
      prompt: ["ab", "c"],
      n: 2,
      echo: true,
      max_tokens: 9,
    });
    assert.equal(answer.object, "text_completion");
    assert.deepEqual(
      answer.choices.map((choice) => choice.text.slice(0, 2)),
      ["ab", "ab", "cc", "c"].map((it, i) => (i < 2 ? "ab" : `c${answer.choices[i].text[1]}`)),
    );
    assert.deepEqual(
      state.submitted.map((it) => it.token_ids),
      [
        [256, 97, 98],
        [256, 99],
      ],
    );
    const scored = await engine.completions.create({
      prompt: [104, 105],
      logprobs: 2,
      stop_token_ids: [0],
    });
    assert.deepEqual(scored.choices[0].logprobs, {
      tokens: ["h", "i"],
      token_logprobs: [-104 / 64, -105 / 64],
      top_logprobs: [
        { __proto__: null, h: -104 / 64, i: -104 / 64 - 1 },
        { __proto__: null, i: -105 / 64, j: -105 / 64 - 1 },
      ],
      text_offset: [0, 1],
    });
    assert.equal(state.submitted.at(-1).max_tokens, 16);
    assertTidy(state);
  });
});

describe("streams", () => {
  test("chunks, and usage at the end", async () => {
    const { engine, state } = await open();
    const stream = await engine.chat.completions.create({
      messages: say("hi"),
      stream: true,
      stream_options: { include_usage: true },
    });
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    assert.deepEqual(
      chunks.map((chunk) => chunk.choices[0]?.delta ?? null),
      [{ role: "assistant", content: "" }, { content: "h" }, { content: "i" }, {}, null],
    );
    assert.deepEqual(chunks.at(-2).choices[0].finish_reason, "stop");
    assert.equal(chunks.at(-1).usage.total_tokens, 4);
    assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
    assert.ok(chunks.every((chunk) => chunk.object === "chat.completion.chunk"));
    assertTidy(state);
  });

  test("leaving a loop cancels", async () => {
    const { engine, state } = await open();
    const stream = await engine.completions.create({
      prompt: "abcdef",
      stream: true,
      max_tokens: 50,
      ignore_eos: true,
    });
    for await (const chunk of stream) {
      assert.equal(chunk.choices[0].text.length > 0, true);
      break;
    }
    assert.deepEqual(state.cancelled, [1]);
    assert.deepEqual(await stream.next(), { done: true, value: undefined });
    await turn();
    assertTidy(state);
  });

  test("many at once share the steps", async () => {
    const { engine, state } = await open();
    const texts = ["one", "three", "fifteen", "a hundred"];
    const answers = await Promise.all(
      texts.map((text) => engine.chat.completions.create({ messages: say(text) })),
    );
    assert.deepEqual(
      answers.map((answer) => answer.choices[0].message.content),
      texts,
    );
    assert.equal(state.maxBatch, 4);
    assert.ok(state.steps <= 12, `${state.steps} steps`);
  });

  test("several readers of one stream each get chunks of their own", async () => {
    const { engine } = await open();
    const stream = await engine.completions.create({ prompt: "xyz", stream: true });
    const found = await Promise.all([stream.next(), stream.next(), stream.next()]);
    assert.ok(found.every((entry) => !entry.done));
    assert.equal(new Set(found.map((entry) => entry.value)).size, 3);
  });
});

test("text, figures, logits, models", async () => {
  const { engine, state } = await open();
  assert.deepEqual(await engine.tokenize("hé", { bos: true }), [256, 104, 0xc3, 0xa9]);
  assert.equal(await engine.detokenize([104], { special: true }), "h");
  assert.equal((await engine.detokenize([104, 105])).length, 40);
  assert.equal((await engine.metrics()).pad.length, 1 << 15);
  assert.match(await engine.prometheusMetrics(), /TYPE/);
  const logits = await engine.logits(Uint32Array.of(1, 2));
  assert.equal(logits.length, 520);
  assert.equal(logits[260], 2);
  await engine.clearPrefixCache();
  assert.ok(state.cleared);
  assert.equal(engine.info.variant, "relaxed");
  assert.equal((await engine.models.list()).data[0].id, "fake");
  assert.equal((await engine.models.retrieve("fake")).context_window_size, 100);
  await assert.rejects(engine.models.retrieve("x"), { status: 404 });
  const rendered = await engine.renderChat([{ role: "user", content: "a" }], {
    generationPrompt: false,
  });
  assert.equal(JSON.parse(rendered).add_generation_prompt, false);
  await assert.rejects(engine.detokenize(["a"]), { code: "invalid_value" });
  await assert.rejects(engine.tokenize(1), { code: "invalid_value" });
  assertTidy(state);
});
