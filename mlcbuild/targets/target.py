"""What a target is: a record of what its bundles hold and of what builds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from mlcbuild.spec.capabilities import Capabilities
from mlcbuild.spec.layout import Layout
from mlcbuild.spec.scheme import QuantScheme


@dataclass(frozen=True, slots=True)
class Program:
    """A tool that no Python package brings: the command, and where it is to be had."""

    command: str
    install: str


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel library: what the CPU must have, and how activations enter the kernels."""

    name: str
    capabilities: Capabilities
    activations: str  # "int8" or "float"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(ABC):
    """A platform that bundles are built for; its subclasses are the kinds of bundles.

    ``tools`` are the distributions, ``programs`` the commands that a build needs.
    """

    name: str
    summary: str
    tools: tuple[str, ...]
    programs: tuple[Program, ...] = ()

    @abstractmethod
    def supports(self, scheme: QuantScheme) -> bool:
        """Whether bundles of this target can hold ``scheme``."""

    def capabilities(self) -> tuple[tuple[str, Capabilities], ...]:
        """What each kernel variant needs of a CPU; empty where no CPU runs the kernels."""
        return ()

    def options(self) -> Mapping[str, tuple[str, ...]]:
        """Keys of the recipe's table ``[targets.<name>]``, with the values that each may have."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTarget(Target):
    """Our own runtime carries out a plan over kernels, one plan and set of them for each variant.

    ``integer_variants`` / ``float_variants`` are for schemes with and without integer weights,
    best first; ``triple`` is the compiler's. Files are named as in a bundle's lib/.
    """

    triple: str
    integer_variants: tuple[Variant, ...]
    float_variants: tuple[Variant, ...]
    layouts: tuple[Layout, ...]

    @property
    @abstractmethod
    def runtime_file(self) -> str:
        """The file that holds the runtime."""

    @property
    def executable(self) -> str | None:
        """Where in a bundle the runtime lies as a program; None if there is none."""
        return None

    @abstractmethod
    def kernels_file(self, variant: Variant) -> str:
        """The file that holds a variant's kernels."""

    def supports(self, scheme: QuantScheme) -> bool:
        """Whether there is a layout for the scheme's weights."""
        return self.layout(scheme) is not None

    def capabilities(self) -> tuple[tuple[str, Capabilities], ...]:
        """By variant, those of integer schemes first."""
        both = (*self.integer_variants, *self.float_variants)
        return tuple((variant.name, variant.capabilities) for variant in both)

    def variants(self, scheme: QuantScheme) -> tuple[Variant, ...]:
        """The kernel libraries of a bundle with ``scheme``, best first."""
        return self.integer_variants if scheme.is_integer else self.float_variants

    def layout(self, scheme: QuantScheme) -> Layout | None:
        """The packed layout for the scheme's weights; None if the target has none."""
        for layout in self.layouts:
            if layout.weight_dtype == scheme.weight_dtype:
                return layout
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeTarget(PlanTarget):
    """The runtime is a shared library and a program; each variant's kernels are a library.

    ``zig_triple`` is the linker's (with the libc floor).
    """

    zig_triple: str
    library_suffix: str

    @property
    def runtime_file(self) -> str:
        """The shared library."""
        return f"libmlcb{self.library_suffix}"

    @property
    def executable(self) -> str | None:
        """The program for a shell."""
        return "bin/mlcb"

    def kernels_file(self, variant: Variant) -> str:
        """A library of the variant's own."""
        return f"kernels-{variant.name}{self.library_suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WasmTarget(PlanTarget):
    """The runtime and kernels are one WebAssembly module for each instruction set.

    A module is accepted as a whole or not at all, so the host picks the best that it can compile;
    each holds the kernels of every variant that runs where it does.
    """

    def capabilities(self) -> tuple[tuple[str, Capabilities], ...]:
        """None of a CPU: the engine that runs a module takes it or not."""
        return ()

    @property
    def runtime_file(self) -> str:
        """The module that runs on most hosts: that of the last variant."""
        return self.kernels_file(self.float_variants[-1])

    def kernels_file(self, variant: Variant) -> str:
        """The module of the variant's own instruction set."""
        return f"mlcb-{variant.capabilities.isa}.wasm"

    def module_variants(self, scheme: QuantScheme, file: str) -> tuple[Variant, ...]:
        """The variants whose kernels are in the module ``file`` of a bundle, best first."""
        variants = self.variants(scheme)
        features = next(
            set(variant.capabilities.features)
            for variant in variants
            if self.kernels_file(variant) == file
        )
        return tuple(v for v in variants if features.issuperset(v.capabilities.features))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTarget(Target):
    """A client of somebody else's runs the model: its bundles are what that client loads.

    ``client`` is the npm package with the version that bundles are made for, ``schemes`` names
    those that it knows. ``host_triple`` is the compiler's for code around the kernels;
    ``shared_memory`` are the bytes that the threads of a kernel may share; ``optimize_levels`` are
    those of the linker's that a recipe may ask for, ``optimize`` is the one without a word of it.
    """

    client: str
    schemes: tuple[str, ...]
    host_triple: str
    shared_memory: int
    optimize_levels: tuple[str, ...]
    optimize: str

    def supports(self, scheme: QuantScheme) -> bool:
        """Whether the client knows the scheme by this name."""
        return scheme.name in self.schemes

    def options(self) -> Mapping[str, tuple[str, ...]]:
        """How hard the linker optimizes."""
        return {"optimize": self.optimize_levels}
