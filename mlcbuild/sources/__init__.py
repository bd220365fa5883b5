"""Where models come from: read-only views of checkpoints."""
