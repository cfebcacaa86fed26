"""What the cells of an exercise use: one module an exercise, named after it, and the checks that they share."""

from . import wall

wall.watch()
