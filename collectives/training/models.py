"""What a planner needs to know of a model and of a machine, and the figures of known ones.

A parameter of a matrix costs a token 2 FLOPs forward and 4 backward. Attention adds what its scores cost. Everything
else (norms, activation functions, the update) is left out, as the published counts leave it out.
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
    """A decoder of `layers` blocks, each attention and an MLP, between an embedding and a head.

    `kv_heads`: fewer than `heads` share keys and values. `head_size`: hidden / heads unless said. `kv_rank`,
    `query_rank`, `rope`: keys and values (queries) go through so few numbers, with so many more for positions: the
    latent attention of DeepSeek-V2. `ffn`: width of the MLP (4 x hidden), `gated`: it has three matrices, not two.

    `experts`: of each layer but the first `dense_layers`, of which a token visits `top_k` and all `shared_experts`,
    each an MLP of width `expert_ffn`. `tied`: the head is the embedding. `classic`: a block like GPT-3's, with biases,
    learned positions and dropout, whose attention writes its scores to memory. Otherwise it has none of them, and
    attention is computed by a kernel that keeps no scores and skips those that the mask hides (FlashAttention).
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
                raise ValueError(f"a model's {name} is at least 1, not {getattr(self, name)}")
        for name in ("kv_heads", "ffn", "expert_ffn", "head_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"a model's {name} is at least 1, or left out, not {getattr(self, name)}")
        for name in ("experts", "shared_experts", "query_rank", "kv_rank", "rope"):
            if getattr(self, name) < 0:
                raise ValueError(f"a model's {name} is at least 0, not {getattr(self, name)}")
        if not 0 <= self.top_k <= self.experts or (self.experts > 0) != (self.top_k > 0):
            raise ValueError(f"{self.name}: a token visits 1 to {self.experts} of {self.experts} experts: set top_k")
        if self.head_size is None and self.hidden % self.heads:
            raise ValueError(f"{self.name}: hidden {self.hidden} does not divide by {self.heads} heads: set head_size")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"{self.name}: {self.heads} heads cannot share {self.kv_heads} keys and values evenly")
        if not 0 <= self.dense_layers <= self.layers:
            raise ValueError(f"{self.name}: {self.dense_layers} of {self.layers} layers cannot be dense")
        if not self.experts and (self.shared_experts or self.dense_layers or self.expert_ffn):
            raise ValueError(f"{self.name}: shared_experts, dense_layers and expert_ffn are of a model with experts")

    # --- parameters ---------------------------------------------------------------------------------------------

    @cached_property
    def width(self) -> int:
        """Numbers of one head's query, key or value."""
        return self.head_size or self.hidden // self.heads

    @cached_property
    def kv_width(self) -> int:
        """Numbers a token that other tokens attend to: its keys and values, or the latent they are made from."""
        return self.kv_rank + self.rope if self.kv_rank else 2 * (self.kv_heads or self.heads) * self.width

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Of its MLPs: what tensor parallelism splits."""
        dense = (self._ffn,) if self.layers > self.expert_layers else ()
        shared = (self._expert_ffn,) if self.expert_layers else ()
        return dense + shared

    @cached_property
    def attention(self) -> int:
        """Parameters of the matrices of attention, a layer."""
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
        """Parameters of a layer of experts besides them and attention: the router and the experts that all visit."""
        return self.hidden * self.experts + self.shared_experts * self.expert

    @cached_property
    def small(self) -> int:
        """Parameters of a layer that are no matrix: norms, and in a classic block biases."""
        if not self.classic:
            return 2 * self.hidden
        return 4 * self.hidden + 3 * self.heads * self.width + 2 * self.hidden + self._ffn

    @cached_property
    def head(self) -> int:
        """Parameters of the matrix that makes the logits."""
        return self.vocabulary * self.hidden

    @cached_property
    def embedding(self) -> int:
        """Parameters of what turns a token, and in a classic model its position, into numbers."""
        return self.head + (self.sequence * self.hidden if self.classic else 0)

    @cached_property
    def expert_layers(self) -> int:
        """How many layers have experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @cached_property
    def parameters(self) -> int:
        """All of them."""
        return self._without_experts + self.expert_layers * self.experts * self.expert

    @cached_property
    def active_parameters(self) -> int:
        """Those that one token meets."""
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
        """FLOPs a token, forward, of a layer's scores and of what they weight: of all of them in a classic model, else
        of the half that the mask leaves."""
        full = 2 * self.sequence * self.heads * (2 * self.width + self.rope)
        return full if self.classic else full / 2

    @cached_property
    def layer_flops(self) -> float:
        """FLOPs a token, forward, of a layer, on average over the layers."""
        mlp = (self.layers - self.expert_layers) * self.mlp
        mlp += self.expert_layers * (self.around_experts + self.top_k * self.expert)
        return 2 * (self.attention + mlp / self.layers) + self.scores

    @property
    def head_flops(self) -> int:
        """FLOPs a token, forward, of the logits."""
        return 2 * self.head

    def flops(self, tokens: float) -> float:
        """FLOPs of a step over `tokens`, forward and backward, with nothing computed twice.

        For a classic model 72 B s l h^2 (1 + s / 6h + V / 12lh): equation 7 of Korthikanti et al., 2022.
        """
        return 3 * tokens * (self.layers * self.layer_flops + self.head_flops)

    def again(self, recompute: str) -> float:
        """FLOPs a token of a layer that the backward pass computes again.

        "full": the whole forward pass. "selective": in a classic model what makes and uses the scores; Korthikanti et
        al. count s / 6h of the model's FLOPs for it (and so do we), which is three times a forward pass of it. In
        another model norms and activation functions, which count nothing, and projections up from latents.
        """
        if recompute == "full":
            return self.layer_flops
        if recompute == "none":
            return 0
        return 3 * self.scores if self.classic else 2 * (self._up_kv + self._up_queries if self.kv_rank else 0)

    @cached_property
    def kept(self) -> Mapping[str, tuple[float, float]]:
        """By what is computed again: bytes a token that a layer keeps for its backward pass, in 16 bits.

        Of (what tensor parallelism leaves whole, what it splits). Classic: 10h and 24h + 5 a s, of the 34h + 5 a s of
        Korthikanti et al., 2022, section 4; "selective" keeps none of the 5 a s, "full" the layer's input alone.
        Otherwise there is no 5 a s and no dropout mask, and "selective" makes the outputs of norms and of activation
        functions again, and what comes up from latents. Of a model with experts, it is a layer that has them.
        """
        return {recompute: self._kept(recompute) for recompute in RECOMPUTE}

    def _kept(self, recompute: str) -> tuple[float, float]:
        hidden, queries = self.hidden, self.heads * (self.width + self.rope)
        if recompute == "full":
            return 2 * hidden, 0
        attention = 2 * queries + 2 * self.heads * self.width  # queries, and what the heads put out
        keys_values = 2 * self.kv_width
        if self.kv_rank:  # all heads' own keys and values, or the latents that they are made from
            latents = 2 * (self.query_rank + self.kv_width)
            attention, keys_values = 2 * self.heads * self.width, latents
            if recompute == "none":
                keys_values += 4 * queries + 2 * self.heads * self.width
        if self.classic:
            scores = 5 * self.heads * self.sequence if recompute == "none" else 0
            return 10 * hidden, attention + keys_values + self._mlp_keeps("none") + scores
        norms = 8 if recompute == "none" else 4  # two of them: what goes in, and what comes out
        copies = 2 * self.top_k  # of the token, one for each expert
        return (norms + copies) * hidden, attention + keys_values + self._mlp_keeps(recompute)

    def _mlp_keeps(self, recompute: str) -> float:
        """Between the matrices: what goes in to the activation function, its gate, and what comes out."""
        copies = (self._matrices if recompute == "none" else self._matrices - 1) * 2
        return copies * ((self.top_k + self.shared_experts) * self._expert_ffn if self.experts else self._ffn)


