"""The pytest plugin of the harness: options, Hypothesis profiles, and the tests that properties become."""

import os
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from properties.counterexamples import Counterexamples
from properties.implementations import Implementation, bundled, default_device
from properties.interpreter import make_faithful
from properties.loading import SpecError, described, load, load_all
from properties.property import Property
from properties.replay import case_of, replay_tests
from properties.summary import Summary
from strategies import RopeCase

_IMPLEMENTATIONS = pytest.StashKey[list[Implementation]]()
_REPLAYED = pytest.StashKey[RopeCase | None]()
_PROFILES = {"smoke": 5, "dev": 20, "default": 40, "ci": 24, "deep": 2000}

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
    group.addoption(
        "--against",
        metavar="SPEC",
        help="judge every implementation by this one too, within the sum of their bounds",
    )
    group.addoption("--bitwise", action="store_true", help="with --against: expect the same bits")
    group.addoption(
        "--replay",
        metavar="PATH",
        help="run the case in this case.json through every property, instead of searching",
    )
    group.addoption(
        "--no-reports",
        action="store_true",
        help="neither analyse failures nor write counterexamples/",
    )
    group.addoption("--summary-json", metavar="PATH", help="write the summary of the run as JSON")


def pytest_configure(config: pytest.Config) -> None:
    # Workers share the cores; more threads each would only get in each other's way.
    torch.set_num_threads(1)
    make_faithful()
    # Cases have 16-bit tables on purpose.
    config.addinivalue_line("filterwarnings", "ignore::rope.RopePrecisionWarning")
    config.stash[_IMPLEMENTATIONS] = implementations = _implementations(config)
    config.stash[_REPLAYED] = case_of(config.getoption("--replay"), implementations)
    config.pluginmanager.register(Summary(config), "rope-summary")
    config.pluginmanager.register(Counterexamples(config, implementations), "rope-counterexamples")


def _implementations(config: pytest.Config) -> list[Implementation]:
    device, against = _device(config), config.getoption("--against")
    try:
        implementations = load_all(config.getoption("--impl"), device) or bundled(device)
        other = load(against, device) if against else None
    except SpecError as error:
        raise pytest.UsageError(str(error)) from error
    if other is None:
        return implementations
    if other.missing is not None:
        raise pytest.UsageError(f"--against {against}: {other.missing}")
    return [replace(i, against=other, same_bits=config.getoption("--bitwise")) for i in implementations]


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
    if not isinstance(obj, Property) or not name.startswith("test"):
        return None
    return [
        pytest.Function.from_parent(collector, name=f"{name}[{test_id}]", callobj=test)
        for implementation in collector.config.stash[_IMPLEMENTATIONS]
        for test_id, test in _tests(obj, implementation, collector.config.stash[_REPLAYED])
    ]


def _tests(
    rope_property: Property, implementation: Implementation, replayed: RopeCase | None
) -> Iterable[tuple[str, Callable[[], None]]]:
    if replayed is not None:
        return replay_tests(rope_property, implementation, replayed)
    if implementation.missing is None:
        return rope_property.tests(implementation)

    @pytest.mark.skip(reason=f"{implementation.name}: {implementation.missing}")
    def test() -> None:
        pass

    return [(implementation.name, test)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --impl, leave out the tests of what this project has beside its kernels (its tables).

    With --replay, leave out everything that is not a property of the replayed case.
    """
    bundled_specs = {i.spec for i in bundled("cpu")}
    replays = config.stash[_REPLAYED] is not None
    ours = any(i.spec in bundled_specs for i in config.stash[_IMPLEMENTATIONS])
    if not replays and (not config.getoption("--impl") or ours):
        return
    others = [item for item in items if (replays or _is_in_properties(item)) and not _is_of_property(item)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def _is_in_properties(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and item.module.__name__.startswith("properties.")


def _is_of_property(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function):
        return False
    return isinstance(getattr(item.module, item.name.partition("[")[0], None), Property)
