"""Pairs of operations: one for the forward pass, and its conjugate for the backward pass."""

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
    """Return `there(x)`; the backward pass applies `back` to its gradient.

    The conjugate of a collective is another collective: what one copies to several ranks, the other sums.
    """
    return _Conjugate.apply(x, there, back)
