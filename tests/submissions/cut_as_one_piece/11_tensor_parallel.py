# ruff: noqa: F821
# %% collectives
def collectives(x, w, y):
    if x == w == "inner":
        return ["all_reduce" if y is None else "reduce_scatter"]
    made = x if w is None else w
    if made == y or made is None:
        return []
    return ["all_gather" if y is None else "all_to_all"]


# %% gates
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient)
        return gradient


class G(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def f(x):
    return F.apply(x)


def g(y):
    return G.apply(y)


# %% attention
def split_attention(dense, num_heads, rank, world_size):
    assert num_heads % world_size == 0
    return {
        "qkv": dense["qkv"].chunk(world_size)[rank],
        "qkv_bias": dense["qkv_bias"].chunk(world_size)[rank],
        "out": dense["out"].chunk(world_size, dim=1)[rank],
        "out_bias": dense["out_bias"],
    }


def attention(x, part, head_size, f, g):
    parts = zip(part["qkv"].chunk(3), part["qkv_bias"].chunk(3), strict=True)
    heads = [functional.linear(f(x), weight, bias) for weight, bias in parts]
    return g(functional.linear(attend(*heads, head_size), part["out"])) + part["out_bias"]