@dataclass(frozen=True)
class Machine:
    """`nodes` of `gpus_per_node`, each GPU with `memory` bytes and a `peak` of FLOP/s (dense, bf16).

    `fraction`: of the peak that products of matrices reach. `inside`, `between`: a GPU's link within its node, and to
    the other nodes. `bandwidth`: bytes a second between a GPU and its memory, for the kernels that only move numbers;
    inf if they are to cost nothing.
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
                raise ValueError(f"a machine's {name} is more than 0, not {getattr(self, name)}")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"the fraction of the peak that is reached is between 0 and 1, not {self.fraction}")

    @property
    def world_size(self) -> int:
        """How many GPUs, and so ranks."""
        return self.nodes * self.gpus_per_node

    @property
    def seconds_a_byte(self) -> float:
        """To read or write a byte of a GPU's memory."""
        return 1 / self.bandwidth

    def of(self, nodes: int) -> Machine:
        """As many nodes of the same kind."""
        return replace(self, nodes=nodes)


def _gpt(name: str, layers: int, hidden: int, heads: int, vocabulary: int = 51200, sequence: int = 2048) -> Model:
    return Model(name, layers, hidden, heads, vocabulary, sequence, tied=True, classic=True)


def _llama(name: str, layers: int, hidden: int, heads: int, ffn: int) -> Model:
    return Model(name, layers, hidden, heads, 128256, 8192, kv_heads=8, ffn=ffn, gated=True)


