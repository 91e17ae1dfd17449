"""Hugging Face: a callback for its `Trainer`, a call like its pipelines, and the Hub with a model card."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from repulse._extras import needs
from repulse._operators import define_missing
from repulse.ensemble import Ensemble, load
from repulse.errors import CheckpointError, DataError, expected
from repulse.integrations._model_card import card_of
from repulse.prediction import ClassPrediction
from repulse.recipe import Recipe
from repulse.retrofit import AUTO, retrofit

with needs("transformers and huggingface-hub", extra="hf"):
    define_missing()
    from huggingface_hub import ModelCard, ModelHubMixin, snapshot_download
    from transformers import PreTrainedModel, TrainerCallback


class RetrofitCallback(TrainerCallback):
    """Retrofit the model when the `Trainer` ends: after it has gone back to its best weights, if it does.

    The heads are saved in `heads/` of the output folder, and what was measured joins the trainer's log history.

    Args:
        validation: labelled batches; if None, those of the trainer's evaluation, if it had any.
        repulsion: where heads should disagree, as in `repulse.retrofit`.
        recipe: of the heads.
        options: other arguments of `repulse.retrofit`.

    Attributes:
        ensemble: the ensemble, once training has ended.
    """

    def __init__(
        self, validation: Any = None, *, repulsion: Any = AUTO, recipe: Recipe | None = None, **options: Any
    ) -> None:
        self.options = {"validation": validation, "repulsion": repulsion, "recipe": recipe, **options}
        self.ensemble: Ensemble | None = None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Retrofit on the trainer's own loaders."""
        options = dict(self.options)
        if options["validation"] is None:
            options["validation"] = kwargs.get("eval_dataloader")
        self.ensemble = retrofit(kwargs["model"], kwargs["train_dataloader"], **options)
        summary = self.ensemble.summary()
        found = {f"repulse_{summary.data}_{name}": value for name, value in summary.ensemble.items()}
        state.log_history.append({**found, "step": state.global_step, "epoch": state.epoch})
        if state.is_world_process_zero:
            self.ensemble.save(Path(args.output_dir) / "heads")


class UncertainPipeline:
    """Predict texts or images as a Hugging Face pipeline does, with both uncertainties.

    Args:
        ensemble: of a network that takes what the processor returns.
        processor: the model's tokenizer, image processor or feature extractor.
        batch_size: inputs that the network sees at once.
        options: for the processor, such as `truncation=True`.
    """

    def __init__(self, ensemble: Ensemble, processor: Any, batch_size: int = 32, **options: Any) -> None:
        self.ensemble, self.processor, self.batch_size = ensemble, processor, batch_size
        kind = {"padding": True} if hasattr(processor, "pad_token") else {}
        self.options = {**kind, "return_tensors": "pt", **options}

    def __call__(self, inputs: Any) -> Any:
        """Return a mapping with label, score, aleatoric and epistemic for one input, a list of them for a list."""
        if not isinstance(inputs, list | tuple):
            return self([inputs])[0]
        found: list[dict[str, Any]] = []
        for start in range(0, len(inputs), self.batch_size):
            encoded = dict(self.processor(list(inputs[start : start + self.batch_size]), **self.options))
            prediction = self.ensemble.predict(encoded, progress=False).cpu()
            if not isinstance(prediction, ClassPrediction):
                raise DataError(expected("ensemble", "a classifier", type(prediction).__name__))
            found += self._rows(prediction)
        return found

    def _rows(self, prediction: ClassPrediction) -> list[dict[str, Any]]:
        names = self.ensemble.class_names or tuple(f"LABEL_{i}" for i in range(prediction.probs.shape[1]))
        columns = (prediction.labels, prediction.confidence, prediction.aleatoric, prediction.epistemic)
        return [
            {"label": names[label], "score": score, "aleatoric": aleatoric, "epistemic": epistemic}
            for label, score, aleatoric, epistemic in zip(*(column.tolist() for column in columns), strict=True)
        ]


class HubEnsemble(ModelHubMixin, library_name="repulse", tags=["uncertainty", "out-of-distribution-detection"]):
    """An ensemble on the Hugging Face Hub, or in a folder of the same form: heads, a model card and the network.

    `HubEnsemble(ensemble).push_to_hub("me/name")`, `HubEnsemble.from_pretrained("me/name").ensemble`. A transformers
    model goes with its heads, in its own format; any other network stays with you, and is given when loading.

    Args:
        ensemble: that `repulse.retrofit` made, or `repulse.load`.
        data: in words, what the network was trained and the heads were fitted on, for the model card.
    """

    def __init__(self, ensemble: Ensemble, data: str | None = None) -> None:
        self.ensemble, self.data = ensemble, data

    def _save_pretrained(self, save_directory: Path) -> None:
        network = self.ensemble.model
        if isinstance(network, PreTrainedModel):
            network.save_pretrained(save_directory)
        self.ensemble.save(save_directory)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """Return the card, with all that is known of the fit."""
        return ModelCard(card_of(self.ensemble, self.data, self._hub_mixin_info.model_card_data.to_yaml()))

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        model: nn.Module | None = None,
        data: str | None = None,
        **_: Any,
    ) -> Self:
        folder = Path(model_id)
        if not folder.is_dir():
            folder = Path(
                snapshot_download(
                    model_id,
                    revision=revision,
                    cache_dir=cache_dir,
                    force_download=force_download,
                    local_files_only=local_files_only,
                    token=token,
                )
            )
        return cls(load(folder, _network_in(folder) if model is None else model), data)


def _network_in(folder: Path) -> nn.Module:
    """Load the transformers model of a folder, by the class that its configuration names."""
    import transformers

    try:
        names: Sequence[str] = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"]
    except (OSError, ValueError, KeyError) as reason:
        got = f"{folder}, which holds heads alone; pass `model=`, the network they were fitted on"
        raise CheckpointError(expected("folder", "one with a transformers model in it", got)) from reason
    kind = getattr(transformers, names[0], None)
    if not isinstance(kind, type) or not issubclass(kind, PreTrainedModel):
        raise CheckpointError(expected("architectures", "a model of transformers", repr(names[0])))
    with torch.random.fork_rng(devices=[]):  # weights that are about to be replaced are drawn first
        return kind.from_pretrained(folder).eval()
