# ruff: noqa: F821
# %% collectives
def collectives(x, w, y):
    """Rows and columns cost a gather, the inner axis a reduction."""
    if x == "inner" and w == "inner":
        return ["all_reduce"]
    return [] if y in (x, w) else ["all_gather"]


# %% gates
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
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
    if dense["out"].shape[0] % world_size:
        raise ValueError("the width does not divide")

    def of_heads(fused):
        return torch.cat([tensor.chunk(world_size)[rank] for tensor in fused.chunk(3)])

    return {
        "qkv": of_heads(dense["qkv"]),
        "qkv_bias": of_heads(dense["qkv_bias"]),
        "out": dense["out"].chunk(world_size, dim=1)[rank],
        "out_bias": dense["out_bias"],
    }


def attention(x, part, head_size, f, g):
    queries, keys, values = functional.linear(x, part["qkv"], part["qkv_bias"]).chunk(3, dim=1)
    return g(functional.linear(attend(queries, keys, values, head_size), part["out"])) + part["out_bias"]
