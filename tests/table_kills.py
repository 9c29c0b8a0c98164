"""Which check of properties/table_checks.py, and of table_life.py, kills which faulty table."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from properties import table_checks
from properties.failures import Failure
from properties.table_life import check_life
from strategies.tables import config_cases, table_cases, table_histories
from tests.kill_report import Kill
from tests.mutants.tables import Mutant

_ORDERS = st.sampled_from(("zigzag", "contiguous"))
_FEW = 256


@dataclass(frozen=True)
class TableProperty:
    """A check of tables.

    Attributes:
        check: of properties.table_checks or table_life; the function under test comes first.
        of: what it checks, the name of a function of this project.
        arguments: draws the other arguments for a rule of one kind, None for any.
    """

    check: Callable[..., None]
    of: str
    arguments: Callable[[str | None], st.SearchStrategy[tuple[Any, ...]]]

    @property
    def name(self) -> str:
        return self.check.__name__


def _tables(most: int) -> Callable[[str | None], st.SearchStrategy[tuple[Any, ...]]]:
    return lambda kind: st.tuples(table_cases(kind, max_elements=most))


PROPERTIES = {
    prop.name: prop
    for prop in (
        TableProperty(table_checks.check_values, "rope_table", _tables(1 << 14)),
        TableProperty(table_checks.check_rows_do_not_depend_on_length, "rope_table", _tables(1 << 14)),
        TableProperty(table_checks.check_range, "rope_table", _tables(_FEW)),
        TableProperty(table_checks.check_frequencies_fall, "rope_table", _tables(_FEW)),
        TableProperty(table_checks.check_surroundings, "rope_table", _tables(_FEW)),
        TableProperty(
            table_checks.check_history, "rope_table", lambda kind: st.tuples(table_histories(kind))
        ),
        TableProperty(check_life, "rope_table", lambda kind: st.just((kind,))),
        TableProperty(
            table_checks.check_config, "rope_table_from_config", lambda kind: st.tuples(config_cases(kind))
        ),
        TableProperty(
            table_checks.check_axes,
            "mrope_axes",
            lambda kind: st.tuples(
                st.sampled_from([(1, 1, 1), (2, 1, 1), (24, 20, 20)]),
                st.just(True) if kind == "interleaved" else st.booleans(),
            ),
        ),
        TableProperty(
            table_checks.check_shards,
            "shard_positions",
            lambda kind: st.tuples(
                st.sampled_from([24, 48]), st.sampled_from([2, 3, 4]), st.just(kind) if kind else _ORDERS
            ),
        ),
        TableProperty(
            table_checks.check_uneven_length_is_refused,
            "shard_positions",
            lambda kind: st.tuples(st.sampled_from([7, 11]), st.sampled_from([2, 3]), _ORDERS),
        ),
    )
}


def applicable(mutant: Mutant) -> list[TableProperty]:
    """The checks of what the mutant stands for, the one that names its fault first."""
    first = PROPERTIES[mutant.dies_by.__name__]
    return sorted((p for p in PROPERTIES.values() if p.of == first.of), key=lambda p: p is not first)


def search(prop: TableProperty, mutant: Mutant, *, cases: int = 60) -> Kill | None:
    """Look for a failure of this check; None when no case of so many shows one."""
    tried = 0
    shown = ""
    profile = settings(
        max_examples=cases,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )

    @profile
    @given(arguments=prop.arguments(mutant.rule))
    def judge(arguments: tuple[Any, ...]) -> None:
        nonlocal tried, shown
        tried, shown = tried + 1, ", ".join(map(repr, arguments))
        prop.check(mutant.fresh(), *arguments)

    def live() -> None:
        nonlocal tried

        def fresh() -> Any:
            nonlocal tried
            tried += 1
            return mutant.fresh()

        check_life(fresh, mutant.rule, profile)

    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            live() if prop.check is check_life else judge()
        except Failure as failure:
            seconds = time.perf_counter() - started
            return Kill(type(failure).__name__, tried, seconds, shown or str(failure))
        except (TypeError, RuntimeError):
            # An accident of the mutant, which takes less than what it stands for, is no verdict.
            return None
    return None
