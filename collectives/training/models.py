"""Models and machines as the planner sees them, with the figures of well-known ones.

A matrix parameter costs 2 FLOPs per token forward and 4 backward. Attention adds the cost of its scores. Everything
else (norms, activation functions, the update) is left out, as in the published counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from types import MappingProxyType

from .. import machines
from ..topology import Link

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Model:
    """A decoder of `layers` blocks, each with attention and an MLP, between an embedding and a head.

    `kv_heads`: heads of keys and values, by default `heads`; fewer are shared. `head_size`: by default hidden / heads.
    `kv_rank`, `query_rank`, `rope`: the latent attention of DeepSeek-V2. Keys and values come from a latent of
    `kv_rank` numbers, queries from one of `query_rank`, and each has `rope` more numbers for positions. `ffn`: the
    MLP's width, by default 4 x hidden. `gated`: the MLP has three matrices, not two.

    `experts`: per layer, except in the first `dense_layers`. A token visits `top_k` of them and all `shared_experts`;
    each is an MLP of width `expert_ffn`. `tied`: the head is the embedding. `classic`: a block like GPT-3's, with
    biases, learned positions and dropout, whose attention writes its scores to memory. Other blocks have none of these,
    and their attention kernel keeps no scores and skips masked ones (FlashAttention).

    Raises `ValueError` for sizes that are out of range or don't fit together.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    kv_heads: int | None = None
    ffn: int | None = None
    gated: bool = False
    experts: int = 0
    top_k: int = 0
    expert_ffn: int | None = None
    shared_experts: int = 0
    dense_layers: int = 0
    tied: bool = False
    head_size: int | None = None
    query_rank: int = 0
    kv_rank: int = 0
    rope: int = 0
    classic: bool = False

    def __post_init__(self):
        for name in ("layers", "hidden", "heads", "vocabulary", "sequence"):
            if getattr(self, name) < 1:
                raise ValueError(f"a model's {name} must be at least 1, not {getattr(self, name)}")
        for name in ("kv_heads", "ffn", "expert_ffn", "head_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"a model's {name} must be at least 1, or left out, not {getattr(self, name)}")
        for name in ("experts", "shared_experts", "query_rank", "kv_rank", "rope"):
            if getattr(self, name) < 0:
                raise ValueError(f"a model's {name} must be at least 0, not {getattr(self, name)}")
        if not 0 <= self.top_k <= self.experts or (self.experts > 0) != (self.top_k > 0):
            raise ValueError(f"{self.name}: a token visits 1 to {self.experts} of {self.experts} experts: set top_k")
        if self.head_size is None and self.hidden % self.heads:
            raise ValueError(f"{self.name}: hidden {self.hidden} does not divide by {self.heads} heads: set head_size")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"{self.name}: {self.heads} heads cannot share {self.kv_heads} keys and values evenly")
        if not 0 <= self.dense_layers <= self.layers:
            raise ValueError(f"{self.name}: {self.dense_layers} of {self.layers} layers cannot be dense")
        if not self.experts and (self.shared_experts or self.dense_layers or self.expert_ffn):
            raise ValueError(f"{self.name}: shared_experts, dense_layers and expert_ffn need a model with experts")

    # --- parameters ---------------------------------------------------------------------------------------------

    @cached_property
    def width(self) -> int:
        """The size of one head's query, key or value."""
        return self.head_size or self.hidden // self.heads

    @cached_property
    def kv_width(self) -> int:
        """Numbers per token that other tokens attend to: its keys and values, or their latent."""
        return self.kv_rank + self.rope if self.kv_rank else 2 * (self.kv_heads or self.heads) * self.width

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """The MLP widths that tensor parallelism splits."""
        dense = (self._ffn,) if self.layers > self.expert_layers else ()
        shared = (self._expert_ffn,) if self.expert_layers else ()
        return dense + shared

    @cached_property
    def attention(self) -> int:
        """Parameters of a layer's attention matrices."""
        out = self.heads * self.width * self.hidden
        queries = self._up_queries
        queries += self.hidden * self.query_rank if self.query_rank else 0
        return queries + self.hidden * self.kv_width + self._up_kv + out

    @property
    def _up_queries(self) -> int:
        return (self.query_rank or self.hidden) * self.heads * (self.width + self.rope)

    @property
    def _up_kv(self) -> int:
        return self.kv_rank * self.heads * 2 * self.width

    @cached_property
    def mlp(self) -> int:
        """Parameters of a dense layer's MLP."""
        return self._matrices * self.hidden * self._ffn

    @cached_property
    def expert(self) -> int:
        """Parameters of one expert."""
        return self._matrices * self.hidden * self._expert_ffn

    @cached_property
    def around_experts(self) -> int:
        """Parameters of an expert layer besides experts and attention: the router and the shared experts."""
        return self.hidden * self.experts + self.shared_experts * self.expert

    @cached_property
    def small(self) -> int:
        """Parameters of a layer outside its matrices: norms, and biases in a classic block."""
        if not self.classic:
            return 2 * self.hidden
        return 4 * self.hidden + 3 * self.heads * self.width + 2 * self.hidden + self._ffn

    @cached_property
    def head(self) -> int:
        """Parameters of the matrix that computes the logits."""
        return self.vocabulary * self.hidden

    @cached_property
    def embedding(self) -> int:
        """Parameters of the embedding of tokens, and of positions in a classic model."""
        return self.head + (self.sequence * self.hidden if self.classic else 0)

    @cached_property
    def expert_layers(self) -> int:
        """The number of layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @cached_property
    def parameters(self) -> int:
        """All parameters."""
        return self._without_experts + self.expert_layers * self.experts * self.expert

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that one token uses."""
        return self._without_experts + self.expert_layers * self.top_k * self.expert

    @property
    def _without_experts(self) -> int:
        dense = (self.layers - self.expert_layers) * self.mlp + self.expert_layers * self.around_experts
        ends = self.embedding + self.hidden * (2 if self.classic else 1) + (0 if self.tied else self.head)
        return self.layers * (self.attention + self.small) + dense + ends

    @property
    def _matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def _ffn(self) -> int:
        return self.ffn or 4 * self.hidden

    @property
    def _expert_ffn(self) -> int:
        return self.expert_ffn or self._ffn

    # --- work ---------------------------------------------------------------------------------------------------

    @cached_property
    def scores(self) -> float:
        """Forward FLOPs per token of a layer's scores and their weighted sum.

        A classic model computes all scores, another only the half that the mask leaves.
        """
        full = 2 * self.sequence * self.heads * (2 * self.width + self.rope)
        return full if self.classic else full / 2

    @cached_property
    def layer_flops(self) -> float:
        """Forward FLOPs per token of a layer, averaged over the layers."""
        mlp = (self.layers - self.expert_layers) * self.mlp
        mlp += self.expert_layers * (self.around_experts + self.top_k * self.expert)
        return 2 * (self.attention + mlp / self.layers) + self.scores

    @property
    def head_flops(self) -> int:
        """Forward FLOPs per token of the logits."""
        return 2 * self.head

    def flops(self, tokens: float) -> float:
        """Return the FLOPs of a step over `tokens`, forward and backward, without recomputation.

        For a classic model this is 72 B s l h^2 (1 + s / 6h + V / 12lh), equation 7 of Korthikanti et al., 2022.
        """
        return 3 * tokens * (self.layers * self.layer_flops + self.head_flops)

    def again(self, recompute: str) -> float:
        """Return the FLOPs per token that the backward pass recomputes in a layer.

        "full": the whole forward pass. "selective": in a classic model, the attention scores and their use. Like
        Korthikanti et al., we count s / 6h of the model's FLOPs for that, three times its forward pass. In other
        models: norms and activation functions, which count as 0, and projections up from latents.
        """
        if recompute == "full":
            return self.layer_flops
        if recompute == "none":
            return 0
        return 3 * self.scores if self.classic else 2 * (self._up_kv + self._up_queries if self.kv_rank else 0)

    @cached_property
    def kept(self) -> Mapping[str, tuple[float, float]]:
        """Bytes per token that a layer keeps for its backward pass in 16 bits, by the recomputation mode.

        Each value is (bytes that tensor parallelism leaves whole, bytes that it splits). Classic: 10h and 24h + 5 a s,
        of the 34h + 5 a s of Korthikanti et al., 2022, section 4. "selective" keeps none of the 5 a s, and "full" only
        the layer's input. Other models have no 5 a s and no dropout mask; "selective" recomputes the outputs of norms
        and activation functions, and the projections up from latents. With experts, the figures are for an expert
        layer.
        """
        return {recompute: self._kept(recompute) for recompute in RECOMPUTE}

    def _kept(self, recompute: str) -> tuple[float, float]:
        hidden, queries = self.hidden, self.heads * (self.width + self.rope)
        if recompute == "full":
            return 2 * hidden, 0
        attention = 2 * queries + 2 * self.heads * self.width  # queries and the heads' outputs
        keys_values = 2 * self.kv_width
        if self.kv_rank:  # the latents, and without recomputation also every head's queries, keys and values
            latents = 2 * (self.query_rank + self.kv_width)
            attention, keys_values = 2 * self.heads * self.width, latents
            if recompute == "none":
                keys_values += 4 * queries + 2 * self.heads * self.width
        if self.classic:
            scores = 5 * self.heads * self.sequence if recompute == "none" else 0
            return 10 * hidden, attention + keys_values + self._mlp_keeps("none") + scores
        norms = 8 if recompute == "none" else 4  # bytes: inputs and outputs of two norms, or their inputs alone
        copies = 2 * self.top_k  # bytes: one copy of the token per expert
        return (norms + copies) * hidden, attention + keys_values + self._mlp_keeps(recompute)

    def _mlp_keeps(self, recompute: str) -> float:
        """Return the bytes kept between an MLP's matrices: the activation function's input, gate and output."""
        copies = (self._matrices if recompute == "none" else self._matrices - 1) * 2
        return copies * ((self.top_k + self.shared_experts) * self._expert_ffn if self.experts else self._ffn)


