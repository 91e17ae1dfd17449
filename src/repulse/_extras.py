"""What to say when an optional package is missing: which extra brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(package: str, *, extra: str) -> Iterator[None]:
    """Turn a failed import of an optional package into a sentence that says how to install it.

    Examples:
        >>> with needs("nowhere", extra="sklearn"):
        ...     import nowhere
        Traceback (most recent call last):
            ...
        ModuleNotFoundError: This needs nowhere: `pip install 'repulse[sklearn]'`.
    """
    try:
        yield
    except ModuleNotFoundError as reason:
        message = f"This needs {package}: `pip install 'repulse[{extra}]'`."
        raise ModuleNotFoundError(message, name=reason.name) from reason
