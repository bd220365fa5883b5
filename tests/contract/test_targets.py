"""What every target must offer; a new folder in mlcbuild/targets is tested by being there."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata

import pytest

from mlcbuild.errors import UsageError
from mlcbuild.quant.schemes import SCHEMES
from mlcbuild.targets.registry import get_plan_target, get_target, target_names
from mlcbuild.targets.target import PlanTarget, Target


@pytest.fixture(params=target_names())
def target(request: pytest.FixtureRequest) -> Target:
    return get_target(request.param)


@pytest.fixture(params=[n for n in target_names() if isinstance(get_target(n), PlanTarget)])
def plan_target(request: pytest.FixtureRequest) -> PlanTarget:
    return get_plan_target(request.param)


def test_there_is_one() -> None:
    assert "linux-x86_64-cpu" in target_names()


def test_the_name_says_system_architecture_and_device(target: Target) -> None:
    assert re.fullmatch(r"[a-z]+-(x86_64|[a-z]+[0-9]+)-[a-z0-9]+", target.name)
    assert target.summary


def test_it_holds_some_scheme(target: Target) -> None:
    assert [name for name, scheme in SCHEMES.items() if target.supports(scheme)]


def test_every_scheme_that_it_holds_has_variants(plan_target: PlanTarget) -> None:
    for scheme in filter(plan_target.supports, SCHEMES.values()):
        names = [variant.name for variant in plan_target.variants(scheme)]
        assert names
        assert len(set(names)) == len(names)


def test_integer_schemes_also_run_with_float_activations(plan_target: PlanTarget) -> None:
    kinds = {variant.activations for variant in plan_target.integer_variants}
    assert "float" in kinds
    assert {variant.activations for variant in plan_target.float_variants} == {"float"}


def test_the_last_variant_of_a_kind_needs_least(plan_target: PlanTarget) -> None:
    for variants in (plan_target.integer_variants, plan_target.float_variants):
        for kind in {variant.activations for variant in variants}:
            chosen = [v.capabilities for v in variants if v.activations == kind]
            needs = [len(capabilities.features) for capabilities in chosen]
            assert needs == sorted(needs, reverse=True), "best first"


def test_the_kernels_of_every_variant_can_be_built(plan_target: PlanTarget) -> None:
    from mlcbuild.kernels.registry import get_kernel_set, get_spaces

    for variant in (*plan_target.integer_variants, *plan_target.float_variants):
        capabilities = variant.capabilities
        assert get_kernel_set(capabilities)(capabilities).capabilities == capabilities
        assert get_spaces(capabilities).TEMPLATE_VERSION >= 1


def test_its_tools_are_known_distributions(target: Target) -> None:
    for tool in target.tools:
        assert metadata.version(tool)
    for program in target.programs:
        assert program.install


def test_listing_targets_loads_no_compiler() -> None:
    code = (
        "import sys\n"
        "from mlcbuild.targets.registry import get_target, target_names\n"
        "[get_target(name) for name in target_names()]\n"
        "assert 'tvm' not in sys.modules, 'tvm was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_target_is_answered_with_a_hint() -> None:
    with pytest.raises(UsageError, match="linux-x86-cpu") as caught:
        get_target("linux-x86-cpu")
    assert caught.value.hint is not None
    assert "linux-x86_64-cpu" in caught.value.hint
