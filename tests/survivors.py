"""Answers to exercise 19's `survive` that look as if a job survived, and save or resume nothing."""

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
