"""This project's kernels in Triton's interpreter, beside whatever runs in this process: another backend.

Triton decides when it is imported whether it interprets, so the interpreter has a process of its own.
"""

import functools
import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import torch

from properties.implementations import Implementation
from strategies import Domain


def _call(q: Any, k: Any, cos: Any, sin: Any, positions: Any, **options: Any) -> Any:
    connection = _interpreter()
    given = [x if x is None else x.cpu() for x in (q, k, cos, sin, positions)]
    connection.send((given, options))
    returned = connection.recv()
    if isinstance(returned, Exception):
        raise returned
    return tuple(x.to(q.device) for x in returned) if isinstance(returned, tuple) else returned.to(q.device)


@functools.cache
def _interpreter() -> "Connection[Any, Any]":
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with mock.patch.dict(os.environ, TRITON_INTERPRET="1"):
        context.Process(target=_serve, args=(theirs,), daemon=True).start()
    return ours


def _serve(connection: "Connection[Any, Any]") -> None:
    from properties.interpreter import make_faithful
    from rope import apply_rope

    make_faithful()
    torch.set_num_threads(1)
    while True:
        try:
            given, options = connection.recv()
        except EOFError:
            return
        try:
            connection.send(apply_rope(*given, **options))
        except Exception as error:
            connection.send(error)


# What crosses to the other process is a copy, so in place means nothing.
interpreted = Implementation("rope-interpreted", _call, Domain(inplace=(False,)))
