"""Methods: the paper in reading order, and what it is compared with."""
