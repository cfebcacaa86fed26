"""What is measured: bytes on the wire, bytes held, seconds, and what NCCL logs about itself."""
