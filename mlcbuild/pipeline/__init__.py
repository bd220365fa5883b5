"""The build graph: actions, keys, the scheduler and the stages."""
