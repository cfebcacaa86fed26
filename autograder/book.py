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
        "collectives.shared",
    ),
    "inside": (
        "collectives.ranks.run",
        "collectives.practice.own",
        "collectives.practice.mesh.noted",
        "collectives.practice.gpus.reduced_on",
    ),
}
