"""Suggest where and how strongly heads should repel, and which layers they should see, without labels of strangers.

Nobody can label what a network has never met, but sources of repulsion samples are strangers to each other: heads that
repel on one should doubt the samples of all others. Every setting is judged by that (a source that takes part in a
mixture is left out of it before it judges it), by how well doubt ranks the network's own mistakes, and by what the
setting costs in distribution, each compared with heads that repel nowhere. Features are computed once.
"""

from repulse.suggest.suggest import suggest
from repulse.suggest.suggestion import Suggestion, Trial

__all__ = ["Suggestion", "Trial", "suggest"]
