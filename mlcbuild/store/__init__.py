"""The content-addressed store of build results."""
