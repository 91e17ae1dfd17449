"""Open networks and data that are named by strings, as a command line or a worker elsewhere has them.

In order of reading: `columns` (what a column of a table is), `samples` (what is in a file or folder), `networks` (a
network, and what turns samples into its inputs), `batches` (samples as a network takes them), `opening` (how all of it
was opened, kept beside the heads).
"""

from repulse.files.batches import Batches
from repulse.files.columns import Columns
from repulse.files.networks import Network, open_network
from repulse.files.opening import Opening
from repulse.files.samples import Samples, read_samples

__all__ = ["Batches", "Columns", "Network", "Opening", "Samples", "open_network", "read_samples"]
