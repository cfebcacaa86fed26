"""The sandbox in which submissions run: namespaces, limits, the watch from outside, and the proof."""
