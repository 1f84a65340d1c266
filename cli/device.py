"""Device memory, copies, CUDA graphs and event timing, through the CUDA runtime and nothing else.

Kept to the few calls that executing and timing a plan by hand needs, so that ``run`` and ``tune``
work on a serving machine without torch.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from cudnn_aot.errors import LaunchError

_HOST_TO_DEVICE, _DEVICE_TO_HOST, _DEVICE_TO_DEVICE = 1, 2, 3
_L2_CACHE_SIZE = 38  # cudaDevAttrL2CacheSize
_THREAD_LOCAL = 1  # cudaStreamCaptureModeThreadLocal


class Device:
    """CUDA device ``index`` and a stream on it."""

    def __init__(self, cudart_path: str, index: int = 0) -> None:
        self._cudart = ctypes.CDLL(cudart_path)
        self._cudart.cudaGetErrorString.restype = ctypes.c_char_p
        self.index = index
        self._call("cudaSetDevice", ctypes.c_int(index))
        stream = ctypes.c_void_p()
        self._call("cudaStreamCreate", ctypes.byref(stream))
        self.stream = int(stream.value or 0)

    def allocate(self, size_bytes: int) -> int:
        """Address of new device memory, 256-byte aligned, never null; freed with the process."""
        address = ctypes.c_void_p()
        self._call("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(max(size_bytes, 256)))
        return int(address.value or 0)

    def free(self, address: int) -> None:
        self._call("cudaFree", ctypes.c_void_p(address))

    def upload(self, address: int, array: np.ndarray) -> None:
        self._copy(address, array.ctypes.data, array.nbytes, _HOST_TO_DEVICE)

    def download(self, array: np.ndarray, address: int) -> None:
        self._copy(array.ctypes.data, address, array.nbytes, _DEVICE_TO_HOST)

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """From device memory to device memory."""
        self._copy(target, source, size_bytes, _DEVICE_TO_DEVICE)

    @property
    def l2_bytes(self) -> int:
        value = ctypes.c_int()
        attribute = ctypes.c_int(_L2_CACHE_SIZE)
        self._call("cudaDeviceGetAttribute", ctypes.byref(value), attribute, self.index)
        return value.value

    def capture(self, work: Callable[[], None]) -> int:
        """What ``work`` launches on the stream, as a CUDA graph to be replayed.

        Raises:
            LaunchError: CUDA refuses to capture it.
        """
        stream, graph, made = (ctypes.c_void_p(at) for at in (self.stream, None, None))
        self._call("cudaStreamBeginCapture", stream, ctypes.c_int(_THREAD_LOCAL))
        try:
            work()
        finally:
            self._call("cudaStreamEndCapture", stream, ctypes.byref(graph))
        self._call("cudaGraphInstantiate", ctypes.byref(made), graph, ctypes.c_ulonglong(0))
        self._call("cudaGraphDestroy", graph)
        return int(made.value or 0)

    def replay(self, graph: int) -> None:
        self._call("cudaGraphLaunch", ctypes.c_void_p(graph), ctypes.c_void_p(self.stream))

    def free_graph(self, graph: int) -> None:
        self._call("cudaGraphExecDestroy", ctypes.c_void_p(graph))

    def synchronize(self) -> None:
        self._call("cudaStreamSynchronize", ctypes.c_void_p(self.stream))

    @contextmanager
    def timed(self, milliseconds: list[float]) -> Iterator[None]:
        """Append the device time between the block's start and its end."""
        start, stop = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cudaEventCreate", ctypes.byref(start))
        self._call("cudaEventCreate", ctypes.byref(stop))
        stream = ctypes.c_void_p(self.stream)
        self._call("cudaEventRecord", start, stream)
        yield
        self._call("cudaEventRecord", stop, stream)
        self._call("cudaEventSynchronize", stop)
        elapsed = ctypes.c_float()
        self._call("cudaEventElapsedTime", ctypes.byref(elapsed), start, stop)
        self._call("cudaEventDestroy", start)
        self._call("cudaEventDestroy", stop)
        milliseconds.append(elapsed.value)

    def _copy(self, target: int, source: int, size_bytes: int, kind: int) -> None:
        if size_bytes:
            self._call(
                "cudaMemcpy",
                ctypes.c_void_p(target),
                ctypes.c_void_p(source),
                ctypes.c_size_t(size_bytes),
                ctypes.c_int(kind),
            )

    def _call(self, function: str, *args: object) -> None:
        code = getattr(self._cudart, function)(*args)
        if code:
            text = self._cudart.cudaGetErrorString(code).decode()
            raise LaunchError(f"{function} failed: {text} (error {code})")
