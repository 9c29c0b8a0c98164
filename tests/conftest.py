"""Skips what this machine cannot run, with the reason."""

import pytest
import torch

# A project of its own, which test_installed.py runs.
collect_ignore = ["sample_project"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
