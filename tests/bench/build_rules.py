"""Builds one model with several rules for the scales of its 4-bit weights, for bench_quality.py.

    python tests/bench/build_rules.py MODEL --out FOLDER [--context 1024]

MODEL is what a recipe's ``source`` may be. Prints ``--bundle NAME=PATH`` for each: q0f32 (the
reference), q4f16_1 as it ships, the search kept to 15 levels, and MLC's rule.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "mlcbuild.", when run as a script

from mlcbuild.pipeline.build import build_graph
from mlcbuild.pipeline.env import BuildEnv
from mlcbuild.pipeline.export import export_tree
from mlcbuild.pipeline.scheduler import Scheduler
from mlcbuild.quant.schemes import get_scheme
from mlcbuild.recipe.build_spec import BuildSpec
from mlcbuild.recipe.lock import RecipeLock
from mlcbuild.spec.limits import Limits
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.store.store import Store

TARGET = "linux-x86_64-cpu"


def rules() -> dict[str, QuantScheme]:
    """The schemes to compare, by the name of the bundle."""
    shipped = get_scheme("q4f16_1")
    return {
        "q0f32": get_scheme("q0f32"),
        "q4f16_1": shipped,
        "q4f16_1-search-15-levels": dataclasses.replace(shipped, max_code=14),
        "q4f16_1-absmax": dataclasses.replace(shipped, max_code=14, scale_rule="absmax"),
    }


def main() -> int:
    """Build them all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--context", type=int, default=1024)
    options = parser.parse_args()
    store = Store(options.out / "store")
    env = BuildEnv(store, RecipeLock(None), threads=os.cpu_count() or 1)
    for name, scheme in rules().items():
        spec = BuildSpec(
            recipe=name,
            scheme=scheme.name,
            target=TARGET,
            source=options.model,
            limits=Limits(options.context, 512, 4, kv_dtype=scheme.kv_dtype),
            base_dir=Path.cwd(),
        )
        graph = build_graph(spec, env, scheme)
        result = Scheduler(store, env.progress, threads=env.threads).run(
            [graph.verify, graph.bundle]
        )
        if result.first_error is not None:
            raise result.first_error
        record = result.records[1]
        if record is None:
            return 1
        export_tree(store, record.tree, options.out / name, env.progress)
        print(f"--bundle {name}={options.out / name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
