"""Properties of cos/sin tables: of every rule, against float64 and against transformers."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from properties import table_checks
from properties.implementations import rope_eager
from properties.table_life import check_life
from rope.axes import mrope_axes, vision_axes, vision_rope_table
from rope.config import read_rope_config, rope_table_from_config
from rope.shards import shard_positions
from rope.tables import rope_frequencies, rope_table
from strategies.tables import KINDS, TableCase, config_cases, table_cases, table_histories

PRECISIONS = ("float32", "float64")
every_rule = pytest.mark.parametrize("kind", KINDS)


@every_rule
@given(data=st.data())
def test_values_are_within_their_bound_of_float64(kind: str, data: st.DataObject) -> None:
    case = data.draw(table_cases(kind, precisions=PRECISIONS))
    table_checks.check_values(rope_table, case)


@given(case=table_cases(max_elements=1 << 14))
def test_rows_depend_on_their_position_only(case: TableCase) -> None:
    table_checks.check_rows_do_not_depend_on_length(rope_table, case)


@given(case=table_cases(max_elements=1 << 14, precisions=PRECISIONS))
def test_position_0_is_the_identity_and_no_value_exceeds_the_attention_factor(case: TableCase) -> None:
    table_checks.check_range(rope_table, case)


@given(case=table_cases(precisions=PRECISIONS))
def test_no_pair_turns_faster_than_the_pair_before(case: TableCase) -> None:
    table_checks.check_frequencies_fall(rope_table, case)


@given(cases=table_histories())
def test_a_table_does_not_depend_on_earlier_tables(cases: list[TableCase]) -> None:
    table_checks.check_history(rope_table, cases)


@given(case=table_cases(max_elements=256))
def test_a_table_does_not_depend_on_torch_state(case: TableCase) -> None:
    table_checks.check_surroundings(rope_table, case)


def test_tables_keep_their_bits_through_what_users_do_with_them() -> None:
    """Grown, shrunk, cut, cast, copied, saved, loaded and overwritten, in any order."""
    check_life(lambda: rope_table)


@every_rule
@given(data=st.data())
def test_a_configuration_gives_the_table_it_means(kind: str, data: st.DataObject) -> None:
    table_checks.check_config(rope_table_from_config, data.draw(config_cases(kind)))


@given(
    section=st.lists(st.integers(0, 24), min_size=1, max_size=4)
    | st.sampled_from([[16, 24, 24], [8, 12, 12]])
)
def test_chunked_axes(section: list[int]) -> None:
    table_checks.check_axes(mrope_axes, section, interleaved=False)


@given(side=st.integers(0, 20), more=st.integers(0, 9))
def test_interleaved_axes(side: int, more: int) -> None:
    table_checks.check_axes(mrope_axes, [side + more, side, side], interleaved=True)


@given(chunk=st.integers(0, 5), world_size=st.integers(1, 8), order=st.sampled_from(["zigzag", "contiguous"]))
def test_shards_cover_the_sequence(chunk: int, world_size: int, order: str) -> None:
    chunks = 2 * world_size if order == "zigzag" else world_size
    table_checks.check_shards(shard_positions, chunk * chunks, world_size, order)


@given(
    length=st.integers(1, 60), world_size=st.integers(1, 8), order=st.sampled_from(["zigzag", "contiguous"])
)
def test_an_uneven_length_is_refused(length: int, world_size: int, order: str) -> None:
    chunks = 2 * world_size if order == "zigzag" else world_size
    if chunks > 1:
        uneven = length + (length % chunks == 0)
        table_checks.check_uneven_length_is_refused(shard_positions, uneven, world_size, order)


@given(quarter=st.integers(1, 8), rows=st.integers(1, 9), columns=st.integers(1, 9))
def test_vision_pairs_turn_by_row_then_by_column_from_the_same_exponent(
    quarter: int, rows: int, columns: int
) -> None:
    grid = torch.stack((torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)))
    table = vision_rope_table(4 * quarter, max(rows, columns))
    unit = torch.cat(
        (torch.ones(grid.shape[1], 1, 2 * quarter), torch.zeros(grid.shape[1], 1, 2 * quarter)), -1
    )
    turned = rope_eager(unit, None, *table, grid, axes=vision_axes(4 * quarter))
    cos, sin = (torch.cat((x[grid[0]], x[grid[1]]), -1) for x in rope_table(2 * quarter, max(rows, columns)))
    assert torch.equal(turned[:, 0], torch.cat((cos, sin), -1))


# --- against transformers


@pytest.fixture(scope="module")
def hf() -> SimpleNamespace:
    """The modules of transformers used here, imported once and outside the timed tests."""
    reason = "comparing with transformers needs transformers: pip install 'rope-property-harness[peers]'"
    transformers = pytest.importorskip("transformers", reason=reason)
    return SimpleNamespace(
        rules=importlib.import_module("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS,
        Config=transformers.GPTNeoXConfig,
        Rotary=importlib.import_module(
            "transformers.models.gpt_neox.modeling_gpt_neox"
        ).GPTNeoXRotaryEmbedding,
    )


# Every entry of transformers' ROPE_INIT_FUNCTIONS, and how its rule is called here.
TRANSFORMERS_RULES = ("linear", "dynamic", "yarn", "longrope", "llama3", "proportional")


def test_every_rule_of_transformers_is_compared(hf: SimpleNamespace) -> None:
    assert set(hf.rules) == set(TRANSFORMERS_RULES)


@pytest.mark.parametrize("kind", TRANSFORMERS_RULES)
@given(data=st.data())
def test_frequencies_and_factor_equal_those_of_transformers(
    kind: str, hf: SimpleNamespace, data: st.DataObject
) -> None:
    case = data.draw(config_cases(kind, spellings=("rope_parameters",)))
    config = hf.Config(**case.config)
    theirs, factor = hf.rules[kind](config, seq_len=case.seq_len)
    for read in (
        read_rope_config(case.config, seq_len=case.seq_len),
        read_rope_config(config, seq_len=case.seq_len),
    ):
        assert torch.equal(rope_frequencies(read.rot_dim, read.base, rule=read.rule), theirs)
        assert read.rule is not None
        assert read.rule.cos_sin_factor() == factor


@pytest.mark.parametrize("kind", ["default", *TRANSFORMERS_RULES])
@given(data=st.data())
def test_cos_and_sin_equal_those_of_a_transformers_module(
    kind: str, hf: SimpleNamespace, data: st.DataObject
) -> None:
    case = data.draw(config_cases(kind, spellings=("rope_parameters",)))
    config = hf.Config(**case.config)
    # within every trained length: there dynamic does not stretch, and longrope is short
    positions = torch.tensor([0, 1, 2, 13, 14])
    cos, sin = hf.Rotary(config)(torch.empty(0), positions[None])
    table = rope_table_from_config(config, 15, seq_len=15)
    pairs = case.rot_dim // 2
    assert torch.equal(table.cos[positions], cos[0, :, :pairs])
    assert torch.equal(table.sin[positions], sin[0, :, :pairs])


def test_angles_equal_those_of_transformers_at_far_positions(hf: SimpleNamespace) -> None:
    """Bit for bit also where float32 angles are far from the exact ones."""
    config = hf.Config(head_dim=16, rope_theta=500000.0, rotary_pct=1.0)
    positions = torch.from_numpy(np.unique(np.geomspace(1, 2**20 - 1, 60).astype(np.int64)))
    cos, sin = hf.Rotary(config)(torch.empty(0), positions[None])
    table = rope_table_from_config(config, 2**20)
    assert torch.equal(table.cos[positions], cos[0, :, :8])
    assert torch.equal(table.sin[positions], sin[0, :, :8])
