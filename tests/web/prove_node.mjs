// A proof in node: node prove_node.mjs BUNDLE. The bundle's own JavaScript opens it, on this thread
// and on one of its own, and must compute what golden.json says.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const bundle = resolve(process.argv[2]);
const { Engine, hostCapabilities } = await import(
  pathToFileURL(join(bundle, "platform/web/mlcb.js")).href
);
const manifest = JSON.parse(readFileSync(join(bundle, "bundle.json"), "utf8"));
const golden = manifest.golden && JSON.parse(readFileSync(join(bundle, manifest.golden), "utf8"));
const schema = {
  type: "object",
  properties: { ok: { type: "boolean" } },
  required: ["ok"],
  additionalProperties: false,
};

const texts = new Map();
for (const { name, activations, capability } of manifest.variants) {
  if (!capability.every((flag) => hostCapabilities().has(flag))) continue;
  for (const worker of [false, true]) {
    const engine = await Engine.load(bundle, { variant: name, worker });
    assert.equal(engine.info.variant, name);
    assert.deepEqual(engine.warnings, []);
    let distance = "not compared";
    if (golden !== null && activations === "float") {
      // What golden.json holds was computed with activations in float.
      const logits = await engine.logits(golden.prompt_token_ids);
      const row = logits.subarray(logits.length - manifest.model.vocab_size);
      distance = Math.max(
        ...golden.top_logits.map(([token, value]) => Math.abs(row[token] - value)),
      );
      assert.ok(distance <= golden.tolerance, `logits differ by ${distance}`);
      const { choices } = await engine.completions.create({
        prompt: golden.prompt_token_ids,
        temperature: 0,
        ignore_eos: true,
        max_tokens: golden.greedy_token_ids.length,
      });
      assert.equal(choices[0].text, await engine.detokenize(golden.greedy_token_ids));
    }
    const greedy = { prompt: "The capital of France is", temperature: 0, max_tokens: 12 };
    const [whole, again] = await Promise.all([
      engine.completions.create(greedy),
      engine.completions.create(greedy),
    ]);
    const { text } = whole.choices[0];
    assert.equal(again.choices[0].text, text);
    let streamed = "";
    for await (const chunk of await engine.completions.create({ ...greedy, stream: true }))
      streamed += chunk.choices[0].text;
    assert.equal(streamed, text);
    assert.equal(texts.get(name) ?? text, text, "a thread of its own changes nothing");
    texts.set(name, text);
    const bound = await engine.completions.create({
      ...greedy,
      max_tokens: 200,
      temperature: 0.5,
      seed: 1,
      response_format: { type: "json_schema", json_schema: { name: "x", schema } },
    });
    if (bound.choices[0].finish_reason === "stop") JSON.parse(bound.choices[0].text);
    await assert.rejects(engine.completions.create({ prompt: "a", tempratur: 1 }), {
      code: "unknown_parameter",
    });
    await engine.unload();
    console.log(
      `ok ${name}${worker ? ", a thread of its own" : ""}: ${JSON.stringify(text)}, logits: ${distance}`,
    );
  }
}
assert.ok(texts.size > 0, "this node runs no variant");
