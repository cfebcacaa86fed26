"""Judging on a Dask cluster: each worker process has judges and a sandbox of its own, made when it is first asked.

Workers need this package, and bubblewrap, as the machine that grades does. Only notebooks go there and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from distributed import Client
from distributed.scheduler import KilledWorker
from nbformat import NotebookNode

from ..sandbox.envelope import CannotSandbox
from . import preprocessor
from .judge import Settings
from .judges import GraderFault, Judged

PATIENCE = 30  # seconds in which a scheduler has to answer


def connect(address: str, settings: Settings, stack: ExitStack) -> tuple[Callable[..., Judged], str, int]:
    """Return what judges a notebook on the cluster, the proof for the teacher, and how many notebooks at once.

    Every worker proves its own sandbox first; raises CannotSandbox if one of them cannot, or if there is none.
    """
    try:
        client = stack.enter_context(Client(address, timeout=PATIENCE, set_as_default=False))
    except (OSError, TimeoutError, ValueError) as error:
        raise CannotSandbox(f"no Dask scheduler answers at {address}: {error}") from error
    proofs = client.run(_proof, settings)
    if not proofs:
        raise CannotSandbox(f"the Dask scheduler at {address} has no workers")

    def judge(notebook: NotebookNode, files: Mapping[str, bytes]) -> Judged:
        try:
            return client.submit(_judge, settings, notebook, files, pure=False).result()
        except KilledWorker as error:
            raise GraderFault(f"the workers that judged it were lost: {error}") from error

    return judge, f"{len(proofs)} workers at {address}; each {min(proofs.values())}", sum(client.nthreads().values())


def _proof(settings: Settings) -> str:
    return preprocessor.judges(settings).proof


def _judge(settings: Settings, notebook: NotebookNode, files: Mapping[str, bytes]) -> Judged:
    return preprocessor.judges(settings).judge(notebook, files)
