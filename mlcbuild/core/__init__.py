"""What everything stands on: files, digests, locks, processes, progress."""
