"""A linker for candidates of which some crash, hang, cannot run or cannot be linked.

Called as ``bad_linker.py STATE MODES COMMAND... OBJECTS... -o LIBRARY``: MODES (with commas) are
for the first calls, counted in the file STATE; later calls run COMMAND, the real linker.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BODIES = {
    "crash": "*(volatile int*)0 = 1;",
    "hang": 'for (;;) { __asm__ volatile(""); }',
    "illegal": "__builtin_trap();",
}


def main() -> int:
    """Link; the exit code."""
    state, modes, *command = sys.argv[1:]
    path = Path(state)
    count = int(path.read_text() or "0") if path.exists() else 0
    path.write_text(str(count + 1))
    wanted = modes.split(",")
    mode = wanted[count] if count < len(wanted) else "good"
    if mode == "fail":
        print("ld: this candidate cannot be linked", file=sys.stderr)
        return 1
    if mode in BODIES:
        source = path.with_suffix(".cc")
        source.write_text(
            'extern "C" { void* __TVMBackendParallelLaunch; '
            "int __tvm_ffi_kernel(void* s, const void* a, int n, void* r) "
            f"{{ {BODIES[mode]} return 0; }} }}\n"
        )
        kept = [word for word in command if not word.endswith("kernel.o")]
        command = [*kept, str(source)]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
