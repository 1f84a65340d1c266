"""Hooks of a family whose optional dependency nobody has."""

import a_module_that_nobody_has  # noqa: F401
