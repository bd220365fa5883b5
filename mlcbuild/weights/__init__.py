"""Parameters of a model: how they are made and how they lie on disk."""
