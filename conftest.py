"""Loads the harness; on a machine without a GPU the Triton kernels run in Triton's interpreter."""

import os

import torch

# Triton reads this when a kernel is decorated, so it comes before every import of a kernel.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest_plugins = ["properties.plugin"]
