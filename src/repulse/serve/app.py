"""The service: `/predict`, `/why`, `/health`, `/metrics`, and a page at `/`."""

from __future__ import annotations

import html
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repulse._files import without_nan
from repulse._version import __version__
from repulse.decide.reason import Reasons
from repulse.decide.watch import Watch
from repulse.ensemble import Ensemble
from repulse.errors import DataError, RepulseError, expected
from repulse.files.batches import Prepare
from repulse.files.opening import Opening, open_heads
from repulse.files.samples import need
from repulse.prediction import ClassPrediction, Prediction, RegressionPrediction
from repulse.serve.batching import Batcher, FullError
from repulse.serve.requests import Limits, RefusedError, values_in

if TYPE_CHECKING:
    from fastapi import FastAPI

TOP = 5
"""Classes whose probabilities are told."""

KEEP_EVERY = 1000
"""Samples after which the watch is kept again."""

LOCAL = ("127.0.0.1", "localhost", "::1")


def create_app(
    heads: str | Path,
    *,
    model: str | None = None,
    checkpoint: str | Path | None = None,
    limits: Limits | None = None,
    hosts: Sequence[str] = LOCAL,
    watch: str | Path | None = None,
) -> FastAPI:
    """Make the service of one ensemble, for uvicorn or any other ASGI server.

    Args:
        heads: folder that `repulse fit` wrote.
        model: name of the network, if it is elsewhere than at the fit.
        checkpoint: file of its weights, if it is elsewhere than at the fit.
        limits: how much one request may ask for.
        hosts: names under which it may be called, so that no foreign page can reach it under another; "*" for any.
        watch: file in which the watch over all requests is kept when the service ends, and every thousand samples; it
            goes on from there. Each process of a service needs its own.
    """
    need("fastapi", "serving", "serve")
    from fastapi import FastAPI, Request
    from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    service = _Service(*open_heads(heads, model, checkpoint), limits or Limits(), watch)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.batcher.close()
        service.keep_watch()

    app = FastAPI(title="repulse", version=__version__, lifespan=life, docs_url=None, redoc_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[h for h in hosts if ":" not in h])

    async def predict(request: Request) -> JSONResponse:
        status, answer = await service.answer(request, "predictions", service.predictions)
        return JSONResponse(answer, status, {"Retry-After": "1"} if status == 503 else None)

    async def why(request: Request) -> JSONResponse:
        status, answer = await service.answer(request, "reasons", service.reasons)
        return JSONResponse(answer, status, {"Retry-After": "1"} if status == 503 else None)

    async def health() -> JSONResponse:
        return JSONResponse(service.health())

    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(service.metrics(), media_type="text/plain; version=0.0.4")

    async def page() -> HTMLResponse:
        return HTMLResponse(_page(service.opening), headers={"Content-Security-Policy": POLICY})

    app.state.takes = service.opening.kind
    for name, asked in (("/predict", predict), ("/why", why)):
        asked.__annotations__["request"] = Request  # FastAPI looks for it among the names of this module
        app.add_api_route(name, asked, methods=["POST"], response_model=None)
    app.add_api_route("/health", health, methods=["GET"], response_model=None)
    app.add_api_route("/metrics", metrics, methods=["GET"], response_model=None)
    app.add_api_route("/", page, methods=["GET"], response_model=None)
    return app


POLICY = (
    "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
)


