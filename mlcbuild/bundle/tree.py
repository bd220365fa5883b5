"""Walking and hashing the files of a bundle folder."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from mlcbuild.bundle.manifest import MANIFEST_NAME, is_attestation, path_problem
from mlcbuild.errors import VerificationError

_CHUNK = 4 << 20


def hash_file(path: Path) -> tuple[str, int]:
    """(sha256 as hex, size in bytes) of a file, read in chunks."""
    digest = hashlib.sha256()
    size = 0
    buffer = memoryview(bytearray(_CHUNK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
    return digest.hexdigest(), size


def walk_files(root: Path) -> tuple[list[str], list[str]]:
    """(files, refused) below ``root`` as sorted POSIX paths.

    ``refused`` holds what a bundle may not have: symbolic links, devices, sockets, names that are
    no portable path. Links are not followed.
    """
    files: list[str] = []
    refused: list[str] = []
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                path = f"{folder}{entry.name}"
                if entry.is_symlink() or path_problem(path) is not None:
                    refused.append(path)
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(path + "/")
                elif entry.is_file(follow_symlinks=False):
                    files.append(path)
                else:
                    refused.append(path)
    return sorted(files), sorted(refused)


def list_payload(root: Path) -> list[str]:
    """Sorted paths of the payload files below ``root``, without bundle.json and attest/.

    Raises ``VerificationError`` on anything that is not a plain file or folder.
    """
    files, refused = walk_files(root)
    if refused:
        raise VerificationError(
            "a bundle may hold plain files only",
            where=str(root),
            why=f"links or special files: {', '.join(refused)}",
            hint="put the file itself in the place of the link",
        )
    return [path for path in files if path != MANIFEST_NAME and not is_attestation(path)]
