"""An operation of the forward pass together with what the backward pass does in its place."""

from __future__ import annotations

from collections.abc import Callable

import torch

Way = Callable[[torch.Tensor], torch.Tensor]


class _Conjugate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, there: Way, back: Way) -> torch.Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        return ctx.back(gradient), None, None


def conjugate(x: torch.Tensor, there: Way, back: Way) -> torch.Tensor:
    """`there(x)`; backward, its gradient goes through `back`.

    A collective has another collective for its gradient: what one copies to several ranks, the other sums.
    """
    return _Conjugate.apply(x, there, back)
