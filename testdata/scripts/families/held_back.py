"""Families that nobody had seen who wrote Trainyard's rules: `--held-back`. They are no part of docs/families.md."""

import held_back_layers
import held_back_models

FAMILIES = {**held_back_layers.FAMILIES, **held_back_models.FAMILIES}
