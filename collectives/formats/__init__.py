"""File formats for schedules and runs: JSON, MSCCL XML and Perfetto traces."""