@dataclass(frozen=True)
class Machine:
    """A cluster: `nodes` of `gpus_per_node`, each GPU with `memory` bytes and a `peak` in FLOP/s (dense, bf16).

    `fraction`: the part of the peak that matrix products reach. `inside`, `between`: a GPU's links within its node and
    to other nodes. `bandwidth`: bytes per second between a GPU and its memory, for memory-bound kernels; with inf they
    are free. Raises `ValueError` for figures that aren't positive and for a fraction outside (0, 1].
    """

    name: str
    nodes: int
    gpus_per_node: int
    memory: float
    peak: float
    fraction: float
    inside: Link
    between: Link
    bandwidth: float = inf

    def __post_init__(self):
        for name in ("nodes", "gpus_per_node", "memory", "peak", "bandwidth"):
            if not getattr(self, name) > 0:
                raise ValueError(f"a machine's {name} must be more than 0, not {getattr(self, name)}")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"a machine's fraction of the peak must be above 0 and at most 1, not {self.fraction}")

    @property
    def world_size(self) -> int:
        """The number of GPUs, and so of ranks."""
        return self.nodes * self.gpus_per_node

    @property
    def seconds_a_byte(self) -> float:
        """Seconds to read or write a byte of a GPU's memory."""
        return 1 / self.bandwidth

    def of(self, nodes: int) -> Machine:
        """Return a machine of `nodes` nodes of the same kind."""
        return replace(self, nodes=nodes)


