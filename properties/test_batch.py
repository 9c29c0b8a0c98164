"""Batch invariance: what a token becomes does not depend on the company it is in, bit for bit."""

from dataclasses import replace

import torch

from properties.failures import NotDeterministic
from properties.implementations import Implementation, default_device
from properties.judge import Run, execute, execute_once
from properties.laws import settled
from properties.property import rope_property
from rope import apply_rope, ragged_positions, rope_table
from strategies import RopeCase

Slices = tuple[slice, slice, slice]  # of batch rows, tokens and heads


@rope_property(cost=4)
def test_a_head_alone(implementation: Implementation, case: RopeCase) -> None:
    """One head of q and of k, alone, comes out as beside the others. For blocks of heads."""
    if not case.q_heads or case.k_heads == 0:
        return
    head = {"q": case.seed % case.q_heads, "k": case.seed % (case.k_heads or 1)}
    alone = replace(settled(case), q_heads=1, k_heads=None if case.k_heads is None else 1)
    part = {name: (slice(None), slice(None), slice(h, h + 1)) for name, h in head.items()}
    _compare_part(implementation, case, alone, part, f"heads {head} alone")


@rope_property(cost=4)
def test_a_token_alone(implementation: Implementation, case: RopeCase) -> None:
    """One token alone, as in decoding, comes out as among others. For blocks of tokens."""
    if not case.batch * case.tokens:
        return
    row, token = case.seed % case.batch, case.seed % case.tokens
    _compare_tokens(implementation, case, row, token, 1, f"token {token} of batch row {row} alone")


@rope_property(cost=4)
def test_a_request_alone(implementation: Implementation, case: RopeCase) -> None:
    """One request alone comes out as in the batch. For maps from tokens to requests."""
    if not case.requests:
        return
    chosen = case.seed % len(case.requests)
    length = case.requests[chosen][1]
    row, first = (chosen, 0) if case.rank == 4 else (0, sum(n for _, n in case.requests[:chosen]))
    if length:
        _compare_tokens(implementation, case, row, first, length, f"request {chosen} alone")


@rope_property(cost=4, positions=("given",), tables=("indexed",))
def test_tokens_in_another_order(implementation: Implementation, case: RopeCase) -> None:
    """Tokens in another order come out in that order. For positions that are counted, not read."""
    order = torch.randperm(case.tokens, generator=torch.Generator().manual_seed(case.seed))
    case = settled(case)
    if implementation.domain.why_outside(case):
        return
    run = execute_once(implementation, case)
    values = {name: run.arena.inputs[name][:, order] for name in run.outputs}
    values["positions"] = run.arena.inputs["positions"][..., order]
    shuffled = execute(implementation, case, **values)
    for name, out in run.outputs.items():
        _require_equal(name, shuffled.outputs[name], out[:, order], "with its tokens in another order")


@rope_property(cost=4, positions=("given",), tables=("indexed",), ranks=(3,))
def test_prefill_chunks_and_steps_agree(implementation: Implementation, case: RopeCase) -> None:
    """A request comes out the same whole, in two chunks and token by token. For counters of a cache."""
    start, length = case.requests[0]
    whole = replace(settled(case), requests=((start, length),))
    if length < 2 or implementation.domain.why_outside(whole):
        return
    run = execute(implementation, whole)
    cut = 1 + case.seed % (length - 1)
    for pieces in ([cut, length - cut], [1] * min(length, 3)):
        done = 0
        runs: list[Run] = []
        for n in pieces:
            chunk = replace(whole, requests=((start + done, n),))
            values = {name: run.arena.inputs[name][:, done : done + n] for name in run.outputs}
            if not implementation.domain.why_outside(chunk):
                runs.append(execute(implementation, chunk, **values))
            done += n
        # Compared when all have run: a cache keeps what earlier steps returned.
        done = 0
        for piece in runs:
            for name, out in piece.outputs.items():
                n = out.shape[1]
                _require_equal(name, out, run.outputs[name][:, done : done + n], f"in pieces of {pieces}")
            done += piece.case.tokens


