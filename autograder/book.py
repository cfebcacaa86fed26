"""How this book's own exercises are judged: the settings for `configure`, wherever they are graded."""

SETTINGS = {
    "in_place": True,  # some exercises change an argument and return something, too; the checks allow for it
    "preload": (  # chapters that import none of these start ranks, which do
        "numpy",
        "matplotlib.pyplot",
        "torch",
        "torch.distributed",
        "torch._dynamo",
        "collectives.practice",
        "collectives.ranks.shared",
    ),
    "inside": (
        "collectives.ranks.run",
        "collectives.practice.checks.own",
        "collectives.practice.ch14_mesh.noted",
        "collectives.practice.ch15_gpus.reduced_on",
    ),
}
