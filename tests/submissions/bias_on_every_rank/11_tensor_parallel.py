# ruff: noqa: F821
# %% collectives
def collectives(x, w, y):
    """An all-reduce puts everything together."""
    return ["all_reduce"] if x or w else []


# %% gates
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class G(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        total = y.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def f(x):
    return F.apply(x)


def g(y):
    return G.apply(y)


# %% attention
def split_attention(dense, num_heads, rank, world_size):
    if num_heads % world_size:
        raise ValueError("heads do not divide")
    return {
        "qkv": dense["qkv"].chunk(world_size, 1)[rank],
        "qkv_bias": dense["qkv_bias"],
        "out": dense["out"].chunk(world_size, 1)[rank],
        "out_bias": dense["out_bias"] / world_size,
    }


def attention(x, part, head_size, f, g):
    projected = functional.linear(f(x), part["qkv"], part["qkv_bias"])
    attended = attend(*projected.chunk(3, dim=1), head_size)
    return g(functional.linear(attended, part["out"], part["out_bias"]))
