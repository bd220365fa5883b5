"""MLC's client in headless Chromium against desktop bundles: the same tokens, the same chances.

Both run the same checkpoint, the desktop with float activations. Takes minutes: the GPU is made of
software.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from mlcbuild.engine import Engine
from tests.bench.bench_quality import divergence, log_softmax
from tests.web.client import Client

TARGETS = ("web-wasm32-webgpu", "linux-x86_64-cpu")
QUESTION = "What is the capital of France?"
TEXT = (
    "The sea covers most of the earth. Its water is salt, and it moves with the wind, the tides "
    "and the turning of the planet. Ships have crossed it for thousands of years, carrying grain, "
    "cloth and news from one coast to another. In calm weather a sailing ship hardly moves at all; "
    "in a storm it may lose its masts. Sailors learned to read the stars, and later to measure the "
    "time exactly, so that they knew how far to the east or west they were."
)
PROMPT = 8  # tokens of the text that go in at once; the others are decoded
GREEDY_TOKENS = 32
MIN_TOP1, MAX_KLD = 0.99, 1e-3
SECONDS = 3600.0


def compare_greedy(web: Path, desktop: Path, profile: Path) -> bool:
    """Whether both answer a question with the same tokens."""
    messages = [{"role": "user", "content": QUESTION}]
    with Engine(desktop, activations="float") as engine:
        prompt = engine.prompt_token_ids(messages)
        answer = engine.generate(prompt, max_tokens=GREEDY_TOKENS, temperature=0.0, ignore_eos=True)
        text = engine.detokenize(answer.token_ids)
    with Client(web, profile, SECONDS) as client:
        found = client.chat(QUESTION, temperature=0, max_tokens=GREEDY_TOKENS)
        problems = list(client.problems)
    drawn, expected = found["drawn"], list(answer.token_ids)
    pairs = zip(drawn, expected, strict=False)
    same = next((i for i, (own, other) in enumerate(pairs) if own != other), len(drawn))
    print(f"greedy: {same} of {len(expected)} tokens are the same: {text!r}")
    print(f"        {found['ms'] / 1000:.0f} s")
    for problem in problems:
        print(f"console: {problem}")
    fed = found["fed"][: len(prompt)] == prompt
    print(f"        the prompt's tokens are {'the same' if fed else 'others'}")
    return drawn == expected and fed and not problems


def compare_chances(web: Path, desktop: Path, profile: Path, tokens: int) -> bool:
    """Whether both expect the same of each next token of a text."""
    with Engine(desktop, activations="float") as engine:
        ids = engine.tokenize(TEXT)[:tokens]
        expected = log_softmax(engine.logits(ids)[PROMPT - 1 :])
    begin = time.monotonic()
    with Client(web, profile, SECONDS) as client:
        found = log_softmax(client.logits(ids, PROMPT))
        problems = list(client.problems)
    top1 = float((found.argmax(axis=1) == expected.argmax(axis=1)).mean())
    kld = float(divergence(expected, found).mean())
    print(f"chances: top-1 agreement {top1:.4f}, mean KLD {kld:.2e} over {len(found)} positions")
    print(f"         {time.monotonic() - begin:.0f} s")
    for problem in problems:
        print(f"console: {problem}")
    return top1 >= MIN_TOP1 and kld <= MAX_KLD and not problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", type=Path, help="folder with a folder for each scheme")
    parser.add_argument("--tokens", type=int, default=107, help="of the text (%(default)s)")
    parser.add_argument("--only", choices=("chances", "greedy"))
    args = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        if args.only != "greedy":
            web, desktop = (args.bundles / "q4f32_1" / name for name in TARGETS)
            good &= compare_chances(web, desktop, Path(folder) / "chances", args.tokens)
        if args.only != "chances":
            web, desktop = (args.bundles / "q0f32" / name for name in TARGETS)
            good &= compare_greedy(web, desktop, Path(folder) / "greedy")
    if not good:
        raise SystemExit("the browser's client computes something else")


if __name__ == "__main__":
    main()
