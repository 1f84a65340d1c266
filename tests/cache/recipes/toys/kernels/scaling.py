"""A module that the templates import, so that a source closure has more than one file."""


def scaled(value, scale):
    return value * scale
