"""The documentation: examples run, links lead somewhere, every option and every property is listed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from properties import plugin

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _ids(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


def test_the_readme_example_runs():
    example = next(b for b in _python_blocks(ROOT / "README.md") if "ragged_positions" in b)
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    before = names["qkv"].clone()
    assert before.isfinite().all()
    assert names["positions"].tolist() == [0, 1, 2, 3, 4, 40, 41, 42, 1000]


@pytest.mark.parametrize("page", PAGES, ids=_ids(PAGES))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_option_is_listed():
    class Group:
        options: list[str] = []  # noqa: RUF012

        def addoption(self, *names: str, **_: object) -> None:
            self.options.extend(names)

    class Parser:
        def getgroup(self, *_: object) -> Group:
            return Group()

    plugin.pytest_addoption(Parser())
    page = (ROOT / "docs" / "options.md").read_text()
    assert Group.options
    for option in Group.options:
        assert f"`{option}" in page, f"docs/options.md does not list {option}"
    for profile, examples in plugin._PROFILES.items():
        assert f"| `{profile}` | {examples} |" in page


def test_the_page_of_properties_says_what_their_docstrings_say():
    """`python tests/test_docs.py` writes the page anew."""
    assert (ROOT / "docs" / "properties.md").read_text() == _properties_page()


def _properties_page() -> str:
    lines = [
        "# Properties",
        "",
        "What must hold for every case, by family. Each is one test per implementation, layout and dtype,",
        "and for the shapes of published models. This page repeats the docstrings of `properties/test_*.py`.",
    ]
    for path in sorted((ROOT / "properties").glob("test_*.py")):
        module = ast.parse(path.read_text())
        rows = [f"| `{name}` | {_one_line(check)} |" for name, check in _checks(module)]
        lines += ["", f"## `{path.name}`", "", _one_line(module)]
        if rows:
            lines += ["", "| property | holds when |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _checks(module: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The properties of a module: decorated functions, and names given to a Property of a function."""
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    for node in module.body:
        match node:
            case ast.FunctionDef(name=name) if name.startswith("test_"):
                yield name, functions[name]
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=[_, ast.Name(id=check)])):
                if name.startswith("test_"):
                    yield name, functions[check]


def _one_line(node: ast.Module | ast.FunctionDef) -> str:
    docstring = ast.get_docstring(node) or node.name.removeprefix("test_").replace("_", " ")  # type: ignore[union-attr]
    return " ".join(docstring.split()).replace("|", "\\|")


def _python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


if __name__ == "__main__":
    (ROOT / "docs" / "properties.md").write_text(_properties_page())
