"""Core: errors, array checks, files and locks, options, progress, threads; independent of images and codes."""
