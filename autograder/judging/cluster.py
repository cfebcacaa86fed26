"""Judging on a Dask cluster: each worker process starts judges and a sandbox of its own when it is first needed.

Workers need this package and bubblewrap, as the grading machine does. Only notebooks travel there and back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from distributed import Client
from distributed.scheduler import KilledWorker
from nbformat import NotebookNode

from ..sandbox.envelope import CannotSandbox
from . import preprocessor
from .judge import Settings
from .judges import GraderFault, Judged

PATIENCE = 30  # seconds a scheduler has to answer


def connect(address: str, settings: Settings, stack: ExitStack) -> tuple[Callable[..., Judged], str, int]:
    """Return a function that judges a notebook on the cluster, the proof for the teacher, and the number of threads.

    Every worker proves its own sandbox first. Raise CannotSandbox if the scheduler doesn't answer, has no workers, or
    one worker's proof fails.
    """
    try:
        client = stack.enter_context(Client(address, timeout=PATIENCE, set_as_default=False))
    except (OSError, TimeoutError, ValueError) as error:
        raise CannotSandbox(f"no Dask scheduler answers at {address}: {error}") from error
    proofs = _proofs(client, settings)
    if not proofs:
        raise CannotSandbox(f"the Dask scheduler at {address} has no workers: start some with `dask worker {address}`")

    def judge(notebook: NotebookNode, files: Mapping[str, bytes], seed: str) -> Judged:
        try:
            return client.submit(_judge, settings, notebook, files, seed, pure=False).result()
        except KilledWorker as error:
            raise GraderFault(f"the cluster lost the workers that judged it: {error}") from error

    return judge, f"{len(proofs)} workers at {address}; each {min(proofs)}", sum(client.nthreads().values()) or 1


def _proofs(client: Client, settings: Settings) -> list[str]:
    """Return the proofs of all workers, without those that die meanwhile: the next ones prove theirs when they judge.

    If all die, ask the next ones, for `PATIENCE` seconds.
    """
    ends = time.monotonic() + PATIENCE
    while True:
        answers = client.run(_proof, settings, on_error="return").values()
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, OSError):
                raise answer
        proofs = [answer for answer in answers if isinstance(answer, str)]
        if proofs or not answers or time.monotonic() > ends:
            return proofs
        time.sleep(1)


def _proof(settings: Settings) -> str:
    return preprocessor.judges(settings).proof


def _judge(settings: Settings, notebook: NotebookNode, files: Mapping[str, bytes], seed: str) -> Judged:
    return preprocessor.judges(settings).judge(notebook, files, seed)
