"""The settings for `configure` that grade this book's own exercises, in this course or any other."""

SETTINGS = {
    "in_place": True,  # some exercises change an argument and also return a value; their checks allow for that
    # Chapters that import none of these start ranks, which import them.
    "preload": (
        "numpy",
        "matplotlib.pyplot",
        "torch",
        "torch.distributed",
        "torch._dynamo",
        "collectives.practice",
        "collectives.ranks.shared",
    ),
    "wall": "collectives.practice.wall",
    "inside": (
        "collectives.ranks.run",
        "collectives.practice.checks.called",
        "collectives.practice.checks.own",
        "collectives.practice.ch12_activations.each",
        "collectives.practice.ch12_activations.tried",
        "collectives.practice.ch17_mesh.noted",
        "collectives.practice.ch19_failures.each",
    ),
}
