"""Continuous batching as a state machine: what its rules decide are the steps of a case.

A request is pending, running, waiting or finished. Hypothesis draws which of the rules that apply comes next,
as a number, so that every list of numbers is valid and shrinks by leaving some out.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from strategies.case import AXES, RopeCase, Strides
from strategies.domain import Domain
from strategies.draw import STARTS, rope_cases

# How many tokens of a prompt one step takes at most: all of it, or a chunk.
_CHUNKS = (64, 1, 2, 5)
_PROMPTS = st.sampled_from((1, 2, 3, 4, 6, 9))
_ANSWERS = st.integers(1, 6)
_PICKS = st.tuples(st.integers(0, 11), st.integers(0, 3))


@dataclass(frozen=True)
class Arrival:
    """A request as it arrives: where its prompt starts, what the cache does not hold of it, its answer."""

    start: int
    prompt: int
    answer: int


class Scheduler:
    """Decides, rule by rule, which tokens each step of a server takes.

    Attributes:
        steps: what RopeCase.steps holds.
    """

    def __init__(self, arrivals: list[Arrival]) -> None:
        self.arrivals = arrivals
        self.steps: list[tuple[tuple[int, int, int], ...]] = []
        self._reached = [a.start for a in arrivals]
        self._pending = list(range(len(arrivals)))
        self._running: list[int] = []
        self._waiting: list[int] = []
        self.arrive(0)

    def rules(self) -> list[Callable[[int], None]]:
        """What may come next, the most usual first; each takes a number that says for whom, or how."""
        rules: list[Callable[[int], None]] = [self.step] * 3 if self._running else []
        rules += [self.arrive] if self._pending else []
        rules += [self.resume] if self._waiting else []
        return [*rules, self.preempt, self.swap_out] if self._running else rules

    def step(self, pick: int) -> None:
        """Every running request takes a chunk of its prompt, or decodes one token; who is done, leaves."""
        chunks = []
        for request in list(self._running):
            arrival, first = self.arrivals[request], self._reached[request]
            left = arrival.start + arrival.prompt - first
            length = min(left, _CHUNKS[pick % len(_CHUNKS)]) if left > 0 else 1
            chunks.append((request, first, length))
            self._reached[request] += length
            if self._reached[request] == arrival.start + arrival.prompt + arrival.answer:
                self._running.remove(request)
        self.steps.append(tuple(chunks))

    def arrive(self, _: int) -> None:
        """The next request joins the batch."""
        self._running.append(self._pending.pop(0))

    def preempt(self, pick: int) -> None:
        """A running request gives its cache up: it will prefill anew."""
        self.swap_out(pick)
        request = self._waiting[-1]
        self._reached[request] = self.arrivals[request].start

    def swap_out(self, pick: int) -> None:
        """A running request leaves the batch and keeps its cache."""
        self._waiting.append(self._running.pop(pick % len(self._running)))

    def resume(self, pick: int) -> None:
        """A waiting request joins the batch again."""
        self._running.append(self._waiting.pop(pick % len(self._waiting)))


def serving_cases(
    domain: Domain, *, layout: str | None = None, dtype: str | None = None
) -> st.SearchStrategy[RopeCase]:
    """Cases with steps: up to three requests through up to 14 rules, small heads."""
    starts = STARTS if domain.starts else st.just(0)
    arrivals = st.builds(Arrival, starts, _PROMPTS, _ANSWERS)
    picks = st.lists(_PICKS, min_size=4, max_size=14)
    cases = rope_cases(domain, layout=layout, dtype=dtype)
    return st.builds(_served, cases, st.lists(arrivals, min_size=1, max_size=3), picks)


def _served(case: RopeCase, arrivals: list[Arrival], picks: list[tuple[int, int]]) -> RopeCase:
    scheduler = Scheduler(arrivals)
    scheduler.step(0)
    for number, pick in picks:
        rules = scheduler.rules()
        if rules:
            rules[number % len(rules)](pick)
    k_heads = None if case.k_heads is None else min(case.k_heads, 2)
    groups = case.q_heads // (case.k_heads or case.q_heads)
    return replace(
        case,
        requests=tuple((a.start, a.prompt + a.answer) for a in arrivals),
        steps=tuple(scheduler.steps),
        q_heads=min(case.q_heads, 4) if k_heads is None else k_heads * min(groups, 2),
        k_heads=k_heads,
        q_strides=_prefix(case.q_strides),
        k_strides=_prefix(case.k_strides),
        pokes=(),
    )


def _prefix(strides: Strides) -> Strides:
    """The memory of which the first tokens look like memory of their own, and hold values of their own."""
    return replace(strides, order=AXES, expand="")