def _gpt(name: str, layers: int, hidden: int, heads: int, vocabulary: int = 51200, sequence: int = 2048) -> Model:
    return Model(name, layers, hidden, heads, vocabulary, sequence, tied=True, classic=True)


def _llama(name: str, layers: int, hidden: int, heads: int, ffn: int) -> Model:
    return Model(name, layers, hidden, heads, 128256, 8192, kv_heads=8, ffn=ffn, gated=True)


# Name, layers, hidden, heads. Source: Narayanan et al., “Efficient Large-Scale Language Model Training on GPU Clusters
# Using Megatron-LM”, SC 2021, Table 1.
_MEGATRON = (
    ("1.7b", 24, 2304, 24),
    ("3.6b", 30, 3072, 32),
    ("7.5b", 36, 4096, 32),
    ("18b", 40, 6144, 48),
    ("39b", 48, 8192, 64),
    ("76b", 60, 10240, 80),
    ("145b", 80, 12288, 96),
    ("310b", 96, 16384, 128),
    ("530b", 105, 20480, 128),
    ("1t", 128, 25600, 160),
)

# Jiang et al., “Mixtral of Experts”, 2024, Table 1; trained on sequences of 32,768.
_MIXTRAL = Model("mixtral-8x7b", 32, 4096, 32, 32000, 32768, kv_heads=8, ffn=14336, gated=True, experts=8, top_k=2)

