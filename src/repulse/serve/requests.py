"""What may come in a request: images, texts or rows, in JSON, as a form, or as the bytes of one image."""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from repulse.files.columns import Kind

if TYPE_CHECKING:
    from starlette.requests import Request


@dataclass(frozen=True)
class Limits:
    """How much one request may ask for.

    Attributes:
        bytes: of its body.
        samples: in it.
        waiting: samples of all requests that may wait.
        pixels: of an image; a small file may hold many.
    """

    bytes: int = 16 * 2**20
    samples: int = 64
    waiting: int = 1024
    pixels: int = 2**26


class RefusedError(Exception):
    """A request that is not answered: the status, and why in one sentence."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


async def values_in(request: Request, kind: Kind, limits: Limits) -> Sequence[Any]:
    """Return the samples of a request, as `prepare` takes them."""
    body = await _body(request, limits)
    form = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if form == "application/json":
        values = _in_json(body, kind)
    elif kind == "images" and form == "multipart/form-data":
        values = await _in_form(request, body, limits)
    elif kind == "images" and (form.startswith("image/") or form == "application/octet-stream"):
        values = [body]
    else:
        images = ", an image, or a form with images" if kind == "images" else ""
        raise RefusedError(415, f"Expected JSON{images}, but got {form}.")
    if not values:
        raise RefusedError(422, "Expected at least one sample, but got none.")
    if len(values) > limits.samples:
        raise RefusedError(413, f"Expected at most {limits.samples} samples in a request, but got {len(values)}.")
    if kind == "images" and any(_pixels(image) > limits.pixels for image in values):
        raise RefusedError(413, f"Expected images of at most {limits.pixels:,} pixels, but got a larger one.")
    return values


def _pixels(content: bytes) -> float:
    """Return how many pixels an image has, without decoding it; 0 for what is none, which is refused later."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            return image.width * image.height
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return math.inf
    except Exception:  # of whatever the bytes are
        return 0


async def _body(request: Request, limits: Limits) -> bytes:
    """Read the body, but no more of it than the limit."""
    held = bytearray()
    async for part in request.stream():
        held += part
        if len(held) > limits.bytes:
            raise RefusedError(413, f"Expected at most {limits.bytes:,} bytes in a request, but got more.")
    return bytes(held)


def _in_json(body: bytes, kind: Kind) -> Sequence[Any]:
    try:
        found = json.loads(body)
        values = found[kind]
    except (ValueError, KeyError, TypeError, RecursionError) as reason:
        raise RefusedError(422, f'Expected JSON such as {{"{kind}": [...]}}, but got something else.') from reason
    if not isinstance(values, list):
        raise RefusedError(422, f'Expected "{kind}" to be a list, but got {type(values).__name__}.')
    if kind == "texts":
        if not all(isinstance(value, str) for value in values):
            raise RefusedError(422, 'Expected "texts" to be strings, but got something else among them.')
        return values
    if kind == "images":
        try:
            return [base64.b64decode(value, validate=True) for value in values]
        except (binascii.Error, TypeError, ValueError) as reason:
            raise RefusedError(422, 'Expected "images" to be files in base64, but got something else.') from reason
    try:
        rows = np.asarray(values, dtype=np.float32)
    except (ValueError, TypeError) as reason:
        raise RefusedError(
            422, 'Expected "rows" to be lists of as many numbers each, but got something else.'
        ) from reason
    if len(rows) and rows.ndim < 2:
        raise RefusedError(422, 'Expected "rows" to be lists of numbers, but got single ones.')
    return list(rows)


async def _in_form(request: Request, body: bytes, limits: Limits) -> Sequence[bytes]:
    from starlette.datastructures import UploadFile
    from starlette.exceptions import HTTPException
    from starlette.requests import Request as Again

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    try:
        async with Again(request.scope, receive).form(max_files=limits.samples, max_fields=limits.samples) as form:
            files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
            return [await file.read() for file in files]
    except (HTTPException, ValueError) as reason:
        raise RefusedError(
            422, "Expected a form with at most as many files as may be, but got something else."
        ) from reason
