"""The exceptions of cudnn-aot and the exit code that each one means on the command line.

A message is one line, lower case, no trailing dot: what, got, want, how to fix. Wherever the
command line reports one of these, it prints that line and no traceback.
"""

from __future__ import annotations

from collections.abc import Iterable


class Error(Exception):
    """Base of every error that cudnn-aot raises on purpose."""

    exit_code = 1


class UsageError(Error):
    """An argument is wrong: an unknown target, a folder that is not a store."""

    exit_code = 2


class InvalidGraphError(Error, ValueError):
    """A graph or graph file breaks a rule of the format or of an op.

    What a file holds may be in the message, and of any length: it is cut.
    """

    MAX_LENGTH = 1500

    def __init__(self, message: str = "") -> None:
        cut = self.MAX_LENGTH
        super().__init__(message if len(message) <= cut else f"{message[:cut]}... (cut)")


class FrozenGraphError(Error, RuntimeError):
    """A graph was changed after it was frozen."""


class cudnnGraphNotSupportedError(Error):  # noqa: N801  (the name that programs already catch)
    """No engine takes the graph; the message carries every reason, ``reasons`` one each.

    Attributes:
        is_lasting: whether that is so wherever it is asked; not where a module is missing.
    """

    exit_code = 3

    def __init__(self, message: str, reasons: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.reasons = list(reasons)
        self.is_lasting = True


class SequenceError(UsageError, RuntimeError):
    """A method of a graph was called before another one that it needs."""


class PlanIndexError(UsageError, IndexError):
    """A plan list has no such place."""


class StoreError(Error):
    """A store cannot be read or written as asked."""


class NotAStoreError(UsageError, StoreError):
    """The path is not a store of a format this version reads."""


class DamagedError(StoreError):
    """Stored bytes differ from the digest recorded for them."""


class NotInStoreError(StoreError):
    """The store holds no such name, graph or kernel."""


class PinError(StoreError):
    """A store, or a document of it, is not the one that it is pinned to by its root digest."""


class RemoteError(StoreError):
    """A store or an image elsewhere cannot be reached, or does not give what it should.

    Attributes:
        attempts: how many times it was tried; 0 where nothing was sent.
    """

    def __init__(self, message: str, attempts: int = 0) -> None:
        super().__init__(message)
        self.attempts = attempts


class TrustError(StoreError):
    """No trusted key has signed the store as it is."""


class NotReproducibleError(StoreError):
    """One kernel key gave two different objects; the key misses something that a compile read."""


class CompileError(Error):
    """A kernel did not compile or link.

    Attributes:
        reason: the first real error alone, without naming the kernel.
        log: path of all that its compile printed; empty when that is nothing.
    """

    def __init__(self, message: str, reason: str = "", log: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message
        self.log = log


class CompileForbiddenError(CompileError):
    """A compile was needed while ``CUDNN_AOT_FORBID_COMPILE=1`` was set."""


class RequirementError(Error):
    """This machine or device does not meet what a stored plan requires."""


class LaunchError(Error):
    """CUDA or a kernel reported a failure while a plan was prepared or executed."""


class RefusedError(Error, ValueError):
    """A call does not fit the plan: nothing was launched.

    Attributes:
        rule: id of the broken rule, for example ``"capacity"`` or ``"dtype"``.
        operand: uid of the operand, or None when the rule is not about one.
    """

    def __init__(self, message: str, rule: str = "", operand: int | None = None) -> None:
        super().__init__(message)
        self.rule = rule
        self.operand = operand


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Of a name that was refused, what follows it in the message: ``" (did you mean 'h200'?)"``.

    Empty where none of ``known`` is like it.
    """
    import difflib  # loaded only to refuse

    by_case = {choice.lower(): choice for choice in known}
    near = difflib.get_close_matches(name[:100].lower(), by_case, 1)
    return f" (did you mean {by_case[near[0]]!r}?)" if near else ""
