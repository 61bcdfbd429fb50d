"""All families, in the order of the table."""

import re

import images
import language
import layers
import lost
import weights

FAMILIES = {**language.FAMILIES, **images.FAMILIES, **layers.FAMILIES, **weights.FAMILIES, **lost.FAMILIES}


def slug(name):
    """Returns a family's name as a part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("*", "times")).strip("-")
