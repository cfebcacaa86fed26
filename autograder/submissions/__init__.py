"""What comes in: notebooks and zips, read as data."""
