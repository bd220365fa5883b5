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

from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.schedule_space import Decisions, Workload

# arch/x86/include/uapi/asm/prctl.h: ask Linux for the registers of AMX.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18

# Calls for a kernel whose weights are in memory, each after the caches were emptied; and for one
# whose weights stay in a cache.
COLD_CALLS = 15
WARM_CALLS, WARM_ROUNDS = 2, 5


def prepare_worker(threads: int) -> None:
    """Called first in a worker that runs kernels here: its threads, and AMX's registers."""
    import ctypes

    tvm.get_global_func("runtime.config_threadpool")(1, threads)
    if "amx_int8" in _flags():
        ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)


def _flags() -> Sequence[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return ()


def build_library(
    capabilities: Capabilities,
    workload: Workload,
    decisions: Decisions,
    whole: bool,
    target: Any,
    link: Sequence[str],
) -> str:
    """Compiles and links one candidate, in a builder's worker; the path of its library.

    ``whole``: the kernel for any number of rows, as it is shipped, not only the workload's form.
    """
    from mlcbuild.tuning.candidates import build_kernel

    func = build_kernel(capabilities, workload, decisions, whole=whole)
    return export_library(compile_kernel(func, target), link)


def compile_kernel(func: Any, target: Any) -> Any:
    """A module with the kernel as ``main``."""
    library = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target)
    return getattr(library, "mod", library)


def export_library(module: Any, link: Sequence[str]) -> str:
    """Writes a shared library with the linker command ``link``; its path."""
    folder = Path(tempfile.mkdtemp(prefix="candidate-"))
    module.write_to_file(str(folder / "kernel.o"), "o")
    library = folder / "kernel.so"
    command = [*link, "-o", str(library), str(folder / "kernel.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"linking failed: {done.stderr.strip()[-500:]}")
    return str(library)


def time_calls(
    module: Any, device: Any, evaluator_config: Any, repeated_args: Sequence[Sequence[Any]]
) -> list[float]:
    """Seconds of calls, on this machine or behind an RPC session.

    ``enable_cpu_cache_flush`` says that weights come from memory: each call is timed alone, after
    the arguments were flushed from the caches (warm caches would choose another kernel). The
    first argument, activations, stays: in a model it was just written.
    """
    cold = bool(evaluator_config.enable_cpu_cache_flush)
    evaluator = module.time_evaluator(
        func_name="main",
        dev=device,
        number=1 if cold else evaluator_config.number,
        repeat=evaluator_config.repeat,
        min_repeat_ms=0 if cold else evaluator_config.min_repeat_ms,
        f_preproc="cache_flush_cpu_non_first_arg" if cold else "",
    )
    seconds: list[float] = []
    for args in repeated_args:
        evaluator(*args)
        seconds += [float(value) for value in evaluator(*args).results]
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
