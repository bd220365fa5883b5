"""bundle.json of a bundle for another client's runtime, and reading one of any kind."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from mlcbuild.bundle.manifest import (
    MANIFEST_NAME,
    BundleManifest,
    BundlePath,
    Count,
    ManifestBase,
    Record,
    check_manifest,
    decode_manifest,
    kind_of,
    manifest_bytes,
)

CLIENT_KIND: Literal["client"] = "client"


class ClientInfo(Record):
    """Who loads the bundle, and what it finds where.

    ``package`` is the npm package with the version that the bundle is made for; ``config`` and
    ``params`` lie where the client looks for them.
    """

    package: str
    library: BundlePath
    config: BundlePath
    params: BundlePath


class DeviceNeeds(Record):
    """What a device must offer: WebGPU's feature names, and limits beyond its defaults."""

    features: list[str]
    limits: dict[str, Count]


class ClientMemory(Record):
    """Bytes on the device.

    ``scratch_bytes``: what the library plans for activations at the largest chunk; ``kv_bytes``:
    the pages of the cache, a full context and one more; ``total_bytes``: all of it.
    """

    weights_bytes: Count
    kv_bytes_per_token: Count
    kv_bytes: Count
    scratch_bytes: Count
    total_bytes: Count


class ClientManifest(ManifestBase):
    """The whole of bundle.json; the fields are described in docs/formats.md."""

    kind: Literal["client"] = CLIENT_KIND
    client: ClientInfo
    needs: DeviceNeeds
    tokenizer: BundlePath
    page: BundlePath | None
    memory: ClientMemory

    def referenced(self) -> list[str]:
        """Files that other fields name."""
        client = self.client
        paths = [client.library, client.config, client.params, self.tokenizer]
        return paths if self.page is None else [*paths, self.page]


AnyManifest: TypeAlias = BundleManifest | ClientManifest


def read_any_manifest(bundle: Path) -> AnyManifest:
    """The manifest of the bundle in folder ``bundle``, of whatever kind.

    Raises ``VerificationError`` if there is none, or if it is malformed or of another version.
    """
    where = str(bundle / MANIFEST_NAME)
    raw = decode_manifest(manifest_bytes(bundle), where)
    if kind_of(raw) == CLIENT_KIND:
        return check_manifest(ClientManifest, raw, where)
    return check_manifest(BundleManifest, raw, where)
