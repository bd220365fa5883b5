"""What runs in the processes that compile and time candidates.

A candidate may crash, hang or use an instruction that the machine lacks. Both steps run in worker
processes of TVM's pool: a worker that dies or takes too long is replaced, and its candidate is
a failed trial.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm

from mlcbuild.core.cpuinfo import host_features
from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.schedule_space import Decisions, Workload

# arch/x86/include/uapi/asm/prctl.h: ask Linux for the registers of AMX.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18

# Kernel calls of one time, and times of a candidate. One call before them warms up; the last time
# is left out, since the last call gives the memory back.
CALLS, ROUNDS = 3, 10

# Bytes of copies of weights that calls use in turn, where weights come from memory: more than any
# last level of a cache that one of these devices gives to a process.
COLD_BYTES = 256 << 20

# Names of the kernels' arguments that are weights.
_WEIGHTS = ("w", "s")


def prepare_worker() -> None:
    """Called first in a worker that runs kernels here: it asks for AMX's registers."""
    import ctypes

    if "amx_int8" in host_features():
        ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)


def build_library(
    capabilities: Capabilities,
    workload: Workload,
    decisions: Decisions,
    whole: bool,
    target: Any,
    link: Sequence[str],
    threads: int,
) -> str:
    """Compiles and links one candidate, in a builder's worker; the path of its library.

    ``whole``: the kernel for any number of rows, as it is shipped, not only the workload's form.
    ``link`` is a linker command that ends with the objects of runtime_stub/tuning, which run the
    kernel as a bundle's runtime does; its exit code is not 0 if the candidate cannot be linked.
    """
    from mlcbuild.tuning.candidates import build_kernel, space_of

    func = build_kernel(capabilities, workload, decisions, whole=whole)
    library = tvm.compile(
        tvm.IRModule({"kernel": func.with_attr("global_symbol", "kernel")}), target
    )
    names = [parameter.name for parameter in func.params]
    weights = sum(1 << place for place, name in enumerate(names) if name in _WEIGHTS)
    cold = space_of(capabilities, workload).cold
    folder = Path(tempfile.mkdtemp(prefix="candidate-"))
    getattr(library, "mod", library).write_to_file(str(folder / "kernel.o"), "o")
    (folder / "about.cc").write_text(
        "#include <cstdint>\n"
        f'extern "C" const int32_t mlcb_tuning_threads = {threads};\n'
        f'extern "C" const uint64_t mlcb_tuning_calls = {1 + CALLS * ROUNDS}u;\n'
        f'extern "C" const uint64_t mlcb_tuning_weights = {weights if cold else 0}u;\n'
        f'extern "C" const uint64_t mlcb_tuning_copies_bytes = {COLD_BYTES}u;\n',
        encoding="utf-8",
    )
    file = str(folder / "kernel.so")
    command = [*link, str(folder / "kernel.o"), str(folder / "about.cc"), "-o", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"linking failed: {done.stderr.strip()[-500:]}")
    return file


def time_calls(
    module: Any, device: Any, evaluator_config: Any, repeated_args: Sequence[Sequence[Any]]
) -> list[float]:
    """Seconds of calls, on this machine or behind an RPC session."""
    evaluator = module.time_evaluator(
        func_name="main",
        dev=device,
        number=evaluator_config.number,
        repeat=evaluator_config.repeat,
        min_repeat_ms=0,
    )
    seconds: list[float] = []
    for args in repeated_args:
        seconds += [float(value) for value in evaluator(*args).results[:-1]]
    return seconds


def time_calls_remotely(
    session: Any,
    module: Any,
    device: Any,
    evaluator_config: Any,
    repeated_args: Sequence[Sequence[Any]],
) -> list[float]:
    """``time_calls`` with the arguments of an RPC runner."""
    del session
    return time_calls(module, device, evaluator_config, repeated_args)
