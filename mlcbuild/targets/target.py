"""What a target is: a record of its kernel variants, layouts and toolchain."""

from __future__ import annotations

from dataclasses import dataclass

from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.layout import Layout
from mlcbuild.spec.scheme import QuantScheme


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel library: what the CPU must have, and how activations enter the kernels."""

    name: str
    capabilities: Capabilities
    activations: str  # "int8" or "float"


@dataclass(frozen=True, slots=True)
class Target:
    """A platform that bundles are built for.

    ``integer_variants`` / ``float_variants`` are for schemes with and without integer weights,
    best first; ``triple`` is the compiler's, ``zig_triple`` the linker's (with the libc floor).
    """

    name: str
    summary: str
    triple: str
    zig_triple: str
    integer_variants: tuple[Variant, ...]
    float_variants: tuple[Variant, ...]
    layouts: tuple[Layout, ...]
    library_suffix: str
    tools: tuple[str, ...]  # distributions that the build of this target needs

    def variants(self, scheme: QuantScheme) -> tuple[Variant, ...]:
        """The kernel libraries of a bundle with ``scheme``, best first."""
        return self.integer_variants if scheme.is_integer else self.float_variants

    def layout(self, scheme: QuantScheme) -> Layout | None:
        """The packed layout for the scheme's weights; None if the target has none."""
        for layout in self.layouts:
            if layout.weight_dtype == scheme.weight_dtype:
                return layout
        return None
