"""How a recipe runs its layers: precision, fused kernels, overlap, and what travels in how many bytes."""

from __future__ import annotations

from dataclasses import dataclass

ELEMENT = {"bf16": 2.0, "fp8": 1.0, "mxfp8": 1.03, "nvfp4": 0.56}  # bytes of a product's input, with its scales
STACKS = ("fused", "compiled", "eager")


@dataclass(frozen=True)
class Software:
    """How a recipe runs its layers.

    `precision`: of products, a key of `ELEMENT`; all else is bf16. `stack`: "fused" (Transformer Engine), "compiled"
    (torch.compile, XLA) or "eager". `flash`: the generation of its attention kernel, 1 to 3; cuDNN's counts as 3.
    `hides_tensor`: products overlap with the tensor-parallel collectives that feed them. `gradient_bytes`: of a
    gradient on the wire, 4 if it is reduced in fp32. `frozen`: only a small adapter is trained (LoRA), so there are no
    gradients of weights. `dispatch_bytes`: of a number on its way to experts, 1 if it goes in fp8. `capacity`: experts
    take a fixed number of tokens, so the host needn't wait for their counts. `fused_loss`: one kernel computes the
    loss and overwrites the logits by their gradients.

    Raises `ValueError` for an unknown precision, stack or attention kernel.
    """

    precision: str = "bf16"
    stack: str = "fused"
    flash: int = 3
    hides_tensor: bool = True
    gradient_bytes: int = 4
    frozen: bool = False
    dispatch_bytes: int = 2
    fused_loss: bool = True
    capacity: bool = False

    def __post_init__(self):
        for name, known in (("precision", tuple(ELEMENT)), ("stack", STACKS), ("flash", (1, 2, 3))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is one of {', '.join(map(str, known))}, not {getattr(self, name)!r}")

    @property
    def logit_bytes(self) -> int:
        """Bytes that a logit holds: fp32 if the loss is fused, else also bf16, and softmax and gradient in fp32."""
        return 4 if self.fused_loss else 2 + 3 * 4


USUAL = Software()
"""What a recipe uses unless it says otherwise: bf16, fused kernels, gradients reduced in fp32."""
