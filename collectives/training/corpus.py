"""Real text to train on, without a download: the course's own chapters, as tokens.

    corpus = Corpus(own_text(), vocabulary=512)
    inputs, targets = corpus.batch(step, rank, world_size, batch=2, sequence=128)    # each [batch, sequence]

A token is a byte (0 to 255) or one of the most frequent pieces of the text: words with the blank before them, and runs
of other signs. The last tenth is held out: `held_out` draws from it, and `batch` never does.
"""

from __future__ import annotations

import gzip
import re
from collections import Counter
from pathlib import Path

import numpy as np
import torch

BYTES = 256  # the smallest vocabulary: with it any text can be written
TRAINED = 0.9  # the part of the text that is trained on

_PIECE = re.compile(rb" ?[A-Za-z_]+|[0-9]|\s+|[^\sA-Za-z0-9_]+")


def own_text() -> bytes:
    """Return the chapters of this course as they were in November 2026: 795 kB of English, formulas and Python.

    They are kept as they were, so that a run that goes on after an edit of the book still reads the same text.
    """
    return gzip.decompress(Path(__file__).with_name("corpus.txt.gz").read_bytes())


class Corpus:
    """`text` as tokens. `vocabulary`: how many different ones. `tokens`: all of them, an int32 array.

    Raises `ValueError` for a vocabulary below 256.
    """

    def __init__(self, text: bytes, vocabulary: int = BYTES):
        if vocabulary < BYTES:
            raise ValueError(f"a vocabulary of {vocabulary}: it must be at least {BYTES}, one token for each byte")
        self.vocabulary = vocabulary
        pieces = _PIECE.findall(text) if vocabulary > BYTES else [text]
        frequent = Counter(piece for piece in pieces if len(piece) > 1).most_common(vocabulary - BYTES)
        self.pieces = [piece for piece, _ in frequent]
        known = {piece: BYTES + number for number, piece in enumerate(self.pieces)}
        found: list[int] = []
        for piece in pieces:
            token = known.get(piece)
            found.extend(piece) if token is None else found.append(token)
        self.tokens = np.array(found, np.int32)  # no tensor, so that it doesn't count as memory of the training

    def text(self, tokens: np.ndarray) -> bytes:
        """Return what tokens stand for."""
        return b"".join(bytes([each]) if each < BYTES else self.pieces[each - BYTES] for each in tokens.tolist())

    def batch(
        self, step: int, rank: int, world_size: int, batch: int, sequence: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a rank's sequences of a step, and the tokens that follow each of theirs: two of [batch, sequence].

        Places are random, the same in every run. All ranks together take the sequences that one rank would with
        `world_size * batch`, so a loss doesn't depend on how many ranks share the work. Raises `ValueError` if the text
        is shorter than a sequence.
        """
        end = int(TRAINED * len(self.tokens))
        starts = self._starts(step, world_size * batch, 0, end, sequence)[rank * batch : (rank + 1) * batch]
        return self._sequences(starts, sequence)

    def held_out(self, count: int, sequence: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `count` sequences of the part that isn't trained on, always the same ones: as `batch`."""
        begin = int(TRAINED * len(self.tokens))
        return self._sequences(self._starts(-1, count, begin, len(self.tokens), sequence), sequence)

    def _starts(self, seed: int, count: int, begin: int, end: int, sequence: int) -> torch.Tensor:
        if end - begin <= sequence:
            raise ValueError(f"{end - begin:,} tokens of text are too few for a sequence of {sequence:,}")
        generator = torch.Generator().manual_seed(seed % 2**32)
        return torch.randint(begin, end - sequence, (count,), generator=generator)

    def _sequences(self, starts: torch.Tensor, sequence: int) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.from_numpy(self.tokens[starts.numpy()[:, None] + np.arange(sequence + 1)]).long()
        return both[:, :-1], both[:, 1:]
