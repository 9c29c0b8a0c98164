"""Find the implementations that --impl names."""

import importlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import triton

from properties.adapters import ADAPTERS
from properties.implementations import Implementation, bundled
from properties.known import known_failures
from strategies import Domain


class SpecError(ValueError):
    """A spec names nothing that can be tested."""


def load(spec: str, device: str) -> Implementation:
    """The implementation that a spec names, on this device.

    Args:
        spec: a bundled implementation or adapter by name ("rope", "liger"); or
            "package.module:attribute" or "path/file.py:attribute", naming an Implementation or a callable
            with the contract of apply_rope, which is taken to support everything.
        device: where its tensors live.

    Returns:
        The implementation; what it misses on this machine (a package, a GPU) is in `missing`.

    Raises:
        SpecError: the spec names nothing, or something that is neither.
    """
    implementation = _found(spec, device)
    known = known_failures(implementation.name, implementation.domain)
    holes = tuple(k.hole for k in known if k.hole is not None)
    return replace(implementation, known=known, domain=replace(implementation.domain, holes=holes))


def _found(spec: str, device: str) -> Implementation:
    for implementation in bundled(device):
        if spec in (implementation.name, implementation.spec):
            return implementation
    if spec in ADAPTERS:
        try:
            found = resolve(ADAPTERS[spec])
        except Exception as error:  # a package that is broken here is missing here
            return Implementation(spec, _never_called, spec=ADAPTERS[spec], missing=str(error))
        spec = ADAPTERS[spec]
    else:
        try:
            found = resolve(spec)
        except SpecError:
            raise
        except Exception as error:
            raise SpecError(f"{spec!r} cannot be imported: {type(error).__name__}: {error}") from error
    return _placed(_as_implementation(spec, found), spec, device)


def load_all(specs: Iterable[str], device: str) -> list[Implementation]:
    """The implementations of several specs, told apart by name."""
    taken: dict[str, int] = {}
    loaded = []
    for spec in specs:
        implementation = load(spec, device)
        taken[implementation.name] = count = taken.get(implementation.name, 0) + 1
        if count > 1:
            implementation = replace(implementation, name=f"{implementation.name}-{count}")
        loaded.append(implementation)
    return loaded


def described(implementation: Implementation) -> str:
    """One line: what the implementation is and where it runs, or why it does not."""
    if implementation.missing is not None:
        return f"{implementation.name} skipped: {implementation.missing}"
    watched = "" if implementation.watched else ", its own allocations unwatched"
    return f"{implementation.name}{version(implementation)} on {implementation.device}{watched}"


def version(implementation: Implementation) -> str:
    """The distribution it comes from and its version, in brackets; empty when that is not known."""
    try:
        return f" ({implementation.package} {importlib.metadata.version(implementation.package)})"
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""


def resolve(spec: str) -> Any:
    """The object that "package.module:attribute" or "path/file.py:attribute" names.

    Raises:
        Exception: what importing the module raises.
        SpecError: the spec has another form, or the file or the attribute does not exist.
    """
    where, colon, attribute = spec.rpartition(":")
    if not (where and colon and attribute):
        names = ", ".join([*(i.name for i in bundled("cpu")), *ADAPTERS])
        raise SpecError(
            f"{spec!r} names no implementation: expected package.module:function, path/file.py:function or "
            f"one of {names}"
        )
    module = _module_of_file(Path(where)) if where.endswith(".py") else _module(where)
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [n for n, x in vars(module).items() if callable(x) and not n.startswith("_")]
            raise SpecError(f"{where} has no {attribute!r}, but {', '.join(public) or 'no function'}")
        found = getattr(found, part)
    return found


def _module(name: str) -> Any:
    # As `python -m pytest` does and `pytest` does not.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def _module_of_file(path: Path) -> Any:
    path = path.resolve()
    if not path.is_file():
        raise SpecError(f"there is no file {path}")
    # A name of its own, so that a file called like an installed module is not mistaken for it.
    name = "_file_" + re.sub(r"\W", "_", str(path.with_suffix("")))
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        # Its neighbours import as they do when it runs as a script.
        sys.path.insert(0, str(path.parent))
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _as_implementation(spec: str, found: Any) -> Implementation:
    if isinstance(found, Implementation):
        return replace(found, name=_safe(found.name))
    if not callable(found):
        raise SpecError(
            f"{spec} is {type(found).__name__}, expected a function called like rope.apply_rope, or a "
            "properties.implementations.Implementation"
        )
    where, _, attribute = spec.rpartition(":")
    stem = Path(where).stem if where.endswith(".py") else where
    return Implementation(_safe(f"{stem}.{attribute}"), found, Domain())


def _safe(name: str) -> str:
    """The name as a part of file names and test ids."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "implementation"


def _placed(implementation: Implementation, spec: str, device: str) -> Implementation:
    missing = implementation.missing
    on_cpu = device == "cpu"
    if implementation.domain.needs == "cuda" and on_cpu:
        missing = missing or "needs a CUDA device"
    if implementation.domain.needs == "interpreter" and on_cpu and not triton.knobs.runtime.interpret:
        missing = missing or "needs a CUDA device, or TRITON_INTERPRET=1 to interpret its Triton kernels"
    return replace(implementation, spec=spec, device=device, missing=missing)


def _never_called(*_: Any, **__: Any) -> Any:
    raise AssertionError("an implementation that is missing was called")
