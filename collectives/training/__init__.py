"""Distributed training with collectives: the memory, the time and the execution of a step on many ranks."""
