"""`repulse serve`: a page and an HTTP service around an ensemble, on this machine unless told otherwise."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from repulse.commands import options
from repulse.commands.language import next_steps, warnings_as_lines
from repulse.files.samples import need
from repulse.serve.requests import Limits


def serve(
    heads: options.Heads,
    host: Annotated[
        str, typer.Option(help="Address to listen at; others than this machine's open it to a network.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 for a free one.")] = 8000,
    allow: Annotated[
        list[str] | None, typer.Option(help="Name under which it may be called, if not this machine's; repeatable.")
    ] = None,
    max_bytes: Annotated[int, typer.Option(min=1, help="Bytes of a request, at most.")] = Limits().bytes,
    max_samples: Annotated[int, typer.Option(min=1, help="Samples of a request, at most.")] = Limits().samples,
    watch: Annotated[
        Path | None,
        typer.Option(help="File that the watch over all requests goes on from, and is kept in.", metavar="FILE"),
    ] = None,
    model: options.Model = None,
    checkpoint: options.Checkpoint = None,
) -> None:
    """Serve predictions with their doubt: POST /predict, GET /health, GET /metrics, and a page to try it on.

    Requests that arrive together go through the network together. Ends with Ctrl-C.
    """
    need("fastapi", "serving", "serve")
    need("uvicorn", "serving", "serve")
    from repulse.serve.app import LOCAL, create_app
    from repulse.serve.server import listen

    limits = dataclasses.replace(Limits(), bytes=max_bytes, samples=max_samples)
    hosts = [*LOCAL, *(allow or [])] if host in LOCAL or allow else ["*"]
    with warnings_as_lines():
        app = create_app(heads, model=model, checkpoint=checkpoint, limits=limits, hosts=hosts, watch=watch)
    if host not in LOCAL:
        typer.echo(f"repulse: {host} can be reached from elsewhere; there is no password", err=True)

    def ready(address: str) -> None:
        typer.echo(f"{heads}: {address}/ is the page; Ctrl-C ends it")
        sample = {"images": "--data-binary @image.jpg -H content-type:image/jpeg"}
        form = sample.get(app.state.takes, f"""-H content-type:application/json -d '{{"{app.state.takes}": [...]}}'""")
        next_steps((f"curl {address}/predict {form}", "a prediction"), (f"curl {address}/metrics", "how it goes"))

    listen(app, host, port, ready)
