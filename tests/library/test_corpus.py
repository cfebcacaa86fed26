"""Text as tokens: nothing of it is lost, ranks share a batch, and the held-out part stays out."""

import numpy as np
import pytest
import torch

from collectives.training.corpus import BYTES, TRAINED, Corpus, own_text


@pytest.mark.parametrize("vocabulary", [BYTES, 300, 5000])
def test_tokens_stand_for_the_whole_text_and_more_of_them_for_a_shorter_one(vocabulary):
    text = own_text()[:200_000]
    corpus = Corpus(text, vocabulary)
    assert corpus.text(corpus.tokens) == text
    assert int(corpus.tokens.max()) < vocabulary
    assert len(corpus.tokens) < len(text) or vocabulary == BYTES


def test_ranks_together_take_the_sequences_that_one_rank_would():
    corpus = Corpus(own_text()[:50_000])
    whole = corpus.batch(step=7, rank=0, world_size=1, batch=4, sequence=16)
    halves = [corpus.batch(step=7, rank=rank, world_size=2, batch=2, sequence=16) for rank in range(2)]
    for part in range(2):
        assert torch.equal(whole[part], torch.cat([half[part] for half in halves]))
    assert torch.equal(whole[0][:, 1:], whole[1][:, :-1]), "a target is the token that follows"
    assert not torch.equal(whole[0], corpus.batch(8, 0, 1, 4, 16)[0])


def test_what_is_held_out_is_never_trained_on():
    corpus = Corpus(bytes(range(200)) * 10)
    corpus.tokens = np.arange(len(corpus.tokens))  # each token is its own place
    limit = TRAINED * len(corpus.tokens)
    for step in range(50):
        assert corpus.batch(step, 0, 1, 8, 32)[1].max() < limit
    assert corpus.held_out(50, 32)[0].min() >= limit


def test_a_text_that_is_too_short_and_a_vocabulary_that_is_too_small_are_refused():
    with pytest.raises(ValueError, match="90 tokens of text are too few for a sequence of 128"):
        Corpus(b"x" * 100).batch(0, 0, 1, 1, 128)
    with pytest.raises(ValueError, match="a vocabulary of 64: it must be at least 256"):
        Corpus(b"x", 64)
