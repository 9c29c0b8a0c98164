"""What must hold for every RoPE kernel, and the judge: see properties.plugin for the pytest options."""

import os

import torch

# Triton reads this when it is imported and again at every kernel, so it is set before both.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
