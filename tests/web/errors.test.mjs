// The engine over a made-up module: cancelling, errors, crashes.

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { MlcbError } from "../../mlcbuild/runtime_stub/platform/web/mlcb.js";
import { makeBundle } from "./fake_bundle.mjs";
import { assertTidy, open, say, turn } from "./fake_engine.mjs";
import { FAILS, TRAPS, fakeWasm } from "./fake_wasm.mjs";

describe("cancelling", () => {
  test("an AbortSignal", async () => {
    const { engine, state } = await open();
    const body = { prompt: "abc", max_tokens: 90, ignore_eos: true };
    const gone = AbortSignal.abort();
    await assert.rejects(engine.completions.create(body, { signal: gone }), { name: "AbortError" });
    assert.equal(state.submitted.length, 0);
    const controller = new AbortController();
    const whole = engine.completions.create(body, { signal: controller.signal });
    const stream = await engine.completions.create(
      { ...body, stream: true },
      { signal: controller.signal },
    );
    await stream.next();
    controller.abort(new Error("enough"));
    await assert.rejects(whole, /enough/);
    await assert.rejects(stream.next(), /enough/);
    assert.deepEqual(state.cancelled.sort(), [1, 2]);
    await turn();
    assertTidy(state);
    // What comes after works.
    assert.equal((await engine.completions.create({ prompt: [97] })).choices[0].text, "a");
  });

  test("unload() ends what runs", async () => {
    const { engine, state } = await open();
    const body = { prompt: "abc", max_tokens: 90, ignore_eos: true };
    const whole = engine.completions.create(body);
    const stream = await engine.completions.create({ ...body, stream: true });
    await stream.next();
    await Promise.all([
      assert.rejects(whole, { code: "engine_closed" }),
      assert.rejects(
        async () => {
          for await (const chunk of stream) assert.ok(chunk);
        },
        { code: "engine_closed" },
      ),
      engine.unload(),
    ]);
    await engine.unload();
    await assert.rejects(engine.tokenize("a"), {
      name: "MlcbError",
      code: "engine_closed",
      status: 400,
    });
    assert.equal(state.handles.size, 0);
  });
});

