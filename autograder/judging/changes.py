"""Changes that a student's function made to its arguments, brought into the judge's own objects after the call."""

from __future__ import annotations

import sys
from typing import Any


def apply(old: Any, new: Any) -> None:
    """Give `old`, an argument of a call, the content of `new`, an object of the same class that was made for this.

    An array or a tensor keeps its shape and dtype: one of another shape changes nothing.
    """
    torch = sys.modules.get("torch")
    if isinstance(old, list | bytearray):
        old[:] = new
    elif isinstance(old, set | dict):
        old.clear()
        old.update(new)
    elif torch is not None and isinstance(old, torch.Tensor):
        if old.shape == new.shape and old.dtype == new.dtype:
            with torch.no_grad():
                old.copy_(new)
    elif hasattr(old, "dtype"):
        if old.shape == new.shape and old.dtype == new.dtype and old.flags.writeable:
            old[...] = new
    else:  # a record
        for name, value in vars(new).items():
            object.__setattr__(old, name, value)
