"""The pytest plugin of the harness: options, Hypothesis profiles, and the tests that properties become."""

import gc
import os
import random
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from properties.counterexamples import Counterexamples
from properties.implementations import Implementation, bundled, default_device
from properties.interpreter import make_faithful
from properties.loading import SpecError, described, load, load_all
from properties.property import Property, is_of_property
from properties.replay import case_of, replay_tests
from properties.summary import Summary
from strategies import RopeCase

_IMPLEMENTATIONS = pytest.StashKey[list[Implementation]]()
_SESSION = pytest.StashKey[int]()
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
    config.stash[_SESSION] = _session(config)
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


def _session(config: pytest.Config) -> int:
    """The number from which all cases of this session are drawn."""
    given = config.getoption("--hypothesis-seed")
    if given is None or given == "random":
        return 0 if settings().derandomize else random.SystemRandom().getrandbits(32)
    return zlib.crc32(str(given).encode())


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
        for test_id, test in _tests(obj, implementation, collector.config)
    ]


def _tests(
    rope_property: Property, implementation: Implementation, config: pytest.Config
) -> Iterable[tuple[str, Callable[[], None]]]:
    replayed = config.stash[_REPLAYED]
    if replayed is not None:
        return replay_tests(rope_property, implementation, replayed)
    if implementation.missing is None:
        return rope_property.tests(implementation, config.stash[_SESSION])

    @pytest.mark.skip(reason=f"{implementation.name}: {implementation.missing}")
    def test() -> None:
        pass

    return [(implementation.name, test)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --impl, leave out the tests of what this project has beside its kernels (its tables).

    With --replay, leave out everything that is not a property of the replayed case.
    """
    _put_alike_together(items)
    bundled_specs = {i.spec for i in bundled("cpu")}
    replays = config.stash[_REPLAYED] is not None
    ours = any(i.spec in bundled_specs for i in config.stash[_IMPLEMENTATIONS])
    if not replays and (not config.getoption("--impl") or ours):
        return
    others = [item for item in items if (replays or _is_in_properties(item)) and not is_of_property(item)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def pytest_collection_finish() -> None:
    # What is there by now stays: the collector need not look at all of PyTorch again and again.
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def _put_alike_together(items: list[pytest.Item]) -> None:
    """Tests that draw the same cases one after another, to share the runs; what draws none comes last."""
    alike: dict[str, list[pytest.Item]] = {}
    others = []
    for item in items:
        if is_of_property(item):
            alike.setdefault(item.name.partition("[")[2], []).append(item)
        else:
            others.append(item)
    items[:] = [*chain.from_iterable(alike.values()), *others]


def _is_in_properties(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and item.module.__name__.startswith("properties.")
