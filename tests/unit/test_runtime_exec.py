"""The bundle's runtime: opening and verifying bundles, kernel choice, the executable."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mlcbuild.bundle.abi import Status
from mlcbuild.bundle.manifest import ABI_VERSION
from tests.unit import fake_bundle
from tests.unit.fake_bundle import canonical, write_manifest, write_plan
from tests.unit.fake_runtime import Runtime, RuntimeFailure
from tests.unit.runtime_objects import RUNTIME, zig

HASHED_AT_OPEN = [
    "lib/fast.plan",
    "lib/plain.plan",
    "lib/kernels-fake.so",
    "params/index.json",
    "tokenizer/tokenizer.json",
    "chat.json",
]
HASHED_BY_VERIFY = ["params/params_shard_0.bin", "params/params_shard_1.bin", "bin/mlcb"]


@pytest.fixture(scope="module")
def binaries(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return fake_bundle.build_binaries(pytestconfig.cache)


@pytest.fixture
def bundle(tmp_path: Path, binaries: Path) -> Path:
    fake_bundle.make_bundle(tmp_path / "bundle", binaries)
    return tmp_path / "bundle"


@pytest.fixture(scope="module")
def runtime(binaries: Path) -> Runtime:
    return Runtime(binaries / "libmlcb.so")


def open_failure(runtime: Runtime, folder: Path, *, verify_full: bool = False) -> RuntimeFailure:
    with pytest.raises(RuntimeFailure) as caught:
        runtime.open(folder, verify_full=verify_full).close()
    return caught.value


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def run_mlcb(
    bundle: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [str(bundle / "bin" / "mlcb"), *arguments]
    return subprocess.run(
        command, env=env or {}, cwd="/", text=True, capture_output=True, check=False, timeout=60
    )


def test_inner_parts(binaries: Path) -> None:
    done = subprocess.run(
        [binaries / "exec_test"], text=True, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_many_threads_at_once(bundle: Path, binaries: Path) -> None:
    command = [binaries / "exec_stress", bundle]
    done = subprocess.run(command, text=True, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_open_and_verify(runtime: Runtime, bundle: Path) -> None:
    with runtime.open(bundle, verify_full=True) as opened:
        assert opened.manifest == (bundle / "bundle.json").read_text()


def test_missing_bundle(runtime: Runtime, tmp_path: Path) -> None:
    failure = open_failure(runtime, tmp_path)
    assert failure.status == Status.BUNDLE
    assert str(tmp_path / "bundle.json") in failure.message


@pytest.mark.parametrize("name", [*HASHED_AT_OPEN, *HASHED_BY_VERIFY])
def test_altered_byte(runtime: Runtime, bundle: Path, name: str) -> None:
    listed = json.loads((bundle / "bundle.json").read_bytes())["files"]
    expected = next(file["sha256"] for file in listed if file["path"] == name)
    flip_byte(bundle / name)
    found = fake_bundle.sha256((bundle / name).read_bytes())
    if name in HASHED_BY_VERIFY:
        runtime.open(bundle).close()
    failure = open_failure(runtime, bundle, verify_full=name in HASHED_BY_VERIFY)
    assert failure.status == Status.HASH
    for part in (name, expected, found):
        assert part in failure.message
    if name.endswith("shard_1.bin"):
        assert "altered: l1." in failure.message


def test_altered_file_list(runtime: Runtime, bundle: Path) -> None:
    manifest = json.loads((bundle / "bundle.json").read_bytes())
    manifest["files"][0]["sha256"] = "0" * 64
    (bundle / "bundle.json").write_bytes(canonical(manifest))
    failure = open_failure(runtime, bundle)
    assert failure.status == Status.HASH
    assert manifest["tree_digest"] in failure.message
    assert "sha256:" + fake_bundle.sha256(canonical(manifest["files"])) in failure.message


def test_manifest_that_is_no_json(runtime: Runtime, bundle: Path) -> None:
    (bundle / "bundle.json").write_bytes(b'{"bundle_version": 1')
    failure = open_failure(runtime, bundle)
    assert failure.status == Status.BUNDLE
    assert "bundle.json" in failure.message


def test_truncated_shard_is_found_at_open(runtime: Runtime, bundle: Path) -> None:
    shard = bundle / "params" / "params_shard_0.bin"
    size = shard.stat().st_size
    os.truncate(shard, size - 64)
    failure = open_failure(runtime, bundle)
    assert failure.status == Status.BUNDLE
    assert "params/params_shard_0.bin" in failure.message
    assert str(size) in failure.message
    assert str(size - 64) in failure.message


@pytest.mark.parametrize("name", [*HASHED_AT_OPEN, *HASHED_BY_VERIFY])
def test_missing_file_is_named(runtime: Runtime, bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    failure = open_failure(runtime, bundle)
    assert failure.status == Status.BUNDLE
    assert f"{name}: file is missing" in failure.message


@pytest.mark.parametrize("key", ["bundle_version", "abi_version", "plan_version", "params_version"])
def test_wrong_version_comes_first(runtime: Runtime, bundle: Path, key: str) -> None:
    (bundle / "chat.json").unlink()
    write_manifest(bundle, {key: 7})
    failure = open_failure(runtime, bundle)
    assert failure.status == Status.VERSION
    own = ABI_VERSION if key == "abi_version" else 1
    assert f"{key} is 7, this runtime reads {own}" in failure.message


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "lib/../../x", "lib//x", "a\\b", ""])
def test_paths_that_leave_the_bundle(runtime: Runtime, bundle: Path, path: str) -> None:
    files = [{"path": path, "size": 0, "sha256": fake_bundle.sha256(b"")}]
    digest = "sha256:" + fake_bundle.sha256(canonical(files))
    write_manifest(bundle, {"files": files, "tree_digest": digest})
    failure = open_failure(runtime, bundle)
    assert failure.status == Status.BUNDLE
    assert "unsafe path" in failure.message


def test_unlisted_file(runtime: Runtime, bundle: Path) -> None:
    (bundle / "attest").mkdir()
    (bundle / "attest" / "chat.json").write_bytes((bundle / "chat.json").read_bytes())
    write_manifest(bundle, {"chat": "attest/chat.json"})
    failure = open_failure(runtime, bundle)
    assert failure.status == Status.BUNDLE
    assert "not in its list of files" in failure.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offset": 32}, "not a multiple of 64"),
        ({"offset": 1 << 40}, "lie outside the shard"),
        ({"nbytes": 64}, "shape and type make"),
        ({"shape": [1 << 40, 1 << 40]}, "impossible shape"),
        ({"shape": [-1, 32]}, "impossible shape"),
        ({"shard": 2}, "shard 2 of 2"),
        ({"dtype": "float128"}, "unknown element type"),
        ({"name": "l0.q"}, "listed twice"),
        ({"shape": "wide"}, "params/index.json: "),
    ],
)
def test_hostile_params_index(
    runtime: Runtime, bundle: Path, change: fake_bundle.Json, message: str
) -> None:
    path = bundle / "params" / "index.json"
    index = json.loads(path.read_bytes())
    index["tensors"][0] |= change
    path.write_bytes(canonical(index))
    write_manifest(bundle)
    failure = open_failure(runtime, bundle)
    assert failure.status == Status.BUNDLE
    assert message in failure.message


Change = Callable[[fake_bundle.Json], object]


def _function(plan: fake_bundle.Json) -> fake_bundle.Json:
    functions: list[fake_bundle.Json] = plan["functions"]
    return functions[1]


def _tensor(plan: fake_bundle.Json, kind: str) -> list[object]:
    tensors: list[list[object]] = _function(plan)["tensors"]
    return next(tensor for tensor in tensors if tensor[0] == kind)


HOSTILE: dict[str, tuple[Change, str]] = {
    "kernel index": (
        lambda p: _function(p)["calls"][0].__setitem__(0, 99),
        "kernel 99 is not below 8",
    ),
    "negative kernel": (
        lambda p: _function(p)["calls"][0].__setitem__(0, -1),
        "kernel -1 is not below 8",
    ),
    "tensor index": (
        lambda p: _function(p)["calls"][0][1].__setitem__(0, ["t", 4096]),
        "tensor 4096",
    ),
    "argument kind": (
        lambda p: _function(p)["calls"][0][1].__setitem__(0, ["x", 0]),
        "kind of argument",
    ),
    "expression index": (lambda p: _tensor(p, "arena").__setitem__(4, [77]), "expression 77"),
    "param index": (lambda p: _tensor(p, "param").__setitem__(1, 1000), "param 1000"),
    "layer": (lambda p: _tensor(p, "kv").__setitem__(1, 2), "layer 2 is not below 2"),
    "meta table": (lambda p: _tensor(p, "meta").__setitem__(1, "x"), "unknown meta table"),
    "tensor kind": (lambda p: _tensor(p, "meta").__setitem__(0, "gpu"), "unknown tensor kind"),
    "dtype": (lambda p: _tensor(p, "kv").__setitem__(3, "int3"), "unknown element type"),
    "unaligned": (lambda p: _tensor(p, "arena").__setitem__(2, 4), "not a multiple of 64"),
    "arena overrun": (lambda p: _tensor(p, "arena").__setitem__(2, 1 << 30), "ends at byte"),
    "negative offset": (lambda p: _tensor(p, "arena").__setitem__(2, -64), "an offset is -64"),
    "kv overrun": (lambda p: _tensor(p, "kv").__setitem__(2, 64), "ends at byte"),
    "param overrun": (lambda p: _tensor(p, "param").__setitem__(2, 64), "ends at byte"),
    "arena too small": (lambda p: _function(p).__setitem__("arena_bytes", 64), "ends at byte"),
    "input twice": (
        lambda p: _function(p).__setitem__("inputs", [0, 0]),
        "which is not of that kind",
    ),
    "output index": (lambda p: _function(p).__setitem__("outputs", [-3]), "output tensor -3"),
    "variable": (lambda p: _function(p)["vars"].__setitem__(0, "x"), "unknown shape variable"),
    "variable index": (lambda p: _function(p)["exprs"].append(["$9"]), "variable $9 of 5"),
    "token": (lambda p: _function(p)["exprs"].append([1, 2, "^"]), "unknown token"),
    "stack underflow": (lambda p: _function(p)["exprs"].append([1, "+"]), "lacks an operand"),
    "stack leftover": (lambda p: _function(p)["exprs"].append([1, 2]), "leaves 2 values"),
    "empty expression": (lambda p: _function(p)["exprs"].append([]), "leaves 0 values"),
    "stack depth": (lambda p: _function(p)["exprs"].append([1] * 40), "nests too deeply"),
    "division by zero": (lambda p: _function(p)["exprs"].append([1, 0, "/"]), "divides by zero"),
    "overflow": (lambda p: _function(p)["exprs"].append([1 << 52, 1 << 52, "*"]), "overflows"),
    "page bytes": (lambda p: p["kv"].__setitem__("page_bytes", 64), "its shape makes"),
    "kv layout": (lambda p: p["kv"].__setitem__("layout", "kx"), "unknown kv layout"),
    "float codes": (
        lambda p: p["kv"].__setitem__("layout", "kt8"),
        'is float32 in the layout "kt8"',
    ),
    "codes without scales": (
        lambda p: p["kv"].__setitem__("dtype", "int8"),
        'is int8 in the layout "kt"',
    ),
    "scaled page bytes": (
        lambda p: p["kv"].update(dtype="int8", layout="kt8"),
        "kv.page_bytes is 512, its shape makes 192",
    ),
    "window": (lambda p: p["kv"].__setitem__("window", -1), "kv.window is -1"),
    "sinks": (lambda p: p["kv"].__setitem__("sinks", 2), "kv.sinks is 2, not in 0..0"),
    "no window": (
        lambda p: _tensor(p, "meta").__setitem__(1, "page_skip"),
        "the plan has no sliding window",
    ),
    "rope": (lambda p: p["rope"].__setitem__("inv_freq", [1.0]), "1 numbers for rotary_dim"),
    "no rope": (lambda p: p.__setitem__("rope", None), "the plan has no rope"),
    "bound": (lambda p: p["bounds"].__setitem__("kv_pages", -1), "kv_pages is -1"),
    "bound missing": (lambda p: p["bounds"].pop("kv_nnz"), "no bound for the shape variable"),
    "bound unknown": (lambda p: p["bounds"].__setitem__("x", 1), "unknown shape variable"),
    "positions": (lambda p: p["bounds"].__setitem__("rope_positions", 8), "context window"),
    "key missing": (lambda p: p.pop("kernels"), "kernels"),
    "wrong type": (lambda p: p.__setitem__("functions", 3), "lib/fast.plan"),
    "function missing": (lambda p: p["functions"].pop(0), "function embed is missing"),
    "kernel missing": (
        lambda p: p["kernels"].__setitem__(0, "nothing"),
        "__tvm_ffi_t_nothing is missing",
    ),
    "param missing": (lambda p: p["params"][0].__setitem__("name", "x"), "not in params/index"),
    "param shape": (
        lambda p: p["params"][0].__setitem__("shape", [265, 32]),
        "is wanted as float32 [265, 32]",
    ),
    "params layout": (lambda p: p.__setitem__("layout", "i4x16"), "i4x16"),
    "vocabulary": (lambda p: p.__setitem__("vocab_size", 9), "vocab_size differs"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_plan(runtime: Runtime, bundle: Path, name: str) -> None:
    change, message = HOSTILE[name]
    plan = fake_bundle.make_plan(fake_bundle.FakeLimits(), "fast", "int8")
    change(plan)
    write_plan(bundle, plan)
    with runtime.open(bundle) as opened, pytest.raises(RuntimeFailure) as caught:
        opened.engine().close()
    assert caught.value.status == Status.BUNDLE
    assert message in caught.value.message


def test_plan_that_grows_between_the_bounds(runtime: Runtime, bundle: Path) -> None:
    plan = fake_bundle.make_plan(fake_bundle.FakeLimits(), "fast", "int8")
    function = _function(plan)
    function["exprs"].append([100000, "$0", 6250, "*", "-"])  # 0 rows at the bound, more below it
    _tensor(plan, "arena")[4] = [len(function["exprs"]) - 1]
    write_plan(bundle, plan)
    with runtime.open(bundle) as opened, opened.engine() as engine:
        with pytest.raises(RuntimeFailure) as caught:
            engine.logits([1, 2, 3])
        assert caught.value.status == Status.BUNDLE
        assert "ends at byte" in caught.value.message


def test_plan_version(runtime: Runtime, bundle: Path) -> None:
    plan = fake_bundle.make_plan(fake_bundle.FakeLimits(), "fast", "int8") | {"plan_version": 2}
    write_plan(bundle, plan)
    with runtime.open(bundle) as opened, pytest.raises(RuntimeFailure) as caught:
        opened.engine().close()
    assert caught.value.status == Status.VERSION
    assert "plan version 2, this runtime reads version 1" in caught.value.message


def test_executable_answers_with_an_empty_environment(bundle: Path) -> None:
    done = run_mlcb(bundle, "--prompt", "Hello", "--max-tokens", "9", "--stats")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n")
    assert len(done.stdout) > 1
    assert "decode: " in done.stderr
    moved = bundle.parent / "moved"
    bundle.rename(moved)
    again = run_mlcb(moved, "--prompt", "Hello", "--max-tokens", "9", "--activations", "float")
    assert again.stdout == done.stdout
    assert again.stderr == ""


def test_executable_options(bundle: Path) -> None:
    plain = run_mlcb(bundle, "--prompt", "Hi", "--raw", "--max-tokens", "5").stdout
    assert run_mlcb(Path("/") / bundle, str(bundle), "--prompt=Hi", "--raw", "--max-tokens=5",
                    "--threads", "1", "--top-k", "3", "--verify").stdout == plain  # fmt: skip
    sampled = ["--prompt", "Hi", "--temperature", "5", "--max-tokens", "20", "--seed"]
    first, second, third = (run_mlcb(bundle, *sampled, seed).stdout for seed in ("1", "1", "2"))
    assert first == second
    assert first != third
    assert run_mlcb(bundle, "--prompt", "Hi", "--system", "Be kind").returncode == 0
    assert "usage: mlcb" in run_mlcb(bundle, "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--prompt is missing"),
        (["--prompt"], "--prompt is unknown, or its value is missing"),
        (["--prompt", "a", "--speed", "9"], "unknown option --speed"),
        (["--prompt", "a", "--threads", "x"], '--threads: "x" is not an integer'),
        (["--prompt", "a", "--top-p", "2"], '--top-p: "2" is not a number above 0, at most 1'),
        (["--prompt", "a", "--temperature", "nan"], "--temperature"),
        (["--prompt", "a", "--seed", "-1"], "--seed"),
        (["--prompt", "a", "--activations", "int4"], "is not int8 or float"),
        (["one", "two", "--prompt", "a"], "two bundles"),
        (["--prompt", "a", "--raw", "--system", "s"], "--system has no place"),
        (["--prompt", "a" * 200], "do not fit the context window of 96"),
    ],
)
def test_executable_usage_errors(bundle: Path, arguments: list[str], message: str) -> None:
    done = run_mlcb(bundle, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_executable_exit_codes(bundle: Path) -> None:
    flip_byte(bundle / "params" / "params_shard_0.bin")
    assert run_mlcb(bundle, "--prompt", "a", "--max-tokens", "2").returncode == 0
    assert run_mlcb(bundle, "--prompt", "a", "--verify").returncode == 6
    flip_byte(bundle / "params" / "params_shard_0.bin")
    variants = fake_bundle.make_manifest(bundle, fake_bundle.FakeLimits())["variants"]
    write_manifest(bundle, {"variants": variants[:1]})
    done = run_mlcb(bundle, "--prompt", "a")
    assert done.returncode == 7
    assert "future needs avx9000, which this CPU lacks" in done.stderr


def test_executable_meets_limits_of_the_machine(bundle: Path) -> None:
    command = [str(bundle / "bin" / "mlcb"), "--prompt", "a", "--max-tokens", "2"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert done.returncode == 7
    assert done.stderr == "error: cannot write to stdout\nwhy: No space left on device\n"
    # Room for some threads' stacks, not for all.
    done = subprocess.run(
        ["sh", "-c", 'ulimit -v 1000000; exec "$@"', "sh", *command, "--threads", "1024"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 7
    assert "of 1024\nwhy: " in done.stderr
    assert "hint: ask for fewer threads" in done.stderr


def test_folder_that_cannot_be_read(runtime: Runtime, tmp_path: Path) -> None:
    """Refused is not missing: a name too long stands in for rights, which root does not lack."""
    failure = open_failure(runtime, tmp_path / ("x" * 300))
    assert failure.status == Status.IO
    assert "bundle.json: cannot open: File name too long" in failure.message


@pytest.mark.parametrize("language", ["c89", "c11", "c++98", "c++17"])
def test_header_compiles(tmp_path: Path, language: str) -> None:
    source = tmp_path / ("main.cc" if "+" in language else "main.c")
    source.write_text(
        "#include <mlcb.h>\n"
        "int main(void) { mlcb_event event; return event.struct_size = sizeof(event), 0; }\n"
    )
    zig(
        "c++" if "+" in language else "cc",
        *(f"-std={language}", "-Wall", "-Wextra", "-Werror", "-pedantic-errors"),
        *("-I", RUNTIME / "include", "-c", source, "-o", tmp_path / "main.o"),
    )


def test_library_shows_the_interface_only(binaries: Path) -> None:
    declared = set(re.findall(r"\b(mlcb_\w+)\(", (RUNTIME / "include/mlcb.h").read_text()))
    library = ctypes.CDLL(str(binaries / "libmlcb.so"))
    assert all(hasattr(library, name) for name in declared)
    for symbol in ("_Znwm", "_ZdlPv", "TVMFFIErrorSetRaisedFromCStrParts"):
        assert not hasattr(library, symbol)


def test_binaries_stand_alone(binaries: Path) -> None:
    for name, most in (("libmlcb.so", 1_700_000), ("mlcb", 1_700_000), ("kernels-fake.so", 50_000)):
        data = (binaries / name).read_bytes()
        assert len(data) < most
        assert b"libstdc++" not in data
        assert b"libc++.so" not in data
        assert b"libtvm" not in data
        assert str(RUNTIME).encode() not in data
