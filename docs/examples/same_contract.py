"""A kernel with the contract of apply_rope, in PyTorch: --impl docs/examples/same_contract.py:my_rope."""

import torch


def my_rope(
    q,
    k,
    cos,
    sin,
    positions=None,
    *,
    layout="neox",
    rot_dim=None,
    rot_offset=0,
    head_axis=-2,
    inplace=False,
    inverse=False,
):
    """Rotate q and k; see rope.apply_rope for every argument."""
    tokens = q.shape[-2 if head_axis != -2 else -3]
    if cos.dim() == 2:
        index = torch.arange(tokens, device=q.device) if positions is None else positions
        cos, sin = cos[index], sin[index]
    heads = -3 if head_axis != -2 else -2
    cos, sin = cos.unsqueeze(heads), sin.unsqueeze(heads)
    out = tuple(
        x if x is None else _rotate(x, cos, -sin if inverse else sin, layout, rot_offset, inplace)
        for x in (q, k)
    )
    return out[0] if k is None else out


def _rotate(x, cos, sin, layout, rot_offset, inplace):
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    half, end = cos.shape[-1], rot_offset + 2 * cos.shape[-1]
    if layout == "neox":
        first, second = slice(rot_offset, rot_offset + half), slice(rot_offset + half, end)
    else:
        first, second = slice(rot_offset, end, 2), slice(rot_offset + 1, end, 2)
    out = x if inplace else x.clone()
    lo, hi = x[..., first].to(wide, copy=True), x[..., second].to(wide, copy=True)
    out[..., first] = (lo * cos - hi * sin).to(x.dtype)
    out[..., second] = (hi * cos + lo * sin).to(x.dtype)
    return out
