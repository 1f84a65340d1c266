"""Derivatives by central differences, which know nothing of how a gradient was derived."""

from collections.abc import Callable, Mapping

import numpy as np

STEP = 1e-5  # of numbers of order one: truncation 1e-10, rounding 1e-11 of the function's value


def slopes(
    function: Callable[[np.ndarray], float], at: np.ndarray, step: float = STEP
) -> np.ndarray:
    """The gradient of a scalar function of one array."""
    point = np.array(at, np.float64)
    gradient = np.zeros_like(point)
    for index in np.ndindex(point.shape):
        kept = point[index]
        point[index] = kept + step
        above = function(point)
        point[index] = kept - step
        below = function(point)
        point[index] = kept
        gradient[index] = (above - below) / (2 * step)
    return gradient


def along(
    function: Callable[[Mapping[str, np.ndarray]], float],
    at: Mapping[str, np.ndarray],
    direction: Mapping[str, np.ndarray],
    step: float = STEP,
) -> float:
    """The derivative of a scalar function of several arrays along one direction."""

    def moved(sign: int) -> dict[str, np.ndarray]:
        return {
            name: np.asarray(array, np.float64) + sign * step * direction.get(name, 0.0)
            for name, array in at.items()
        }

    return (function(moved(1)) - function(moved(-1))) / (2 * step)
