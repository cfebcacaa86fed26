"""What a page shows: figures to step through, calculators and questions, complete without a kernel or another host."""