describe("errors", () => {
  const rejects = async (promise, want) => {
    await assert.rejects(promise, (error) => {
      assert.ok(error instanceof MlcbError, String(error.stack));
      for (const [key, value] of Object.entries(want)) assert.equal(error[key], value, key);
      return true;
    });
  };

  test("of requests", async () => {
    const { engine, state } = await open({ maxWaiting: 1 });
    const chat = (more) => engine.chat.completions.create({ messages: say("a"), ...more });
    await rejects(chat({ tempratur: 1 }), {
      status: 400,
      code: "unknown_parameter",
      param: "tempratur",
      hint: "did you mean temperature?",
      message: "unknown parameter tempratur; did you mean temperature?",
      type: "invalid_request_error",
    });
    await rejects(chat({ model: "other" }), {
      status: 404,
      code: "model_not_found",
      param: "model",
    });
    await rejects(chat({ messages: say("x".repeat(101)) }), {
      status: 400,
      code: "context_length_exceeded",
      param: "messages",
      text: "101 tokens do not fit 100",
    });
    await rejects(engine.completions.create({ prompt: "x".repeat(101) }), { param: "prompt" });
    await rejects(chat({ messages: [{ role: "user", content: "REFUSE" }] }), {
      param: "messages",
      code: "invalid_value",
      message: "the template says: no",
    });
    const tools = [{ type: "function", function: { name: "bad" } }];
    await rejects(chat({ messages: say("NOTOOLS"), tools }), { param: "tools" });
    await rejects(chat({ grammar: { type: "regex", value: "bad" } }), {
      code: "invalid_grammar",
      param: "grammar",
      why: "character 1",
    });
    const schema = { type: "object", bad: true };
    const blamed = [{ type: "function", function: { name: "ok", parameters: schema } }];
    await rejects(chat({ tools: blamed, tool_choice: "required" }), {
      code: "invalid_grammar",
      param: "tools[0].function.parameters",
    });
    await rejects(engine.completions.create({ prompt: [300] }), {
      param: "prompt",
      message: "prompt holds token 300, the model has 260",
    });
    await rejects(chat({ logit_bias: { 260: 1 } }), { param: "logit_bias" });
    await rejects(chat({ stop: ["a\0"] }), { message: "a stop string holds a NUL character" });
    const running = chat({ n: 1, max_tokens: 50, ignore_eos: true });
    await rejects(chat({}), { status: 429, code: "engine_busy", type: "rate_limit_error" });
    await running;
    await rejects(chat({ messages: say(String.fromCharCode(FAILS)) }), {
      status: 500,
      code: "internal_error",
      why: "it was told to",
    });
    await turn();
    assertTidy(state);
  });

  test("more memory than there are addresses", async () => {
    const bundle = (manifest) => ({ files: makeBundle({ manifest }) });
    // 4 * 2 * 2 ** 29 bytes are none in 32 bits.
    const { engine, state } = await open({}, bundle({ model: { vocab_size: 2 ** 29 } }));
    await rejects(engine.logits([1, 2]), { status: 503, code: "out_of_memory" });
    assertTidy(state);
    const { files } = JSON.parse(new TextDecoder().decode(makeBundle().get("bundle.json")));
    files.find((file) => file.path === "chat.json").size = 2 ** 32 + 64;
    await rejects(open({}, bundle({ files })), {
      code: "out_of_memory",
      text: `no memory for /bundle/chat.json (${2 ** 32 + 64} bytes)`,
    });
  });

  test("a step that fails ends all requests, and leaves nothing of them", async () => {
    const wasm = fakeWasm();
    const { engine, state } = await open({}, { wasm });
    const endless = { messages: say("abc"), max_tokens: 90, ignore_eos: true };
    const whole = engine.chat.completions.create(endless);
    const stream = await engine.chat.completions.create({ ...endless, stream: true });
    await stream.next();
    const step = wasm.exports.mlcb_engine_step;
    wasm.exports.mlcb_engine_step = () => 60;
    await Promise.all([
      rejects(whole, { status: 500, code: "internal_error" }),
      assert.rejects(
        async () => {
          for await (const chunk of stream) assert.ok(chunk);
        },
        { code: "internal_error" },
      ),
    ]);
    assert.deepEqual(state.cancelled.sort(), [1, 2]);
    await turn();
    assertTidy(state);
    wasm.exports.mlcb_engine_step = step;
    const answer = await engine.chat.completions.create({ messages: say("fine") });
    assert.equal(answer.choices[0].message.content, "fine");
    await engine.unload();
    assert.equal(state.handles.size, 0);
  });

  test("a crash ends everything, and says so", async () => {
    const { engine } = await open();
    const other = engine.completions.create({ prompt: "abc", max_tokens: 90, ignore_eos: true });
    const stream = await engine.completions.create({ prompt: [TRAPS], stream: true });
    await rejects(stream.next(), {
      status: 500,
      code: "runtime_crashed",
      hint: "load the engine again",
    });
    await rejects(other, { code: "runtime_crashed" });
    await rejects(engine.tokenize("a"), { code: "runtime_crashed" });
    await engine.unload();
  });

  test("a failing step of one request does not touch others", async () => {
    const { engine } = await open();
    const good = engine.chat.completions.create({ messages: say("fine") });
    await rejects(engine.completions.create({ prompt: [FAILS] }), { code: "internal_error" });
    assert.equal((await good).choices[0].message.content, "fine");
  });

  test("JSON of an error is the body that the server sends", () => {
    const error = new MlcbError("no", {
      status: 400,
      code: "invalid_value",
      param: "n",
      hint: "yes",
    });
    assert.deepEqual(JSON.parse(JSON.stringify(error)), {
      error: {
        message: "no; yes",
        type: "invalid_request_error",
        param: "n",
        code: "invalid_value",
      },
    });
  });
});
