# ruff: noqa: F821
# %% collectives
def collectives(x, w, y):
    """Gather what is sharded, multiply, and take what is wanted of it: always right, and dear."""
    return ["all_gather" for layout in (x, w) if layout is not None]


# %% gates
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class G(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y

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
    """Rows for the first matrix, rows for the second."""
    if num_heads % world_size:
        raise ValueError("heads do not divide")
    part = {name: dense[name].chunk(world_size)[rank] for name in ("out", "out_bias")}
    for name in ("qkv", "qkv_bias"):
        part[name] = torch.cat([tensor.chunk(world_size)[rank] for tensor in dense[name].chunk(3)])
    return part


def attention(x, part, head_size, f, g):
    projected = functional.linear(g(x), part["qkv"], part["qkv_bias"])
    attended = attend(*projected.chunk(3, dim=1), head_size)
    return f(functional.linear(attended, part["out"])) + part["out_bias"]
