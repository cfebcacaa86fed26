"""What a layer keeps, by autograd's own list and by the memory held, is what the planner's formula says."""

from dataclasses import replace

import pytest
import torch

from collectives.training import activations
from collectives.training.activations import CHOICES, Layer, measured, saved
from collectives.training.registry import MODELS

LLAMA = MODELS["llama-3-8b"]
SMALL = replace(LLAMA, name="small", hidden=128, heads=4, kv_heads=1, ffn=448, sequence=64)
TOKENS = SMALL.sequence
BESIDES = 4 * (2 + SMALL.heads)  # bytes a token: one number for each norm, and attention's sum for each head, in fp32


def layer_and_input(model=SMALL, fused=True, dtype=torch.bfloat16):
    torch.manual_seed(0)
    x = torch.randn(1, model.sequence, model.hidden).to(dtype)
    return Layer(model, fused).to(dtype), x.requires_grad_()


def bytes_a_token(choice):
    return measured(*layer_and_input(), choice).num_bytes / TOKENS


def test_autograd_saves_what_the_formula_says_and_three_small_things():
    kept = saved(*layer_and_input())
    assert sum(each.num_bytes for each in kept) == TOKENS * (sum(SMALL.kept["none"]) + BESIDES)
    assert {each.by for each in kept} == {
        "attention_norm", "attention.queries", "attention", "mlp_norm", "mlp.gate", "mlp", "mlp.down"
    }  # fmt: skip


def test_memory_held_equals_the_formula_for_each_choice_that_it_knows():
    assert bytes_a_token("keep all") == sum(SMALL.kept["none"]) + BESIDES
    assert bytes_a_token("recompute all but products") == sum(SMALL.kept["selective"]) + 4 * SMALL.heads
    assert bytes_a_token("recompute the layer") == sum(SMALL.kept["full"])


def test_every_second_product_keeps_less_than_every_other_layer():
    h, f, kv = SMALL.hidden, SMALL.mlp_width, SMALL.kv_width // 2
    products = h + kv + f + h  # of queries, values, the gate and down; h more each for the input and for attention
    assert bytes_a_token("recompute every second product") == 2 * (products + 2 * h) + 4 * SMALL.heads
    assert bytes_a_token("recompute every second product") < sum(SMALL.kept["half"])


@pytest.mark.parametrize("choice", CHOICES)
def test_no_choice_changes_a_gradient(choice):
    wanted = measured(*layer_and_input(), "keep all").gradients
    found = measured(*layer_and_input(), choice).gradients
    assert len(found) == len(wanted) == 10
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_the_backward_pass_runs_again_just_what_was_not_kept():
    flops = {choice: measured(*layer_and_input(), choice).flops / TOKENS for choice in CHOICES}
    extra = {choice: count - flops["keep all"] for choice, count in flops.items()}
    h, f, kv = SMALL.hidden, SMALL.mlp_width, SMALL.kv_width // 2
    assert extra["recompute all but products"] == 0
    assert extra["recompute every second product"] == 2 * h * (kv + h + f)  # keys, output, up
    assert extra["recompute the layer"] == SMALL.layer_flops - 2 * h * f  # torch stops before the last product


def test_a_fused_layer_computes_what_torchs_own_operations_do_and_keeps_less():
    fused, x = layer_and_input(dtype=torch.float64)
    eager, _ = layer_and_input(fused=False, dtype=torch.float64)
    ours, theirs = (measured(each, x, "keep all") for each in (fused, eager))
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(ours.gradients, theirs.gradients, strict=True))
    assert sum(s.num_bytes for s in saved(*layer_and_input(fused=False))) > 1.5 * TOKENS * sum(SMALL.kept["none"])


def test_without_a_fused_attention_a_layer_keeps_every_score():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    layer, x = layer_and_input()
    with sdpa_kernel(SDPBackend.MATH):
        shapes = [each.shape for each in saved(layer, x)]
    assert shapes.count((1, SMALL.heads, TOKENS, TOKENS)) == 1
    assert not [each for each in saved(layer, x) if each.shape[-2:] == (TOKENS, TOKENS)]


def test_an_unknown_choice_is_refused():
    with pytest.raises(KeyError):
        activations.run(*layer_and_input(), "keep most")
