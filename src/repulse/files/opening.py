"""How a network and its data were opened: a small JSON beside the heads, so that nothing must be said twice.

    opening.json    the name of the network, where its weights are, what samples are, columns, classes; with a digest

Nothing is unpickled. A `package.module:function` in it is imported and called when the heads are opened, as a script
would be: open only folders whose origin you trust.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from repulse._files import explaining_writes, read_regular, sealed, unsealed, write_whole
from repulse._schema import mismatch
from repulse.ensemble import Ensemble, load
from repulse.errors import CheckpointError, expected
from repulse.files.batches import Prepare
from repulse.files.columns import Columns, Kind
from repulse.files.networks import open_network

FORMAT = 1
FILE = "opening.json"
MOST = 2**24
"""Bytes of it, at most."""


@dataclass(frozen=True)
class Opening:
    """What must be known to open heads again, and to read data as they were fitted on.

    Attributes:
        model: name of the network, as `open_network` takes it.
        checkpoint: file of its weights, or None.
        kind: what samples are.
        columns: what the columns of tables are.
        classes: names of the classes by which labels are understood; None if labels are numbers.
        task: "classification" or "regression".
        batch_size: number of samples that the network sees at once.
        sources: what it was fitted on, by role: data, validation, repulsion.
    """

    model: str
    checkpoint: str | None
    kind: Kind
    columns: Columns = field(default_factory=Columns)
    classes: tuple[str, ...] | None = None
    task: str = "classification"
    batch_size: int = 64
    sources: dict[str, str] = field(default_factory=dict)

    def save(self, folder: str | Path) -> Path:
        """Write it beside the heads."""
        with explaining_writes(Path(folder) / FILE, "--out"):
            return write_whole(Path(folder) / FILE, sealed({"format": FORMAT, **asdict(self)}))

    @staticmethod
    def read(folder: str | Path) -> Opening:
        """Read what `save` wrote.

        Raises:
            CheckpointError: there is none, or it was changed.
        """
        path = Path(folder) / FILE
        try:
            known = unsealed(read_regular(path, MOST))
            wrong = f"format {known['format']!r}" if known.pop("format") != FORMAT else mismatch(known, Opening, "it")
            if wrong:
                raise ValueError(wrong)
            known["columns"] = Columns.from_dict(known["columns"])
            known["classes"] = None if known["classes"] is None else tuple(known["classes"])
            return Opening(**known)
        except OSError as reason:
            got = f"{folder}, where there is no {FILE}"
            raise CheckpointError(expected("HEADS", "a folder that `repulse fit` wrote", got)) from reason
        except (ValueError, KeyError) as reason:
            raise CheckpointError(expected(str(path), "as `repulse fit` wrote it", reason)) from reason


def open_heads(
    folder: str | Path, model: str | None = None, checkpoint: str | Path | None = None
) -> tuple[Ensemble, Prepare, Opening]:
    """Open the ensemble that `repulse fit` wrote, with its network, and what turns samples into its inputs.

    Args:
        folder: of the heads.
        model: name of the network, if it is elsewhere than at the fit.
        checkpoint: file of its weights, if it is elsewhere than at the fit.
    """
    opening = Opening.read(folder)
    network = open_network(model or opening.model, checkpoint or (None if model else opening.checkpoint))
    return load(folder, network.model), network.prepare(opening.kind), opening
