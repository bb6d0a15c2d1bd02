"""Core: errors, arrays, files, options, progress, prefetching, locks. Knows nothing of images or codes."""
