"""What collectives are for: the step of a training run, held, timed and run on many ranks."""
