"""RoPE implementations with one deliberate fault each; the properties must kill every one.

To add a mutant, write one function under `@mutant(...)` in any module listed here: a step of
tests/mutants/base.py, done wrongly, with the trigger in its docstring.
"""

from tests.mutants import addressing, company, gradients, memory, rotation, serving, silent, tokens
from tests.mutants.registry import MUTANTS, Mutant, correct

__all__ = [
    "MUTANTS",
    "Mutant",
    "addressing",
    "company",
    "correct",
    "gradients",
    "memory",
    "rotation",
    "serving",
    "silent",
    "tokens",
]
