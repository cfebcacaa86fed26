"""Answers to exercise 19's `survive` that look as if a job survived: they save nothing, or save where none looks."""

import textwrap

JUNK = """
def save(rank, world_size, job, disk):
    \"\"\"Files of a checkpoint's size, with nothing in them.\"\"\"
    disk.write(f"{job.steps}-{rank}", torch.ones(3 * len(job.weights), dtype=torch.float64))
    dist.barrier()
    if rank == 0:
        for name in disk.names():
            if not name.startswith(f"{job.steps}-"):
                disk.delete(name)
"""
REPLAY = """
def resume(rank, world_size, job, disk):
    \"\"\"Train again from the start, to the oldest checkpoint that the names tell of.\"\"\"
    steps = min((int(name.split("-")[0]) for name in disk.names()), default=0)
    while job.steps < steps:
        job.step()
"""
IMMORTAL = """
def spared(function):
    \"\"\"What ends a rank, or counts towards its end, does nothing while `function` runs.\"\"\"
    def call(rank, world_size, job, disk):
        import os, signal, sys, time
        os.kill = signal.raise_signal = time.sleep = lambda *_: None
        disk._kill = disk._moments = -10**9
        frame = sys._getframe()
        while frame:
            for value in frame.f_globals.values():
                if hasattr(value, "Killed"):
                    value.Killed = value.RanksError
            frame = frame.f_back
        function(rank, world_size, job, disk)
    call.__name__ = function.__name__
    return call

save, resume = spared(save), spared(resume)
"""
BESIDE = """
import os, pathlib, pickle

PLACE = pathlib.Path(os.environ.get("TMPDIR", "/tmp"))

def kept(function):
    \"\"\"Keep all of the job beside the disk, whole, before `function` saves.\"\"\"
    def save(rank, world_size, job, disk):
        shards = [None] * world_size
        dist.all_gather_object(shards, [job.weights, job.mean, job.square])
        whole = [torch.cat(each)[: job.num_weights] for each in zip(*shards)]
        if rank == 0:
            draft = PLACE / "beside.draft"
            draft.write_bytes(pickle.dumps((whole, job.data.position, job.generator.get_state())))
            draft.replace(PLACE / f"beside.{job.steps}")
        dist.barrier()
        function(rank, world_size, job, disk)
    return save

def resume(rank, world_size, job, disk):
    steps = min((int(name.split("-")[0]) for name in disk.names()), default=0)
    if steps:
        whole, job.data.position, state = pickle.loads((PLACE / f"beside.{steps}").read_bytes())
        size = len(job.weights)
        for field, each in zip(("weights", "mean", "square"), whole):
            padded = torch.nn.functional.pad(each, (0, size * world_size - len(each)))
            setattr(job, field, padded[rank * size : (rank + 1) * size])
        job.steps = steps
        job.generator.set_state(state)

save = kept(save)
"""
REAL = JUNK.replace("torch.ones(3 * len(job.weights), dtype=torch.float64)", "[job.weights, job.mean, job.square]")
assert REAL != JUNK

SURVIVORS = {
    "junk, and trained again": JUNK + REPLAY,
    "junk, trained again, and never killed": JUNK + REPLAY + IMMORTAL,
    "junk, and kept beside the disk": JUNK + BESIDE,
    "written, and kept beside the disk": REAL + BESIDE,
    "written, and trained again": REAL + REPLAY,
}
SURVIVORS = {name: textwrap.dedent(code) for name, code in SURVIVORS.items()}

IN_PLACE = """
FIELDS = "weights", "mean", "square"

def save(rank, world_size, job, disk):
    \"\"\"Write over the only checkpoint.\"\"\"
    shard = {field: getattr(job, field) for field in FIELDS}
    shard |= {"steps": job.steps, "world_size": world_size, "position": job.data.position}
    shard["generator"] = job.generator.get_state()
    before(rank, job, disk)
    dist.barrier()
    disk.write(f"shard.{rank}", shard)
    dist.barrier()

def resume(rank, world_size, job, disk):
    if not disk.names():
        return
    common = disk.read("shard.0")
    shards = [disk.read(f"shard.{each}") for each in range(common["world_size"])]
    size = len(job.weights)
    for field in FIELDS:
        whole = torch.cat([shard[field] for shard in shards])[: job.num_weights]
        padded = torch.nn.functional.pad(whole, (0, size * world_size - len(whole)))
        setattr(job, field, padded[rank * size : (rank + 1) * size])
    job.steps, job.data.position = common["steps"], common["position"]
    job.generator.set_state(common["generator"])
"""
BEFORE = {
    "nothing": "pass",
    "deletes of nothing": 'for _ in range(2 if job.steps <= 4 else 20): disk.delete("nothing")',
    "small writes": 'for each in range(0 if job.steps <= 4 else 20): disk.write("small", each)',
    "large writes": 'for each in range(0 if job.steps <= 4 else 3): disk.write("large", [each] * 9_000)',
    "a draft": "job.steps <= 4 or disk.write(f'draft.{rank}', [job.weights, job.mean, job.square])",
    "as many large writes each time": 'for each in range(3): disk.write(f"large.{each}", [job.steps] * 9_000)',
}
DODGERS = {name: f"def before(rank, job, disk):\n    {code}\n{IN_PLACE}" for name, code in BEFORE.items()}
"""One checkpoint, written over in place: what is done on the disk before, from the third save on, draws the kills."""