@rope_property(cost=4, q_strides=("dense", "expand"), k_strides=("dense", "expand"), inplace=(False,))
def test_expanded_equals_materialised(implementation: Implementation, case: RopeCase) -> None:
    """Axes of stride 0 give what copies of them give. For strides of 0 taken for something else."""
    partner = settled(case)
    if partner == replace(case, pokes=()) or implementation.domain.why_outside(partner):
        return
    run = execute_once(implementation, case)
    values = {name: run.arena.inputs[name] for name in run.outputs}
    for name, out in execute(implementation, partner, **values).outputs.items():
        _require_equal(name, out, run.outputs[name], "materialised")


def test_continuous_batching() -> None:
    """A serving step by hand: prefill of one request beside a chunk and a decoding step of two others.

    The requests have different lengths and starts; what comes out is what each gives alone, bit for bit.
    """
    device = default_device()
    cos, sin = rope_table(64, max_position=128, device=device)
    starts, lengths = [0, 17, 100], [5, 3, 1]
    ends = torch.tensor([0, 5, 8, 9], dtype=torch.int32, device=device)
    positions = ragged_positions(ends, torch.tensor(starts, dtype=torch.int32, device=device), total=9)
    assert positions.tolist() == [0, 1, 2, 3, 4, 17, 18, 19, 100]

    q = torch.randn(9, 4, 64, generator=torch.Generator().manual_seed(0)).bfloat16().to(device)
    k = torch.randn(9, 2, 64, generator=torch.Generator().manual_seed(1)).bfloat16().to(device)
    q_out, k_out = apply_rope(q, k, cos, sin, positions)

    first = 0
    for start, length in zip(starts, lengths, strict=True):
        tokens = slice(first, first + length)
        alone = torch.arange(start, start + length, device=device)
        q_alone, k_alone = apply_rope(q[tokens], k[tokens], cos, sin, alone)
        assert torch.equal(q_out[tokens], q_alone)
        assert torch.equal(k_out[tokens], k_alone)
        # The definition, spelled out for neox: halves of 32.
        c, s = cos[alone][:, None], sin[alone][:, None]
        lo, hi = q[tokens, :, :32].float(), q[tokens, :, 32:].float()
        exact = torch.cat((lo * c - hi * s, hi * c + lo * s), -1)
        torch.testing.assert_close(q_out[tokens].float(), exact, rtol=2**-8, atol=2**-20)
        first += length


def _compare_tokens(
    implementation: Implementation, case: RopeCase, row: int, first: int, length: int, how: str
) -> None:
    """Compare some neighbouring tokens of one request with the same tokens alone."""
    start = case.positions_bn()[row][first]
    counted = case.positions == "implied" and case.table == "indexed"
    positions = "given" if counted and start else case.positions
    alone = replace(settled(case), positions=positions, requests=((start, length),))
    tokens = (slice(row, row + 1), slice(first, first + length), slice(None))
    _compare_part(implementation, case, alone, {"q": tokens, "k": tokens}, how)


def _compare_part(
    implementation: Implementation, case: RopeCase, alone: RopeCase, part: dict[str, Slices], how: str
) -> None:
    """NotDeterministic unless a part of the case's q and k comes out alone as it does within the whole."""
    if implementation.domain.why_outside(alone):
        return
    run = execute_once(implementation, case)
    values = {name: run.arena.inputs[name][part[name]] for name in run.outputs}
    for name, out in execute(implementation, alone, **values).outputs.items():
        _require_equal(name, out, run.outputs[name][part[name]], how)


def _require_equal(name: str, actual: torch.Tensor, expected: torch.Tensor, how: str) -> None:
    wrong = ~((actual == expected) | (actual.isnan() & expected.isnan()))
    if wrong.any():
        where = tuple(int(i) for i in wrong.nonzero()[0])
        raise NotDeterministic(
            f"{name}_out {how} has {float(actual[where])!r} at {where}, in the batch "
            f"{float(expected[where])!r}; {int(wrong.sum())} of {wrong.numel()} elements differ, "
            "expected the same bits",
            tensor=name,
            where=where,
            wrong=wrong.numpy(),
            partner=how,
        )
