"""Measurements: bytes on the wire, bytes held in memory, seconds, and what NCCL logs about itself."""
