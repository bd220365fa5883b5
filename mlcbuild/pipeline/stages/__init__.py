"""The stages of a build, one file each: a function that makes the action, and what it runs."""