_MEGATRON = (  # Narayanan et al., “Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM”,
    ("1.7b", 24, 2304, 24),  # SC 2021, Table 1: name, layers, hidden, heads
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

_ALL = (
    _gpt("gpt2-xl", 48, 1600, 25, vocabulary=50257, sequence=1024),  # Radford et al., 2019; openai/gpt-2 on GitHub
    _gpt("gpt3-175b", 96, 12288, 96),  # Brown et al., 2020, Table 2.1; vocabulary as Korthikanti et al., 2022, pad it
    *(_gpt(f"megatron-{name}", *sizes) for name, *sizes in _MEGATRON),
    _gpt("megatron-22b", 48, 6144, 64),  # Korthikanti et al., 2022, Table 3
    _llama("llama-3-8b", 32, 4096, 32, 14336),  # “The Llama 3 Herd of Models”, 2024, Table 3
    _llama("llama-3-70b", 80, 8192, 64, 28672),
    _llama("llama-3-405b", 126, 16384, 128, 53248),
    Model(  # Jiang et al., “Mixtral of Experts”, 2024, Table 1; trained on sequences of 32,768
        "mixtral-8x7b",
        32,
        4096,
        32,
        32000,
        32768,
        kv_heads=8,
        ffn=14336,
        gated=True,
        experts=8,
        top_k=2,
    ),
    Model(  # “DeepSeek-V3 Technical Report”, 2024, sections 2.1 and 4.2; vocabulary of its published configuration
        "deepseek-v3",
        61,
        7168,
        128,
        129280,
        4096,
        ffn=18432,
        gated=True,
        experts=256,
        top_k=8,
        expert_ffn=2048,
        shared_experts=1,
        dense_layers=3,
        head_size=128,
        query_rank=1536,
        kv_rank=512,
        rope=64,
    ),
)
MODELS: Mapping[str, Model] = MappingProxyType({model.name: model for model in _ALL})
"""Known models by name, with the sequence length that they were trained on. Sources are beside the figures."""

A100_FRACTION = 0.61
"""Of the A100's peak: fitted to Table 1 of Narayanan et al., 2021, by tests/test_planner.py."""

H100_FRACTION = 0.57
"""Of the H100's peak: fitted to the first row of Table 4 of the Llama 3 report, by tests/test_planner.py."""


def _dgx(
    name: str, memory: float, peak: float, fraction: float, inside: str, between: str, bandwidth: float
) -> Machine:
    """A node of eight GPUs, each with a network card of its own."""
    return Machine(name, 1, 8, memory, peak, fraction, machines.link(inside), machines.link(between), bandwidth)


_MACHINES = (
    # NVIDIA's data sheets of the A100 80GB, H100, H200 (SXM) and DGX B200: memory, dense bf16 FLOP/s, bytes a second;
    # that the newer ones reach the H100's fraction is a guess of ours
    _dgx("a100", 80e9, 312e12, A100_FRACTION, "NVLink 3 (A100)", "InfiniBand HDR", 2.039e12),
    _dgx("h100", 80e9, 989.4e12, H100_FRACTION, "NVLink 4 (H100)", "InfiniBand NDR", 3.35e12),
    _dgx("h200", 141e9, 989.4e12, H100_FRACTION, "NVLink 4 (H100)", "InfiniBand NDR", 4.8e12),
    _dgx("b200", 180e9, 2250e12, H100_FRACTION, "NVLink 5 (B200)", "InfiniBand NDR", 8e12),
)
_H800 = replace(  # an H100 with less NVLink: 400 GB/s, both ways together
    _MACHINES[1], name="h800", inside=Link(machines.link("NVLink 4 (H100)").alpha, 1 / 200e9)
)
# round figures of ours: four processes share a laptop's 16 GB, its cores, and its gigabit a second to the next laptop
_LAPTOP = Machine("laptop", 1, 4, 4e9, 50e9, 0.5, Link(30e-6, 1 / 2e9), Link(100e-6, 4 * 8 / 1e9), 5e9)
MACHINES: Mapping[str, Machine] = MappingProxyType({machine.name: machine for machine in (*_MACHINES, _H800, _LAPTOP)})
"""Known machines by the name of their GPU, one node each: `.of(nodes)` gives more. Links are as rated, and memory as
the data sheets say it: the GB are often GiB, and the difference is left to what the planner does not count."""