class _Service:
    """An ensemble that answers requests, and counts them."""

    def __init__(
        self, ensemble: Ensemble, prepare: Prepare, opening: Opening, limits: Limits, state: str | Path | None
    ) -> None:
        self.ensemble, self.prepare, self.opening, self.limits = ensemble, prepare, opening, limits
        self.batcher = Batcher(self._run, opening.batch_size, limits.waiting)
        self.state, self.watch = state, _watch_of(ensemble, state)
        self.kept = 0 if self.watch is None else self.watch.seen
        self.statuses: Counter[int] = Counter()
        self.samples, self.seconds, self.epistemic = 0, 0.0, 0.0

    async def predictions(self, values: Sequence[Any]) -> list[dict[str, Any]]:
        """Predict for some samples, in a batch with those of other requests."""
        prediction = await self.batcher(values)
        self.samples += len(prediction)
        self.epistemic += float(prediction.score.sum())  # one number per input of every kind
        return self._told(prediction)

    async def reasons(self, values: Sequence[Any]) -> list[dict[str, Any]]:
        """Say why some samples are doubted."""
        reasons = await self.batcher.alone(lambda: self.ensemble.why(self._prepared(values)), len(values))
        assert isinstance(reasons, Reasons)
        return [reason.record() for reason in reasons]

    async def answer(
        self, request: Any, name: str, told: Callable[[Sequence[Any]], Awaitable[list[dict[str, Any]]]]
    ) -> tuple[int, dict[str, Any]]:
        """Return the status and the answer to a request."""
        started = time.perf_counter()
        try:
            values = await values_in(request, self.opening.kind, self.limits)
            status, answer = 200, {name: without_nan(await told(values))}
        except RefusedError as reason:
            status, answer = reason.status, {"error": str(reason)}
        except FullError:
            status, answer = 503, {"error": "Too many samples are waiting; try again in a second."}
        except RepulseError as reason:
            status, answer = 422, {"error": str(reason)}
        except Exception as reason:  # of a transform that is not ours: on what was sent, so it is told
            status, answer = 422, {"error": f"The samples cannot be prepared: {type(reason).__name__}."}
        self.statuses[status] += 1
        self.seconds += time.perf_counter() - started
        return status, answer

    def health(self) -> dict[str, Any]:
        """Say what is served."""
        return {
            "status": "ok",
            "takes": self.opening.kind,
            **({"columns": self.opening.columns.features} if self.opening.columns.features else {}),
            "task": self.opening.task,
            "heads": self.ensemble.heads.count,
            "network": self.ensemble.network["weights"],
            "version": __version__,
        }

    def metrics(self) -> str:
        """Return the counters in the text format of Prometheus."""
        lines = ["# TYPE repulse_requests_total counter"]
        lines += [f'repulse_requests_total{{status="{key}"}} {n}' for key, n in sorted(self.statuses.items())]
        for name, kind, value in (
            ("samples_total", "counter", self.samples),
            ("batches_total", "counter", self.batcher.batches),
            ("request_seconds_total", "counter", f"{self.seconds:.6f}"),
            ("epistemic_total", "counter", f"{self.epistemic:.6f}"),
            ("waiting_samples", "gauge", self.batcher.waiting),
        ):
            lines += [f"# TYPE repulse_{name} {kind}", f"repulse_{name} {value}"]
        return "\n".join(lines) + "\n" + ("" if self.watch is None else self.watch.metrics())

    def keep_watch(self) -> None:
        """Write the state of the watch, if there is a file for it."""
        if self.watch is not None and self.state is not None:
            self.watch.save(self.state)
            self.kept = self.watch.seen

    def _run(self, values: list[Any]) -> Prediction:
        return self.ensemble.predict(self._prepared(values), progress=False)

    def _prepared(self, values: Sequence[Any]) -> Any:
        return self.prepare(np.stack(values) if self.opening.kind == "rows" else values)

    def _told(self, prediction: Prediction) -> list[dict[str, Any]]:
        names = ("aleatoric", "epistemic", "total")
        known = self.ensemble.class_names or self.opening.classes
        if isinstance(prediction, RegressionPrediction):
            columns = {"mean": prediction.mean.tolist(), "std": prediction.total.sqrt().tolist()}
            columns |= {name: getattr(prediction, name).tolist() for name in names}
        elif isinstance(prediction, ClassPrediction):
            columns = {name: getattr(prediction, name).tolist() for name in names}
        else:
            columns = {name: np.asarray(values).tolist() for name, values in prediction.columns(known).items()}
        told = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        if isinstance(prediction, ClassPrediction):
            best = prediction.probs.topk(min(TOP, prediction.probs.shape[1]), dim=1)
            for one, probs, labels in zip(told, best.values.tolist(), best.indices.tolist(), strict=True):
                classes = [str(i) if known is None else known[i] for i in labels]
                one |= {"prediction": classes[0], "confidence": probs[0]}
                one["probs"] = dict(zip(classes, probs, strict=True))
        if self.watch is not None:
            decision = self.watch.gate.decide(prediction)
            self.watch.update(decision)
            if self.watch.seen - self.kept >= KEEP_EVERY:
                self.keep_watch()
            for one, record in zip(told, decision.records(), strict=True):
                one |= {name: value for name, value in record.items() if name != "label"}
        return told


def _watch_of(ensemble: Ensemble, state: str | Path | None) -> Watch | None:
    """Return the watch that goes on from a file, or a new one; None without a gate."""
    if not ensemble.has_gate:
        if state is not None:
            raise DataError(expected("watch", "None for heads without a gate (make one with `repulse gate`)", state))
        return None
    gate = ensemble.gate()
    return gate.resume(state) if state is not None and Path(state).exists() else gate.watch()


def _page(opening: Opening) -> str:
    columns = html.escape(", ".join(opening.columns.features or ()))
    page = files("repulse.serve").joinpath("page.html").read_text(encoding="utf-8")
    return page.replace("$kind", opening.kind).replace("$columns", columns)
