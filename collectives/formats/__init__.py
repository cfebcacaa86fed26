"""Schedules and runs as files that other tools read: JSON, MSCCL XML and Perfetto traces."""
