"""A small graph of quick stages that looks like a build: for tests of the machinery."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path

from mlcbuild.errors import VerificationError
from mlcbuild.pipeline.action import Action, ActionContext, FileInput
from mlcbuild.pipeline.env import BuildEnv
from mlcbuild.pipeline.stages.compose import VariantParts
from mlcbuild.recipe.build_spec import BuildSpec

SUBJECT = "toy/q0f32/linux-x86_64-cpu"
BLOCK = 64 * 1024


@dataclass
class Trace:
    """Which stages ran, in order."""

    ran: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Graph:
    """As the real ``build_graph`` returns."""

    bundle: Action
    verify: Action
    kernels: VariantParts = field(default_factory=lambda: VariantParts({}, {}, {}))


def toy_graph(
    source: Path,
    *,
    trace: Trace | None = None,
    batch: int = 8,
    scale: int = 1,
    tool: str = "1.0",
    delay: float = 0.0,
    blocks: int = 2,
    broken: str = "",
) -> Graph:
    """Stages: read, then left and right, then bundle, then verify.

    ``scale`` reaches ``left`` only; its output holds ``scale // 10``, so that small changes are
    cut off.
    """

    def note(context: ActionContext, stage: str) -> None:
        if trace is not None:
            trace.ran.append(stage)
        if stage == broken:
            (context.out / "half").write_text("half")
            raise ValueError("the stage is broken")

    def read(context: ActionContext) -> None:
        note(context, "read")
        (context.out / "text").write_bytes(context.inputs["source"].read_bytes())

    def left(context: ActionContext) -> None:
        note(context, "left")
        scale = context.params["scale"]
        assert isinstance(scale, int)
        data = (context.inputs["read"] / "text").read_bytes()
        (context.out / "left.bin").write_bytes(data + str(scale // 10).encode())

    def right(context: ActionContext) -> None:
        note(context, "right")
        seed = hashlib.sha256((context.inputs["read"] / "text").read_bytes()).digest()
        (context.out / "deep" / "er").mkdir(parents=True)
        with (context.out / "deep" / "er" / "right.bin").open("wb") as file:
            for index in range(blocks):
                time.sleep(delay / blocks)
                file.write(hashlib.sha256(seed + bytes([index])).digest() * (BLOCK // 32))

    def bundle(context: ActionContext) -> None:
        note(context, "bundle")
        (context.out / "bin").mkdir()
        tool_path = context.out / "bin" / "tool"
        tool_path.write_text("#!/bin/sh\n")
        tool_path.chmod(0o755)
        (context.out / "bundle.json").write_text("{}")
        for name, path in (("left", "left.bin"), ("right", "deep/er/right.bin")):
            (context.out / Path(path).name).write_bytes((context.inputs[name] / path).read_bytes())

    def verify(context: ActionContext) -> None:
        note(context, "verify")
        if b"bad" in (context.inputs["bundle"] / "left.bin").read_bytes():
            raise VerificationError("the bundle is bad")
        (context.out / "ok").write_text("ok")

    first = Action("read", 1, "toy", read, inputs={"source": FileInput(source)})
    one = Action("left", 1, SUBJECT, left, inputs={"read": first}, params={"scale": scale})
    two = Action(
        "right",
        1,
        SUBJECT,
        right,
        inputs={"read": first},
        params={"limits": {"max_batch_size": batch}, "blocks": blocks},
        tools={"zig": tool},
        long=True,
    )
    final = Action("bundle", 1, SUBJECT, bundle, inputs={"left": one, "right": two})
    return Graph(final, Action("verify", 1, SUBJECT, verify, inputs={"bundle": final}))


def build_graph(spec: BuildSpec, env: BuildEnv) -> Graph:
    """Stands in for the real one; the recipe's bounds choose the toy's parameters."""
    options = spec.target_options
    blocks, delay = options.get("blocks", 2), options.get("delay", 0.0)
    assert isinstance(blocks, int)
    assert isinstance(delay, (int, float))
    return toy_graph(
        spec.resolve_path(spec.source),
        batch=spec.limits.max_batch_size,
        delay=float(delay),
        blocks=blocks,
    )