# “DeepSeek-V3 Technical Report”, 2024, sections 2.1 and 4.2; vocabulary of its published configuration.
_DEEPSEEK_EXPERTS: dict = dict(experts=256, top_k=8, expert_ffn=2048, shared_experts=1, dense_layers=3)
_DEEPSEEK_ATTENTION: dict = dict(head_size=128, query_rank=1536, kv_rank=512, rope=64)
_DEEPSEEK = Model(
    "deepseek-v3", 61, 7168, 128, 129280, 4096, ffn=18432, gated=True, **_DEEPSEEK_EXPERTS, **_DEEPSEEK_ATTENTION
)

_ALL = (
    _gpt("gpt2-xl", 48, 1600, 25, vocabulary=50257, sequence=1024),  # Radford et al., 2019; openai/gpt-2 on GitHub
    _gpt("gpt3-175b", 96, 12288, 96),  # Brown et al., 2020, Table 2.1; vocabulary padded as in Korthikanti et al.
    *(_gpt(f"megatron-{name}", *sizes) for name, *sizes in _MEGATRON),
    _gpt("megatron-22b", 48, 6144, 64),  # Korthikanti et al., 2022, Table 3
    _llama("llama-3-8b", 32, 4096, 32, 14336),  # “The Llama 3 Herd of Models”, 2024, Table 3
    _llama("llama-3-70b", 80, 8192, 64, 28672),
    _llama("llama-3-405b", 126, 16384, 128, 53248),
    _MIXTRAL,
    _DEEPSEEK,
)
MODELS: Mapping[str, Model] = MappingProxyType({model.name: model for model in _ALL})
"""Known models by name, with the sequence length of their training. Sources are next to the figures."""

A100_FRACTION = 0.61
"""The fraction of the A100's peak, fit to Table 1 of Narayanan et al., 2021, by tests/library/test_planner.py."""

H100_FRACTION = 0.57
"""The fraction of the H100's peak, fit to row 1 of the Llama 3 report's Table 4, by tests/library/test_planner.py."""


def _dgx(
    name: str, memory: float, peak: float, fraction: float, inside: str, between: str, bandwidth: float
) -> Machine:
    """Return a node of eight GPUs, each with its own network card."""
    return Machine(name, 1, 8, memory, peak, fraction, machines.link(inside), machines.link(between), bandwidth)


_MACHINES = (
    # Memory, dense bf16 FLOP/s and bytes per second: NVIDIA's data sheets of the A100 80GB, H100, H200 (SXM) and DGX
    # B200. Our guess: the newer GPUs reach the H100's fraction.
    _dgx("a100", 80e9, 312e12, A100_FRACTION, "NVLink 3 (A100)", "InfiniBand HDR", 2.039e12),
    _dgx("h100", 80e9, 989.4e12, H100_FRACTION, "NVLink 4 (H100)", "InfiniBand NDR", 3.35e12),
    _dgx("h200", 141e9, 989.4e12, H100_FRACTION, "NVLink 4 (H100)", "InfiniBand NDR", 4.8e12),
    _dgx("b200", 180e9, 2250e12, H100_FRACTION, "NVLink 5 (B200)", "InfiniBand NDR", 8e12),
)
# The H800 is an H100 with a slower NVLink: 400 GB/s, both directions together.
_H800 = replace(_MACHINES[1], name="h800", inside=Link(machines.link("NVLink 4 (H100)").alpha, 1 / 200e9))
# Our round figures: four processes share a laptop's 16 GB, its cores, and its 1 Gbit/s link to the next laptop.
_LAPTOP = Machine("laptop", 1, 4, 4e9, 50e9, 0.5, Link(30e-6, 1 / 2e9), Link(100e-6, 4 * 8 / 1e9), 5e9)
MACHINES: Mapping[str, Machine] = MappingProxyType({machine.name: machine for machine in (*_MACHINES, _H800, _LAPTOP)})
"""Known machines by GPU, one node each; `.of(nodes)` returns more nodes. Links have their rated speed and memory its
data-sheet size. Data sheets often say GB for GiB; the difference makes up for memory that the planner doesn't count."""
