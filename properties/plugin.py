"""The pytest plugin of the harness: options, Hypothesis profiles, and the tests that properties become."""

import os
from collections.abc import Callable, Iterable

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from properties.implementations import Implementation, bundled, default_device
from properties.interpreter import make_faithful
from properties.loading import SpecError, described, load_all
from properties.property import Property

_IMPLEMENTATIONS = pytest.StashKey[list[Implementation]]()
_PROFILES = {"dev": 20, "default": 100, "ci": 50, "deep": 2000}

for _name, _examples in _PROFILES.items():
    settings.register_profile(
        _name,
        max_examples=_examples,
        derandomize=_name == "ci",
        # A derandomised run with a database is refused: the database would make it depend on the past.
        database=None if _name == "ci" else DirectoryBasedExampleDatabase(".hypothesis/examples"),
        # A first launch compiles its kernel.
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        # The explain phase traces every line, which makes an interpreted kernel several times slower.
        phases=[p for p in Phase if p is not Phase.explain],
    )
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rope", "RoPE properties")
    group.addoption(
        "--device",
        default=None,
        help="where the implementations run: cpu, cuda or cuda:N (default: cuda when there is a GPU)",
    )
    group.addoption(
        "--impl",
        action="append",
        default=[],
        metavar="SPEC",
        help="test this implementation instead of the bundled ones: package.module:function, "
        "path/file.py:function, or a bundled one or adapter by name; may be given several times",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Workers share the cores; more threads each would only get in each other's way.
    torch.set_num_threads(1)
    make_faithful()
    # Cases have 16-bit tables on purpose.
    config.addinivalue_line("filterwarnings", "ignore::rope.RopePrecisionWarning")
    config.stash[_IMPLEMENTATIONS] = _implementations(config)


def _implementations(config: pytest.Config) -> list[Implementation]:
    device = _device(config)
    try:
        return load_all(config.getoption("--impl"), device) or bundled(device)
    except SpecError as error:
        raise pytest.UsageError(f"--impl: {error}") from error


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [f"rope: {described(i)}" for i in config.stash[_IMPLEMENTATIONS]]


def _device(config: pytest.Config) -> str:
    device = config.getoption("--device") or default_device()
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    if device == "cuda":
        # Spread the workers over the GPUs.
        return f"cuda:{int(worker.removeprefix('gw')) % torch.cuda.device_count()}"
    return str(device)


def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> Iterable[pytest.Function] | None:
    if not isinstance(obj, Property):
        return None
    return [
        pytest.Function.from_parent(collector, name=f"{name}[{test_id}]", callobj=test)
        for implementation in collector.config.stash[_IMPLEMENTATIONS]
        for test_id, test in _tests(obj, implementation)
    ]


def _tests(
    rope_property: Property, implementation: Implementation
) -> Iterable[tuple[str, Callable[[], None]]]:
    if implementation.missing is None:
        return rope_property.tests(implementation)

    @pytest.mark.skip(reason=f"{implementation.name}: {implementation.missing}")
    def test() -> None:
        pass

    return [(implementation.name, test)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --impl, leave out the tests of what this project has beside its kernels (its tables)."""
    bundled_specs = {i.spec for i in bundled("cpu")}
    if not config.getoption("--impl") or any(i.spec in bundled_specs for i in config.stash[_IMPLEMENTATIONS]):
        return
    others = [item for item in items if _is_in_properties(item) and not _is_of_property(item)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def _is_in_properties(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and item.module.__name__.startswith("properties.")


def _is_of_property(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    return isinstance(getattr(item.module, item.name.partition("[")[0], None), Property)
