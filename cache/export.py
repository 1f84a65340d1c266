"""The step from a template to an object file. Its own source belongs to every kernel key."""
