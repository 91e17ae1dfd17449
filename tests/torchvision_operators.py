"""For tests that import timm or transformers."""

from repulse._operators import define_missing

__all__ = ["define_missing"]
