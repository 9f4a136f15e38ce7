"""How the layers of a model are dealt to the stages of a pipeline."""

from __future__ import annotations

import itertools

from trainer.model.decoder import LayerRange


def split_layers(layers: int, stages: int) -> list[LayerRange]:
    """Contiguous ranges of layers per stage, of nearly equal size; earlier stages take the remainder, because the last
    one has the output projection as well."""
    base, extra = divmod(layers, stages)
    bounds = [0]
    for stage in range(stages):
        bounds.append(bounds[-1] + base + (1 if stage < extra else 0))
    return [LayerRange(first, last, layers) for first, last in itertools.pairwise(bounds)]
